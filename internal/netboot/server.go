package netboot

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"strconv"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Server is the boot side of pxeserver: DHCP, TFTP and HTTP. Set the fields,
// then call Serve once.
type Server struct {
	Config Config
	Policy Policy
	Leases LeaseStore   // nil: leases are forgotten at exit
	Log    *slog.Logger // nil: quiet
	// Events is told what operators should see, in words: "dhcp.offer",
	// "dhcp.ack", "dhcp.ignored", "dhcp.refused", "dhcp.unanswered", "dhcp.elsewhere",
	// "dhcp.exhausted", "dhcp.decline", "dhcp.conflict", "dhcp.uuid", "tftp.sent",
	// "tftp.failed", "http.sent", "boot.loop". It is called from many
	// goroutines and should not block for long. mac is "" for clients without
	// one. nil: nobody listens.
	Events func(kind string, mac fleet.MAC, message string)
	// Trace is told every DHCP packet and what became of it; it must not
	// block. nil: nobody looks, and nothing is collected.
	Trace func(Trace)
	Now   func() time.Time // nil: time.Now; lease expiry only
	TLS   *tls.Config      // for HTTPS boot; nil: there is none

	once    sync.Once
	ready   chan struct{}
	addrs   Addrs
	log     *slog.Logger
	stats   Stats
	engine  *engine
	ifaces  interfaces
	frames  *frames
	buffers sync.Pool
}

// Addrs are the ports that were opened, of use when Ports asked for any free
// one. 0: not open.
type Addrs struct{ DHCP, Proxy, TFTP, HTTP, HTTPS int }

func (s *Server) init() {
	s.once.Do(func() {
		s.ready = make(chan struct{})
		s.Config = s.Config.withDefaults()
		s.log = s.Log
		if s.log == nil {
			s.log = slog.New(slog.DiscardHandler)
		}
		if s.Leases == nil {
			s.Leases = &MemoryLeases{}
		}
		if s.Now == nil {
			s.Now = time.Now
		}
		s.buffers.New = func() any { b := make([]byte, 4096); return &b }
		s.engine = &engine{
			cfg: s.Config, policy: s.Policy, store: s.Leases, pool: newPool(nil, nil), book: &book{}, watch: &watch{},
			stats: &s.stats, log: s.log, events: s.Events, now: s.Now, trace: s.Trace, governor: newGovernor(s.Config.Limits),
		}
	})
}

// Ready is closed when every socket is open and leases are loaded.
func (s *Server) Ready() <-chan struct{} {
	s.init()
	return s.ready
}

// Addrs returns the open ports; call it after Ready.
func (s *Server) Addrs() Addrs { return s.addrs }

// Stats returns the counters, which go on counting.
func (s *Server) Stats() *Stats { return &s.stats }

// LeaseTable returns every lease and offer known now, in no order.
func (s *Server) LeaseTable() []Lease {
	s.init()
	return s.engine.pool.all()
}

// ClientAt returns what is known of the machine that has address ip.
func (s *Server) ClientAt(ip netip.Addr) (Client, bool) {
	s.init()
	c := s.engine.clientAt(ip, "")
	return c, c.Key() != ""
}

// sockets are everything Serve opened.
type sockets struct {
	dhcp, boot []*packetConn
	tftp       *packetConn
	http       net.Listener
	https      net.Listener
}

func (k *sockets) close() {
	for _, c := range append(append([]*packetConn{k.tftp}, k.dhcp...), k.boot...) {
		if c != nil {
			c.udp.Close()
		}
	}
	for _, l := range []net.Listener{k.http, k.https} {
		if l != nil {
			l.Close()
		}
	}
}

// Serve opens the sockets and answers until ctx ends or a socket fails. It
// returns nil after ctx ended. Transfers that still run are broken off.
func (s *Server) Serve(ctx context.Context) error {
	s.init()
	if s.Policy == nil {
		return errors.New("netboot: no policy")
	}
	if err := s.Config.Validate(); err != nil {
		return err
	}
	leases, err := s.Leases.AllLeases(ctx)
	if err != nil {
		return fmt.Errorf("loading leases: %w", err)
	}
	s.engine.pool = newPool(s.Config.Subnets, leases)
	k, err := s.open(ctx)
	if err != nil {
		k.close()
		return err
	}
	s.log.Info("boot services ready", "mode", s.Config.Mode, "dhcp", s.addrs.DHCP, "proxy", s.addrs.Proxy,
		"tftp", s.addrs.TFTP, "http", s.addrs.HTTP, "https", s.addrs.HTTPS, "leases", len(leases))
	close(s.ready)
	return s.run(ctx, k)
}

func (s *Server) open(ctx context.Context) (*sockets, error) {
	k := &sockets{}
	p := s.Config.Ports
	var err error
	if s.Config.Mode != ModeOff {
		if k.dhcp, s.addrs.DHCP, err = s.openDHCP(ctx, "DHCP", p.DHCP); err != nil {
			return k, err
		}
		if k.boot, s.addrs.Proxy, err = s.openDHCP(ctx, "ProxyDHCP", p.Proxy); err != nil {
			return k, err
		}
		if s.frames, err = newFrames(); err != nil {
			s.log.Warn("dhcp: no raw socket, replies to clients without address are broadcast", "error", err)
		}
		if s.engine.arp, err = newARPProber(); err != nil {
			s.log.Warn("dhcp: addresses are leased without asking whether somebody uses them", "error", err)
		}
	}
	if p.TFTP >= 0 {
		if k.tftp, err = listenUDP(ctx, "TFTP", "", s.Config.Listen, p.TFTP); err != nil {
			return k, err
		}
		s.addrs.TFTP = k.tftp.port()
	}
	if p.HTTP >= 0 {
		if k.http, s.addrs.HTTP, err = s.listenTCP(ctx, "HTTP", p.HTTP); err != nil {
			return k, err
		}
	}
	if p.HTTPS >= 0 && s.TLS != nil {
		if k.https, s.addrs.HTTPS, err = s.listenTCP(ctx, "HTTPS", p.HTTPS); err != nil {
			return k, err
		}
	}
	if s.Config.OfferHTTPS && k.https == nil {
		return k, errors.New("https URLs are to be offered, and there is no HTTPS service: give it a port and a certificate")
	}
	s.engine.httpPort, s.engine.httpsPort, s.engine.hasBootServer = uint16(s.addrs.HTTP), uint16(s.addrs.HTTPS), len(k.boot) > 0
	return k, nil
}

// SetLimits changes what may go out at a time, for what runs as well.
func (s *Server) SetLimits(l Limits) error {
	if err := l.Validate(); err != nil {
		return err
	}
	s.init()
	s.engine.governor.set(l)
	return nil
}

func (s *Server) listenTCP(ctx context.Context, what string, port int) (net.Listener, int, error) {
	host := ""
	if s.Config.Listen.IsValid() {
		host = s.Config.Listen.String()
	}
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp4", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, 0, fmt.Errorf("listening for %s boot on TCP port %d: %w%s", what, port, err, portHint(err, port))
	}
	return l, l.Addr().(*net.TCPAddr).Port, nil
}

// openDHCP opens one socket for each configured interface, or one for all.
func (s *Server) openDHCP(ctx context.Context, what string, port int) ([]*packetConn, int, error) {
	if port < 0 {
		return nil, 0, nil
	}
	names := s.Config.Interfaces
	if len(names) == 0 {
		names = []string{""}
	}
	var conns []*packetConn
	for _, name := range names {
		c, err := listenUDP(ctx, what, name, netip.Addr{}, port)
		if err != nil {
			return conns, 0, fmt.Errorf("interface %q: %w", name, err)
		}
		conns = append(conns, c)
	}
	return conns, conns[0].port(), nil
}

func (s *Server) run(ctx context.Context, k *sockets) error {
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		<-ctx.Done()
		k.close()
		return nil
	})
	g.Go(func() error { return s.runDHCP(ctx, k) })
	if s.engine.arp != nil {
		g.Go(func() error {
			s.engine.arp.listen(ctx, s.engine.conflict)
			return nil
		})
	}
	if k.tftp != nil {
		t := &tftpServer{engine: s.engine, conn: k.tftp, pumps: &pumps{listen: s.Config.Listen, stats: &s.stats}, active: map[netip.AddrPort]bool{}, perIP: map[netip.Addr]int{}}
		g.Go(func() error { return t.serve(ctx) })
	}
	if k.http != nil {
		g.Go(func() error { return s.runHTTP(ctx, k.http, nil) })
	}
	if k.https != nil {
		g.Go(func() error { return s.runHTTP(ctx, k.https, s.TLS) })
	}
	err := g.Wait()
	if s.frames != nil {
		s.frames.close()
	}
	return err
}

// runDHCP reads all DHCP sockets into one bounded queue.
func (s *Server) runDHCP(ctx context.Context, k *sockets) error {
	jobs := make(chan job, 4096)
	var workers sync.WaitGroup
	for range s.Config.Workers {
		workers.Go(func() { s.dhcpWorker(ctx, jobs) })
	}
	g, gctx := errgroup.WithContext(ctx)
	for _, c := range k.dhcp {
		g.Go(func() error { return s.dhcpLoop(gctx, c, false, jobs) })
	}
	for _, c := range k.boot {
		g.Go(func() error { return s.dhcpLoop(gctx, c, true, jobs) })
	}
	err := g.Wait()
	close(jobs)
	workers.Wait()
	return err
}

func (s *Server) runHTTP(ctx context.Context, l net.Listener, secure *tls.Config) error {
	limited := &limitListener{Listener: l, ctx: ctx, slots: make(chan struct{}, 4*max(s.Config.Downloads, 1024))}
	var accept net.Listener = limited
	if secure != nil {
		secure = secure.Clone()
		secure.NextProtos = []string{"http/1.1"}
		accept = tls.NewListener(limited, secure)
	}
	hs := &http.Server{
		Handler:           s.HTTPHandler(),
		ReadHeaderTimeout: httpHeaderTime,
		IdleTimeout:       httpIdleTime,
		MaxHeaderBytes:    64 << 10,
		ConnContext:       func(ctx context.Context, c net.Conn) context.Context { return context.WithValue(ctx, connKey{}, c) },
		ConnState:         limited.state,
		BaseContext:       func(net.Listener) context.Context { return ctx },
		ErrorLog:          slog.NewLogLogger(s.log.Handler(), slog.LevelDebug),
	}
	stop := context.AfterFunc(ctx, func() { hs.Close() })
	defer stop()
	if err := hs.Serve(accept); err != nil && ctx.Err() == nil {
		return fmt.Errorf("serving HTTP boot: %w", err)
	}
	return nil
}

// limitListener bounds the number of open connections. It hands out the bare
// TCP connections, so that the kernel can send files by itself.
type limitListener struct {
	net.Listener
	ctx   context.Context
	slots chan struct{}
}

// Accept waits until a connection may be taken.
func (l *limitListener) Accept() (net.Conn, error) {
	select {
	case l.slots <- struct{}{}:
	case <-l.ctx.Done():
		return nil, net.ErrClosed
	}
	c, err := l.Listener.Accept()
	if err != nil {
		<-l.slots
	}
	return c, err
}

// state gives the slot of a closed connection back.
func (l *limitListener) state(_ net.Conn, s http.ConnState) {
	if s == http.StateClosed || s == http.StateHijacked {
		<-l.slots
	}
}
