package netboot

import (
	"context"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/pause"
)

// Limits say how much goes out at a time. They may be changed while the
// server runs, see Server.SetLimits. The zero value of a field is what its
// comment says.
type Limits struct {
	Transfers     int // TFTP transfers; 0: 2048
	Downloads     int // HTTP downloads; others wait a little and then get a 503; 0: 1024
	RackDownloads int // of those, to one rack; 0: no limit

	// Bytes per second; 0: no limit. A rack is what Answer.Rack says, else
	// the machines behind one relay, else those of one subnet.
	Pace      int // of one HTTP connection, for firmware that hangs on fast links
	RackPace  int // to one rack, TFTP and HTTP
	TotalPace int // to all
}

// minPace is the least that may be configured: below it, a download outlives
// every firmware's patience.
const minPace = 100_000

func (l Limits) withDefaults() Limits {
	if l.Transfers == 0 {
		l.Transfers = 2048
	}
	if l.Downloads == 0 {
		l.Downloads = 1024
	}
	return l
}

// Validate reports the first limit that cannot work.
func (l Limits) Validate() error {
	for _, x := range []struct {
		what string
		n    int
	}{{"transfers", l.Transfers}, {"downloads", l.Downloads}, {"downloads per rack", l.RackDownloads}} {
		if x.n < 0 {
			return fmt.Errorf("%s: %d: want 1 or more, or 0 for the default", x.what, x.n)
		}
	}
	for _, x := range []struct {
		what string
		n    int
	}{{"connection", l.Pace}, {"rack", l.RackPace}, {"total", l.TotalPace}} {
		if x.n != 0 && x.n < minPace {
			return fmt.Errorf("%s pace: %d bytes per second: want at least %d, or 0 for no limit", x.what, x.n, minPace)
		}
	}
	return nil
}

// governor admits downloads and paces what is sent, so that many machines at
// once get equal shares.
type governor struct {
	mu      sync.Mutex
	limits  Limits
	running int
	racks   map[string]*rackState
	total   pacer
	queue   []*waiter // in the order of their coming
}

type rackState struct {
	running int
	pace    pacer
}

type waiter struct {
	rack     string
	admitted chan struct{} // closed by who lets it in
}

// admitWait is how long a download waits for another one to end: less than
// firmware waits for an answer.
const admitWait = 4 * time.Second

// maxRacks bounds the memory of racks that nothing is sent to now.
const maxRacks = 4096

func newGovernor(l Limits) *governor {
	return &governor{limits: l.withDefaults(), racks: map[string]*rackState{}}
}

func (g *governor) set(l Limits) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limits = l.withDefaults()
	g.admitQueue()
}

func (g *governor) get() Limits {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.limits
}

func (g *governor) rack(name string) *rackState {
	r := g.racks[name]
	if r == nil {
		if len(g.racks) >= maxRacks {
			for n, x := range g.racks {
				if x.running == 0 {
					delete(g.racks, n)
				}
			}
		}
		r = &rackState{}
		g.racks[name] = r
	}
	return r
}

// admit waits until a download to rack may start; false: it may not. The
// caller calls release after its download.
func (g *governor) admit(ctx context.Context, rack string) bool {
	g.mu.Lock()
	w := &waiter{rack, make(chan struct{})}
	g.queue = append(g.queue, w)
	g.admitQueue()
	g.mu.Unlock()
	t := time.NewTimer(admitWait)
	defer t.Stop()
	select {
	case <-w.admitted:
		return true
	case <-t.C:
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for i, x := range g.queue {
		if x == w {
			g.queue = append(g.queue[:i], g.queue[i+1:]...)
			return false
		}
	}
	return true // in the last moment
}

// admitQueue lets in, first come first served, who may; a full rack does not
// hold up others.
func (g *governor) admitQueue() {
	kept := g.queue[:0]
	for _, w := range g.queue {
		r := g.rack(w.rack)
		if g.running >= g.limits.Downloads || g.limits.RackDownloads > 0 && r.running >= g.limits.RackDownloads {
			kept = append(kept, w)
			continue
		}
		g.running++
		r.running++
		close(w.admitted)
	}
	clear(g.queue[len(kept):])
	g.queue = kept
}

func (g *governor) release(rack string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.running--
	g.rack(rack).running--
	g.admitQueue()
}

// pacer is a queue at a counter that serves rate bytes a second: who comes
// gets the time of its turn. Each connection asks for one piece at a time, so
// all move at the same speed.
type pacer struct{ next time.Time }

func (p *pacer) reserve(now time.Time, n int64, rate int) time.Duration {
	if rate == 0 {
		return 0
	}
	if p.next.Before(now) {
		p.next = now
	}
	wait := p.next.Sub(now)
	p.next = p.next.Add(time.Duration(float64(n) / float64(rate) * float64(time.Second)))
	return wait
}

// piece is how many bytes to send at a time to rack: few where turns are
// taken.
func (g *governor) piece() int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	rate := g.limits.TotalPace
	if r := g.limits.RackPace; r != 0 && (rate == 0 || r < rate) {
		rate = r
	}
	if rate == 0 {
		return httpChunk
	}
	return int64(min(max(rate/100, 8<<10), 256<<10))
}

// pace waits until n bytes may be sent to rack.
func (g *governor) pace(ctx context.Context, rack string, n int64) error {
	g.mu.Lock()
	wait := g.rack(rack).pace.reserve(time.Now(), n, g.limits.RackPace)
	g.mu.Unlock()
	if err := pause.For(ctx, wait); err != nil {
		return err
	}
	g.mu.Lock()
	wait = g.total.reserve(time.Now(), n, g.limits.TotalPace)
	g.mu.Unlock()
	return pause.For(ctx, wait)
}

// rackOf is where a client sits, for its share.
func (e *engine) rackOf(c Client, ans Answer) string {
	switch {
	case ans.Rack != "":
		return "rack " + ans.Rack
	case c.Relay.IsValid():
		return "relay " + c.Relay.String()
	}
	if s := e.subnetOf(c.IP); s != nil {
		return s.Prefix.String()
	}
	return netip.PrefixFrom(c.IP, 24).Masked().String()
}
