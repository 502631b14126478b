package server_test

import (
	"context"
	"errors"
	"net/http"
	"net/netip"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/netboot"
	"github.com/turnout-project/turnout/internal/server"
)

// explainer tells what it was asked.
type explainer struct{ asked netboot.Client }

func (e *explainer) Explain(_ context.Context, c netboot.Client) (netboot.Explanation, error) {
	e.asked = c
	return netboot.Explanation{Answer: netboot.Answer{Kind: netboot.AnswerInstaller, Node: "n1", Size: 7}, Why: "unknown machine", Download: "tftp://10.77.0.1/b/1/installer.efi",
		Profile: "direct", Reply: map[string]string{"option 60": "PXEClient"}}, nil
}

func TestBootExplain(t *testing.T) {
	e := &explainer{}
	l := newLab(t, func(o *server.Options) { o.Boot = e })
	x, err := l.op.ExplainBoot(ctx, api.BootQuery{MAC: "52-54-00-12-34-56", Arch: "arm64", Kind: "uefi-http", Relay: "10.9.0.1"})
	l.must(err)
	if x.Answer != "installer" || x.Node != "n1" || x.Why != "unknown machine" || x.Size != 7 || x.Profile != "direct" || x.Reply["option 60"] != "PXEClient" {
		t.Errorf("explanation %+v", x)
	}
	if c := e.asked; c.MAC != "52:54:00:12:34:56" || c.Arch != netboot.ArchARM64 || c.Kind != netboot.KindUEFIHTTP || c.Relay != netip.MustParseAddr("10.9.0.1") {
		t.Errorf("asked about %+v", c)
	}
	for name, q := range map[string]api.BootQuery{
		"no address": {}, "a broken address": {MAC: "hello"}, "an unknown processor": {MAC: "52:54:00:12:34:56", Arch: "sparc"},
		"an unknown kind": {MAC: "52:54:00:12:34:56", Kind: "toaster"}, "a broken relay": {MAC: "52:54:00:12:34:56", Relay: "there"},
	} {
		_, err := l.op.ExplainBoot(ctx, q)
		wantStatus(t, name, err, http.StatusBadRequest)
	}
	if _, err := l.op.ExplainBoot(ctx, api.BootQuery{MAC: "52:54:00:12:34:56", Arch: "bios"}); err != nil || e.asked.Kind != netboot.KindBIOS {
		t.Errorf("a BIOS: %v, asked as %s", err, e.asked.Kind)
	}
}

func TestBootTrace(t *testing.T) {
	l := newLab(t)
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	// Packets come until the reader has seen enough: when it begins to be told is not known.
	go func() {
		for ctx.Err() == nil {
			l.srv.TraceBoot(netboot.Trace{At: time.Now(), Interface: "rack0", Client: netboot.Client{MAC: "52:54:00:00:00:02"}, Type: "DISCOVER", Why: "not this one"})
			l.srv.TraceBoot(netboot.Trace{At: time.Now(), Interface: "rack0", Client: netboot.Client{MAC: "52:54:00:00:00:01", Kind: netboot.KindUEFIPXE},
				Type: "DISCOVER", Answer: "OFFER", IP: netip.MustParseAddr("10.77.0.9"), Why: "the installer", Request: []byte{1, 2}, Reply: []byte{3}, From: netip.MustParseAddrPort("0.0.0.0:68")})
			time.Sleep(time.Millisecond)
		}
	}()
	enough := errors.New("enough")
	var seen []api.BootTrace
	err := l.op.TraceBoot(ctx, "52:54:00:00:00:01", func(t api.BootTrace) error {
		if seen = append(seen, t); len(seen) == 3 {
			return enough
		}
		return nil
	})
	if !errors.Is(err, enough) {
		t.Fatal(err)
	}
	for _, s := range seen {
		if s.Client != "52:54:00:00:00:01" || s.Answer != "OFFER" || s.IP.String() != "10.77.0.9" || len(s.Request) != 2 || len(s.Reply) != 1 || s.From.Port() != 68 || s.Why != "the installer" {
			t.Errorf("trace %+v", s)
		}
	}
	wantStatus(t, "a broken address", l.op.TraceBoot(ctx, "hello", nil), http.StatusBadRequest)
	wantStatus(t, "a viewer", l.view.TraceBoot(ctx, "", nil), http.StatusForbidden)
}
