// Package store says how fleet state is kept: nodes, pools, images,
// rollouts, events, enrolments, single-use tickets and DHCP leases. It holds
// the interface and what is common to its implementations; store/sqlite
// keeps the state in a file, store/mem in memory, and both pass the suite in
// store/storetest.
//
// Everything the server must not forget is in here and nowhere else: a
// server that was killed at any moment goes on from the store alone.
package store

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Errors that callers tell apart with errors.Is.
var (
	ErrNotFound = errors.New("not found")
	ErrExists   = errors.New("exists already")     // the name is taken
	ErrConflict = errors.New("belongs to another") // a MAC or TPM of another node
)

// Reader reads fleet state. What it returns is the caller's own copy.
// Lists are sorted as said; an empty list is not an error.
type Reader interface {
	Node(ctx context.Context, name string) (*fleet.Node, error)
	NodeByEK(ctx context.Context, ekHash string) (*fleet.Node, error)
	NodeByMAC(ctx context.Context, mac fleet.MAC) (*fleet.Node, error)
	Nodes(ctx context.Context) ([]*fleet.Node, error) // by name

	Pool(ctx context.Context, name string) (*fleet.Pool, error)
	Pools(ctx context.Context) ([]*fleet.Pool, error) // by name

	Image(ctx context.Context, digest string) (*fleet.Image, error)
	Images(ctx context.Context) ([]*fleet.Image, error) // newest first

	Rollout(ctx context.Context, id string) (*fleet.Rollout, error)
	Rollouts(ctx context.Context) ([]*fleet.Rollout, error) // oldest first
	// RolloutHeads are Rollouts without their nodes, which are most of them.
	RolloutHeads(ctx context.Context) ([]*fleet.Rollout, error)
	// LiveRollouts are those that can still have steps (see
	// fleet.Rollout.Live), oldest first; old ones cost nothing.
	LiveRollouts(ctx context.Context) ([]*fleet.Rollout, error)

	Events(ctx context.Context, q EventQuery) ([]fleet.Event, error) // by rising ID

	Enrolment(ctx context.Context, node string) (*Enrolment, error)

	Leases(ctx context.Context) ([]Lease, error) // by IP as text

	Baselines(ctx context.Context) ([]*fleet.Baseline, error) // by ID

	Record(ctx context.Context, kind, key string) (*Record, error)
	// Records lists those of a kind with from <= key < to, by key; "" is no bound.
	Records(ctx context.Context, kind, from, to string) ([]Record, error)
}

// Tx reads and writes inside one transaction and sees its own writes.
type Tx interface {
	Reader

	// CreateNode fails with ErrExists if the name is taken, with ErrConflict
	// if one of its MACs or its TPM belongs to another node.
	CreateNode(ctx context.Context, n *fleet.Node) error
	// PutNode replaces a node that exists (ErrNotFound, ErrConflict).
	PutNode(ctx context.Context, n *fleet.Node) error
	// DeleteNode also forgets the node's enrolment, tickets and records.
	DeleteNode(ctx context.Context, name string) error

	PutPool(ctx context.Context, p *fleet.Pool) error
	PutImage(ctx context.Context, i *fleet.Image) error
	// DeleteImage forgets an image (ErrNotFound). Its blobs are not the store's.
	DeleteImage(ctx context.Context, digest string) error
	// CreateRollout gives r its ID ("r1", "r2", …).
	CreateRollout(ctx context.Context, r *fleet.Rollout) error
	// PutRollout replaces a rollout; moves that did not change cost nothing.
	PutRollout(ctx context.Context, r *fleet.Rollout) error

	// AppendEvent gives e its ID, above every earlier one.
	AppendEvent(ctx context.Context, e *fleet.Event) error

	// PruneEvents drops of the oldest events, by ID, those before a time (after
	// 1970), and all but the newest keep (0 keeps all), but not more than most
	// at once: others wait for the writer. It returns how many; fewer than
	// most mean that nothing is left to drop. IDs are not used again. An event
	// that is older than ones before it goes when it is among the oldest.
	PruneEvents(ctx context.Context, before time.Time, keep, most int) (int64, error)

	PutEnrolment(ctx context.Context, e *Enrolment) error
	DeleteEnrolment(ctx context.Context, node string) error

	// PutTicket keeps a ticket until it is taken or has expired.
	PutTicket(ctx context.Context, t *Ticket) error
	// TakeTicket removes a ticket and returns it: it can be taken once. It
	// is ErrNotFound if there is none of that kind and key, or it is another
	// node's (which then keeps it; "" is a node of its own), or its time is
	// over at now. The tickets
	// that have expired at now are dropped in passing.
	TakeTicket(ctx context.Context, kind, key, node string, now time.Time) (*Ticket, error)

	PutLease(ctx context.Context, l Lease) error

	PutBaseline(ctx context.Context, b *fleet.Baseline) error
	// DeleteBaseline forgets a baseline (ErrNotFound).
	DeleteBaseline(ctx context.Context, id string) error

	PutRecord(ctx context.Context, r Record) error
	// DeleteRecord forgets a record (ErrNotFound).
	DeleteRecord(ctx context.Context, kind, key string) error
}

// Store keeps fleet state. Safe for concurrent use.
type Store interface {
	Reader

	// Update runs fn in a transaction that is isolated from every other and
	// durable (it survives SIGKILL and power loss) when Update returns nil.
	// An error of fn undoes all it did and is returned as it is. fn must use
	// tx only, never the store, must not keep tx, and should be quick: one
	// runs at a time.
	Update(ctx context.Context, fn func(tx Tx) error) error

	// Seen keeps the newest report of a node of which the last one said
	// nothing else that matters, and when it came. Readers see it at once,
	// an older one than is known is ignored. It is on disk within a minute,
	// and at Close: a server that was killed learns it again from the next
	// heartbeat. The report is the store's from then on. ErrNotFound.
	Seen(ctx context.Context, node string, rep *fleet.Report, at time.Time) error

	// Close waits for running calls. The store is of no use after it.
	Close() error
}

// EventQuery selects events. The zero value selects the first 1000.
type EventQuery struct {
	After int64  // only events with a higher ID
	Node  string // "" for all
	Kind  string // prefix of the kind, "" for all
	Limit int    // 0 means 1000
	Last  bool   // the newest Limit events instead of the oldest
}

// Max returns the limit in force.
func (q EventQuery) Max() int {
	if q.Limit <= 0 {
		return 1000
	}
	return q.Limit
}

// Enrolment is what the server knows of a node's TPM once it has proven
// that its attestation key lives in it.
type Enrolment struct {
	Node     string    `json:"node"`
	EKHash   string    `json:"ekHash"`          // as fleet.Node.EKHash
	EKPublic []byte    `json:"ekPublic"`        // TPM2B_PUBLIC
	EKTrust  string    `json:"ekTrust"`         // "certificate: <issuer>" or "pinned"
	AKPublic []byte    `json:"akPublic"`        // TPM2B_PUBLIC
	AKName   string    `json:"akName"`          // hex
	Clock    *Clock    `json:"clock,omitempty"` // of the newest genuine quote; nil before the first
	At       time.Time `json:"at"`              // of the last activation
	// Serials are those of the client certificates that are taken, in hex,
	// the newest last. None: the node must activate its TPM again.
	Serials []string `json:"serials,omitempty"`
}

// Clone returns a copy that shares nothing that can be changed with e but the
// keys, which nobody changes. nil stays nil.
func (e *Enrolment) Clone() *Enrolment {
	if e == nil {
		return nil
	}
	c := *e
	c.Serials = slices.Clone(e.Serials)
	if e.Clock != nil {
		k := *e.Clock
		k.PCRs = maps.Clone(k.PCRs)
		c.Clock = &k
	}
	return &c
}

// Clock is what the newest genuine quote of a TPM said: what it counts
// (TPMS_CLOCK_INFO), which never goes back, and what its PCRs were, which do
// not change while it counts no reset.
type Clock struct {
	Reset   uint32 `json:"reset"`
	Restart uint32 `json:"restart"`
	Millis  uint64 `json:"millis"`

	BootID   string         `json:"bootID,omitempty"`   // kernel's, as the node said
	Firmware uint64         `json:"firmware,omitempty"` // vendor's version of the TPM firmware
	Bank     string         `json:"bank,omitempty"`
	PCRs     map[int]string `json:"pcrs,omitempty"`     // hex
	Log      string         `json:"log,omitempty"`      // SHA-256 of the event log, hex
	JudgedBy string         `json:"judgedBy,omitempty"` // hash of what the evidence was held against; "" if it was refused
}

// Ticket is a secret that can be used once by one node until it expires: an
// enrolment session, a nonce. Times are the server's.
type Ticket struct {
	Kind    string    `json:"kind"`
	Key     string    `json:"key"`
	Node    string    `json:"node"`
	Expires time.Time `json:"expires"`
	Payload []byte    `json:"payload,omitempty"`
}

// Lease is one DHCP lease, in the words of whoever leases.
type Lease struct {
	IP  string `json:"ip"`
	Doc []byte `json:"doc"`
}

// UpdateNode changes one node: compare and swap in one transaction. fn may
// return an error to leave it as it is. The changed node is returned.
func UpdateNode(ctx context.Context, s Store, name string, fn func(*fleet.Node) error) (*fleet.Node, error) {
	var out *fleet.Node
	err := s.Update(ctx, func(tx Tx) error {
		n, err := tx.Node(ctx, name)
		if err != nil {
			return err
		}
		if err := fn(n); err != nil {
			return err
		}
		out = n
		return tx.PutNode(ctx, n)
	})
	return out, err
}

// NotFound returns the error for a thing that is not there.
func NotFound(what, name string) error { return fmt.Errorf("%s %q %w", what, name, ErrNotFound) }

// Taken returns the error for a name that is in use.
func Taken(what, name string) error { return fmt.Errorf("%s %q %w", what, name, ErrExists) }

// Conflict returns the error for a MAC or TPM that another node has.
func Conflict(what, value, owner string) error {
	return fmt.Errorf("%s %s %w: node %q", what, value, ErrConflict, owner)
}
