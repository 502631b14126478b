package netboot

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// LeaseState is where an address stands.
type LeaseState string

// The states of an address. Those in the past tense keep the address for its
// last client as long as nobody else needs it.
const (
	LeaseOffered  LeaseState = "offered"  // held for a client that has not asked for it yet; never stored
	LeaseBound    LeaseState = "bound"    // acknowledged
	LeaseReleased LeaseState = "released" // given back
	LeaseDeclined LeaseState = "declined" // somebody else uses it; not offered until it expires
)

// Lease ties an address to a client, and remembers what the client was, so
// that TFTP and HTTP requests from the address can be answered after a
// restart.
type Lease struct {
	IP          netip.Addr
	Key         string // Client.Key of the holder
	State       LeaseState
	Expires     time.Time // server clock
	MAC         fleet.MAC
	Hostname    string
	Kind        Kind   // of the last request
	Arch        Arch   // of the last request that named one
	HasArch     bool   //
	UUID        string //
	VendorClass string //
	Relay       netip.Addr
}

// client is the part of a Client that a lease remembers.
func (l Lease) client() Client {
	return Client{MAC: l.MAC, UUID: l.UUID, Arch: l.Arch, HasArch: l.HasArch, Kind: l.Kind,
		VendorClass: l.VendorClass, Hostname: l.Hostname, Relay: l.Relay, IP: l.IP}
}

// LeaseStore keeps leases over a restart. The Server calls AllLeases once, at
// start, and PutLease before it acknowledges an address; offers are not
// stored. At most one lease exists per address: PutLease replaces.
// Implementations must be safe for concurrent use; PutLease must be durable
// when it returns.
type LeaseStore interface {
	AllLeases(ctx context.Context) ([]Lease, error)
	PutLease(ctx context.Context, l Lease) error
}

// MemoryLeases is a LeaseStore that forgets at exit. The zero value is ready.
type MemoryLeases struct {
	mu sync.Mutex
	m  map[netip.Addr]Lease
}

// AllLeases returns the leases ordered by address.
func (s *MemoryLeases) AllLeases(context.Context) ([]Lease, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := make([]Lease, 0, len(s.m))
	for _, l := range s.m {
		out = append(out, l)
	}
	slices.SortFunc(out, func(a, b Lease) int { return a.IP.Compare(b.IP) })
	return out, nil
}

// PutLease stores l.
func (s *MemoryLeases) PutLease(_ context.Context, l Lease) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.m == nil {
		s.m = map[netip.Addr]Lease{}
	}
	s.m[l.IP] = l
	return nil
}
