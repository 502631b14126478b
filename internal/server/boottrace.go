package server

import (
	"context"
	"encoding/json"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/netboot"
)

// Boot is the boot side, as far as the API asks it.
type Boot interface {
	Explain(ctx context.Context, c netboot.Client) (netboot.Explanation, error)
}

// tracers are those who watch the DHCP server. The zero value has none.
type tracers struct {
	mu   sync.Mutex
	open map[chan netboot.Trace]fleet.MAC // "": all
}

// traceRoom is how many packets wait for a reader that is slow; what comes
// then is left out, since boots must not wait for readers.
const traceRoom = 512

// TraceBoot tells those who watch what became of a DHCP packet. It is
// netboot.Server's Trace, and does not block.
func (s *Server) TraceBoot(t netboot.Trace) {
	s.tracers.mu.Lock()
	defer s.tracers.mu.Unlock()
	for to, mac := range s.tracers.open {
		if mac != "" && mac != t.Client.MAC {
			continue
		}
		select {
		case to <- t:
		default:
		}
	}
}

func (x *tracers) watch(mac fleet.MAC) (news <-chan netboot.Trace, stop func()) {
	c := make(chan netboot.Trace, traceRoom)
	x.mu.Lock()
	defer x.mu.Unlock()
	if x.open == nil {
		x.open = map[chan netboot.Trace]fleet.MAC{}
	}
	x.open[c] = mac
	return c, func() {
		x.mu.Lock()
		defer x.mu.Unlock()
		delete(x.open, c)
	}
}

// bootTrace streams what happens at the DHCP server until the reader goes.
func (s *Server) bootTrace(w http.ResponseWriter, r *http.Request, _ string) (any, error) {
	var mac fleet.MAC
	if q := r.URL.Query().Get("mac"); q != "" {
		var err error
		if mac, err = fleet.ParseMAC(q); err != nil {
			return nil, problem(http.StatusBadRequest, "", "%v", err)
		}
	}
	news, stop := s.tracers.watch(mac)
	defer stop()
	w.Header().Set("Content-Type", "application/x-ndjson")
	w.Header().Set("Cache-Control", "no-store")
	rc := http.NewResponseController(w)
	ping := time.NewTicker(streamPing)
	defer ping.Stop()
	check := time.NewTicker(streamCheck)
	defer check.Stop()
	line := []byte("\n") // the first tells the reader that it is watched
	for {
		if _, err := w.Write(line); err != nil {
			return nil, errAnswered
		}
		if err := rc.Flush(); err != nil {
			return nil, errAnswered
		}
		select {
		case <-r.Context().Done():
			return nil, errAnswered
		case <-check.C:
			if _, err := s.operator(r); err != nil {
				return nil, errAnswered
			}
			line = nil
		case <-ping.C:
			line = []byte("\n")
		case t := <-news:
			b, err := json.Marshal(bootTraceOf(t))
			if err != nil {
				return nil, errAnswered
			}
			line = append(b, '\n')
		}
	}
}

func bootTraceOf(t netboot.Trace) api.BootTrace {
	return api.BootTrace{At: t.At, Interface: t.Interface, Client: t.Client.Name(), Kind: string(t.Client.Kind), Type: t.Type, Answer: t.Answer,
		IP: t.IP, File: t.File, Why: t.Why, Text: t.String(), From: t.From, To: t.To, ReplyFrom: t.ReplyFrom, ReplyTo: t.ReplyTo, Request: t.Request, Reply: t.Reply}
}

// bootExplain answers what a machine would be given.
func (s *Server) bootExplain(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	if s.Boot == nil {
		return nil, problem(http.StatusNotFound, "", "this server has no boot services")
	}
	c, err := clientOf(r)
	if err != nil {
		return nil, err
	}
	x, err := s.Boot.Explain(r.Context(), c)
	if err != nil {
		return nil, err
	}
	out := api.BootExplanation{Answer: string(x.Answer.Kind), Node: x.Answer.Node, Why: x.Why, Silent: x.Silent, Reply: x.Reply, Download: x.Download, Size: x.Answer.Size}
	if x.Reply != nil {
		out.Profile = string(x.Profile)
	}
	return out, nil
}

// archs are the names that people have for numbers of option 93.
var archs = map[string]netboot.Arch{"": netboot.ArchX64, "x64": netboot.ArchX64, "amd64": netboot.ArchX64, "arm64": netboot.ArchARM64, "bios": netboot.ArchBIOS}

// clientOf reads the machine that is asked about.
func clientOf(r *http.Request) (c netboot.Client, err error) {
	q := r.URL.Query()
	bad := func(format string, args ...any) (netboot.Client, error) {
		return c, problem(http.StatusBadRequest, "", format, args...)
	}
	if c.MAC, err = fleet.ParseMAC(q.Get("mac")); err != nil {
		return bad("%v", err)
	}
	known := false
	if c.Arch, known = archs[q.Get("arch")]; !known {
		n, err := strconv.ParseUint(q.Get("arch"), 10, 16)
		if err != nil {
			return bad("arch %q: want x64, arm64, bios, or a number of option 93", q.Get("arch"))
		}
		c.Arch = netboot.Arch(n)
	}
	c.HasArch, c.Via = true, "dhcp"
	switch c.Kind = netboot.Kind(q.Get("kind")); c.Kind {
	case "":
		c.Kind = netboot.KindUEFIPXE
		if c.Arch == netboot.ArchBIOS {
			c.Kind = netboot.KindBIOS
		}
	case netboot.KindOS, netboot.KindNodeAgent, netboot.KindUEFIPXE, netboot.KindUEFIHTTP, netboot.KindIPXE, netboot.KindUBoot, netboot.KindBIOS:
	default:
		return bad("kind %q: want uefi-pxe, uefi-http, ipxe, u-boot, bios, nodeagent or os", c.Kind)
	}
	if v := q.Get("relay"); v != "" {
		if c.Relay, err = netip.ParseAddr(v); err != nil {
			return bad("relay %q: want an IPv4 address", v)
		}
	}
	return c, nil
}

// bootRoutes registers what has to do with the boot services.
func (s *Server) bootRoutes(m *mux) {
	m.HandleFunc("GET "+api.PathBootTrace, s.asOperator(RoleOperator, s.bootTrace))
	m.HandleFunc("GET "+api.PathBootExplain, s.asOperator(RoleViewer, s.bootExplain))
}

var bootOperations = []operation{
	{"GET " + api.PathBootTrace, "What happens at the DHCP server, as it happens, a JSON object a line", "operator", []param{{"mac", "string", "of this machine only"}}, nil, api.BootTrace{}, "application/x-ndjson"},
	{"GET " + api.PathBootExplain, "What a machine would be given to boot, and why", "viewer", []param{{"mac", "string", "its address"}, {"arch", "string", "x64, arm64, bios, or a number of option 93"}, {"kind", "string", "uefi-pxe, uefi-http, ipxe, u-boot, bios, nodeagent or os"}, {"relay", "string", "address of the relay it is behind"}}, nil, api.BootExplanation{}, ""},
}
