package netboot

import (
	"encoding/binary"
	"errors"
	"hash/fnv"
	"net/netip"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// errExhausted means that every address of a subnet is held by somebody.
var errExhausted = errors.New("no free address in the pool")

// pool decides who holds which address. It is pure bookkeeping under one
// lock: no I/O, and the caller brings the time.
type pool struct {
	mu    sync.Mutex
	byIP  map[netip.Addr]*Lease
	byKey map[holder]netip.Addr
}

// holder is a client in a subnet: a client that moves keeps its old address
// there and gets a new one here.
type holder struct {
	subnet netip.Prefix
	key    string
}

func newPool(subnets []Subnet, leases []Lease) *pool {
	p := &pool{byIP: map[netip.Addr]*Lease{}, byKey: map[holder]netip.Addr{}}
	for _, l := range leases {
		for i := range subnets {
			if subnets[i].Prefix.Contains(l.IP) {
				p.put(&subnets[i], l)
			}
		}
	}
	return p
}

// put stores l and moves its holder there.
func (p *pool) put(s *Subnet, l Lease) {
	if old, ok := p.byIP[l.IP]; ok && old.Key != l.Key {
		if h := (holder{s.Prefix, old.Key}); p.byKey[h] == l.IP {
			delete(p.byKey, h)
		}
	}
	p.byIP[l.IP] = &l
	if l.State != LeaseDeclined {
		p.byKey[holder{s.Prefix, l.Key}] = l.IP
	}
}

// reservation returns the address tied to mac in s.
func (s *Subnet) reservation(mac fleet.MAC) (Reservation, bool) {
	for _, r := range s.Reservations {
		if r.MAC == mac && mac != "" {
			return r, true
		}
	}
	return Reservation{}, false
}

// reservedFor reports the MAC that ip is reserved for.
func (s *Subnet) reservedFor(ip netip.Addr) (fleet.MAC, bool) {
	for _, r := range s.Reservations {
		if r.IP == ip {
			return r.MAC, true
		}
	}
	return "", false
}

func (s *Subnet) dynamic(ip netip.Addr) bool {
	for _, r := range s.Pools {
		if !ip.Less(r.First) && !r.Last.Less(ip) {
			return true
		}
	}
	return false
}

// offer finds the address for c: its reservation, what it holds or held
// last, what it asks for, else a free one. The address is held for it until
// hold has passed.
func (p *pool) offer(s *Subnet, c Client, want netip.Addr, now time.Time, hold time.Duration) (Lease, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	ip, err := p.choose(s, c, want, now)
	if err != nil {
		return Lease{}, err
	}
	l := p.leaseFor(ip, c)
	if l.State != LeaseBound || l.Expires.Before(now) {
		l.State, l.Expires = LeaseOffered, now.Add(hold)
	}
	p.put(s, l)
	return l, nil
}

func (p *pool) choose(s *Subnet, c Client, want netip.Addr, now time.Time) (netip.Addr, error) {
	key := c.Key()
	if r, ok := s.reservation(c.MAC); ok && p.open(s, r.IP, key, now) {
		return r.IP, nil
	}
	if ip, ok := p.byKey[holder{s.Prefix, key}]; ok && p.mayHave(s, c, ip, now) {
		return ip, nil
	}
	if want.IsValid() && p.mayHave(s, c, want, now) {
		return want, nil
	}
	return p.free(s, c, now)
}

// mayHave reports whether c could be given ip dynamically.
func (p *pool) mayHave(s *Subnet, c Client, ip netip.Addr, now time.Time) bool {
	if mac, ok := s.reservedFor(ip); ok {
		return mac == c.MAC && p.open(s, ip, c.Key(), now)
	}
	return s.dynamic(ip) && p.open(s, ip, c.Key(), now)
}

// open reports that nobody but key holds ip.
func (p *pool) open(s *Subnet, ip netip.Addr, key string, now time.Time) bool {
	if !s.usable(ip) || ip == s.Router || ip == s.ServerIP {
		return false
	}
	l, ok := p.byIP[ip]
	if !ok {
		return true
	}
	if l.State == LeaseDeclined {
		return l.Expires.Before(now)
	}
	return l.Key == key || l.State == LeaseReleased || l.Expires.Before(now)
}

// free searches from a place that depends on the client, so that a client
// whose lease was forgotten tends to get its old address back. Addresses that
// nobody ever had come first, then the one that expired longest ago.
func (p *pool) free(s *Subnet, c Client, now time.Time) (netip.Addr, error) {
	size := uint64(0)
	for _, r := range s.Pools {
		size += r.size()
	}
	if size == 0 {
		return netip.Addr{}, errExhausted
	}
	h := fnv.New64a()
	h.Write([]byte(c.Key()))
	start := h.Sum64() % size
	var oldest netip.Addr
	var oldestExpiry time.Time
	for i := range size {
		ip := s.nth((start + i) % size)
		if !p.mayHave(s, c, ip, now) {
			continue
		}
		l, used := p.byIP[ip]
		if !used {
			return ip, nil
		}
		if !oldest.IsValid() || l.Expires.Before(oldestExpiry) {
			oldest, oldestExpiry = ip, l.Expires
		}
	}
	if !oldest.IsValid() {
		return netip.Addr{}, errExhausted
	}
	return oldest, nil
}

// nth returns the n-th address of the subnet's pools.
func (s *Subnet) nth(n uint64) netip.Addr {
	for _, r := range s.Pools {
		if n < r.size() {
			var b [4]byte
			binary.BigEndian.PutUint32(b[:], num(r.First)+uint32(n))
			return netip.AddrFrom4(b)
		}
		n -= r.size()
	}
	return netip.Addr{}
}

func (r Range) size() uint64 { return uint64(num(r.Last)) - uint64(num(r.First)) + 1 }

func num(a netip.Addr) uint32 {
	b := a.As4()
	return binary.BigEndian.Uint32(b[:])
}

// leaseFor returns the lease of c on ip, with what c now says of itself.
func (p *pool) leaseFor(ip netip.Addr, c Client) Lease {
	l := Lease{IP: ip, Key: c.Key()}
	if old, ok := p.byIP[ip]; ok && old.Key == l.Key && old.State != LeaseDeclined {
		l = *old
	}
	l.MAC, l.Kind, l.VendorClass, l.Relay = c.MAC, c.Kind, c.VendorClass, c.Relay
	if c.HasArch {
		l.Arch, l.HasArch = c.Arch, true
	}
	if c.UUID != "" {
		l.UUID = c.UUID
	}
	if c.Hostname != "" {
		l.Hostname = c.Hostname
	}
	return l
}

// claim is what a REQUEST does: it succeeds if nobody else holds ip.
func (p *pool) claim(s *Subnet, c Client, ip netip.Addr, now time.Time, lease time.Duration) (Lease, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.mayHave(s, c, ip, now) {
		return Lease{}, false
	}
	if r, ok := s.reservation(c.MAC); ok && r.IP != ip && p.open(s, r.IP, c.Key(), now) {
		return Lease{}, false // reserved since it got this one: make it start over
	}
	l := p.leaseFor(ip, c)
	l.State, l.Expires = LeaseBound, now.Add(lease)
	p.put(s, l)
	return l, true
}

// end releases or declines ip, if the client holds it.
func (p *pool) end(s *Subnet, key string, ip netip.Addr, state LeaseState, expires time.Time) (Lease, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, ok := p.byIP[ip]
	if !ok || l.Key != key || l.State == LeaseDeclined {
		return Lease{}, false
	}
	n := *l
	n.State, n.Expires = state, expires
	if state == LeaseDeclined {
		delete(p.byKey, holder{s.Prefix, key})
	}
	p.put(s, n)
	return n, true
}

// withdraw forgets an offer that the client did not take.
func (p *pool) withdraw(s *Subnet, key string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	h := holder{s.Prefix, key}
	if l, ok := p.byIP[p.byKey[h]]; ok && l.State == LeaseOffered && l.Key == key {
		delete(p.byIP, l.IP)
		delete(p.byKey, h)
	}
}

// at returns the lease on ip, whatever its state but declined.
func (p *pool) at(ip netip.Addr) (Lease, bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, ok := p.byIP[ip]
	if !ok || l.State == LeaseDeclined {
		return Lease{}, false
	}
	return *l, true
}

// all returns a copy of every lease and offer.
func (p *pool) all() []Lease {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]Lease, 0, len(p.byIP))
	for _, l := range p.byIP {
		out = append(out, *l)
	}
	return out
}
