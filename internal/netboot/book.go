package netboot

import (
	"context"
	"net/netip"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/pause"
)

// book remembers which client was seen to take which address from another
// DHCP server. It is bounded, and forgets old entries first.
type book struct {
	mu sync.Mutex
	m  map[netip.Addr]bookEntry
}

type bookEntry struct {
	client Client
	at     time.Time
}

const (
	bookLimit = 1 << 16
	bookAge   = 24 * time.Hour
)

func (b *book) put(ip netip.Addr, c Client, now time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.m == nil {
		b.m = map[netip.Addr]bookEntry{}
	}
	if _, ok := b.m[ip]; !ok && len(b.m) >= bookLimit {
		b.evict()
	}
	c.IP = ip
	b.m[ip] = bookEntry{c, now}
}

// evict drops the oldest of a sample: the map's order is random, and a look
// at all of it for each packet would be a weapon.
func (b *book) evict() {
	const sample = 64
	var oldest netip.Addr
	n := 0
	for ip, e := range b.m {
		if n == 0 || e.at.Before(b.m[oldest].at) {
			oldest = ip
		}
		if n++; n == sample {
			break
		}
	}
	delete(b.m, oldest)
}

func (b *book) get(ip netip.Addr, now time.Time) (Client, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	e, ok := b.m[ip]
	if !ok || now.Sub(e.at) > bookAge {
		return Client{}, false
	}
	return e.client, true
}

// clientSoon is clientAt for firmware: beside another DHCP server it asks for
// its file within milliseconds of its last DHCP packet, which may still wait
// to be read. Its next try would come seconds later, or never.
func (e *engine) clientSoon(ctx context.Context, ip netip.Addr, via string) Client {
	const tries, wait = 20, 25 * time.Millisecond
	for range tries {
		if c := e.clientAt(ip, via); e.cfg.Mode != ModeProxy || c.Kind != KindOS {
			return c
		}
		if pause.For(ctx, wait) != nil {
			break
		}
	}
	return e.clientAt(ip, via)
}

// clientAt tells who sits at ip, for a TFTP or HTTP request.
func (e *engine) clientAt(ip netip.Addr, via string) Client {
	ip = ip.Unmap()
	c := Client{IP: ip, Kind: KindOS, Arch: archUnknown, Via: via}
	if l, ok := e.pool.at(ip); ok {
		c = l.client()
	} else if seen, ok := e.book.get(ip, e.now()); ok {
		c = seen
	}
	c.IP, c.Via = ip, via
	return c
}
