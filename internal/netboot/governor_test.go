package netboot

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// paced is a server whose clients are 127.0.0.1 and up; those with an odd
// last byte are in rack "odd".
func paced(t *testing.T, l Limits, size int) *Server {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Mode, cfg.Ports, cfg.Listen, cfg.Limits = ModeOff, Ports{}, netip.MustParseAddr("127.0.0.1"), l
	ans := installer(body(size))
	s := &Server{Config: cfg, Policy: PolicyFunc(func(_ context.Context, c Client) (Answer, error) {
		a := ans
		if a.Rack = "even"; c.IP.As4()[3]%2 == 1 {
			a.Rack = "odd"
		}
		return a, nil
	})}
	start(t, s)
	for i := range 100 {
		ip := netip.AddrFrom4([4]byte{127, 0, 0, byte(i + 1)})
		s.engine.book.put(ip, Client{MAC: fleet.MAC(fmt.Sprintf("52:54:00:00:01:%02x", i)), Kind: KindUEFIHTTP, Arch: ArchX64HTTP, HasArch: true}, time.Now())
	}
	return s
}

// download loads the file from each address until all of them together have
// total bytes, and returns what each has.
func download(t *testing.T, s *Server, from []byte, total int64) []int64 {
	t.Helper()
	var all atomic.Int64
	got := make([]int64, len(from))
	var wg sync.WaitGroup
	for i, last := range from {
		wg.Go(func() {
			tr := &http.Transport{DialContext: fromAddr(last)}
			defer tr.CloseIdleConnections()
			resp, err := (&http.Client{Transport: tr}).Get(fmt.Sprintf("http://127.0.0.1:%d/%s", s.Addrs().HTTP, file))
			if err != nil {
				t.Error(err)
				return
			}
			defer resp.Body.Close()
			buf := make([]byte, 16<<10)
			for all.Load() < total {
				n, err := resp.Body.Read(buf)
				got[i] += int64(n)
				all.Add(int64(n))
				if err != nil {
					if !errors.Is(err, io.EOF) {
						t.Error(err)
					}
					return
				}
			}
		})
	}
	wg.Wait()
	return got
}

// All connections move at the same speed, however many there are.
func TestSharesAreEven(t *testing.T) {
	s := paced(t, Limits{TotalPace: 8 << 20}, 4<<20)
	var from []byte
	for i := range 40 {
		from = append(from, byte(i+1))
	}
	got := download(t, s, from, 16<<20)
	least, most := got[0], got[0]
	for _, n := range got {
		least, most = min(least, n), max(most, n)
	}
	if least*2 < most {
		t.Errorf("shares between %d and %d bytes", least, most)
	}
}

// A rack with many machines takes nothing from one with few.
func TestRacksAreApart(t *testing.T) {
	s := paced(t, Limits{RackPace: 3 << 20}, 16<<20)
	from := []byte{2, 4} // two in one rack, thirty in the other
	for i := range 30 {
		from = append(from, byte(2*i+1))
	}
	got := download(t, s, from, 8<<20)
	var odd int64
	for _, n := range got[2:] {
		odd += n
	}
	if even := got[0] + got[1]; even*2 < odd || odd*2 < even {
		t.Errorf("the rack of 2 machines got %d bytes, that of 30 got %d", even, odd)
	}
}

// A full rack waits; others do not wait for it, and a place that becomes free
// is taken at once. Limits may change while downloads wait.
func TestAdmission(t *testing.T) {
	g := newGovernor(Limits{Downloads: 3, RackDownloads: 1})
	admitted := func(rack string) chan bool {
		out := make(chan bool, 1)
		go func() { out <- g.admit(t.Context(), rack) }()
		return out
	}
	if !<-admitted("a") {
		t.Fatal("the first was not admitted")
	}
	second := admitted("a")
	if !<-admitted("b") {
		t.Fatal("another rack had to wait")
	}
	g.release("a")
	if !<-second {
		t.Fatal("the second of a rack was not admitted after the first ended")
	}
	third := admitted("a")
	g.set(Limits{Downloads: 3, RackDownloads: 2})
	if !<-third {
		t.Fatal("not admitted although the limit was lifted")
	}
	if <-admitted("c") { // three run; this one waits in vain
		t.Fatal("more downloads than allowed")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if g.admit(ctx, "c") {
		t.Fatal("admitted a client that is gone")
	}
	if len(g.queue) != 0 || g.running != 3 {
		t.Errorf("%d wait, %d run", len(g.queue), g.running)
	}
}

func TestLimitsValidate(t *testing.T) {
	for want, l := range map[string]Limits{
		"connection pace: 99999": {Pace: 99_999}, "rack pace": {RackPace: 1}, "total pace": {TotalPace: -1},
		"transfers: -1": {Transfers: -1}, "downloads per rack: -2": {RackDownloads: -2},
	} {
		if err := (&Server{}).SetLimits(l); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%+v: %v; want %q", l, err, want)
		}
	}
}

// fromAddr dials from 127.0.0.last.
func fromAddr(last byte) func(context.Context, string, string) (net.Conn, error) {
	d := &net.Dialer{LocalAddr: &net.TCPAddr{IP: net.IPv4(127, 0, 0, last)}}
	return d.DialContext
}
