// Package mem keeps fleet state in memory, for tests and simulations. It
// passes the same suite as store/sqlite and forgets everything at the end.
package mem

import (
	"context"
	"encoding/json"
	"fmt"
	"slices"
	"sort"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

// New returns an empty store.
func New() store.Store {
	return &memory{tx: tx{
		docs: map[string]map[string][]byte{}, ek: map[string]string{}, mac: map[fleet.MAC]string{},
	}}
}

type memory struct {
	mu sync.RWMutex
	tx tx
}

// tx is the state itself. undo holds what would take back the writes of the
// running transaction, in order.
type tx struct {
	docs   map[string]map[string][]byte // table -> key -> JSON: nobody shares memory with a caller
	ek     map[string]string            // EK hash -> node
	mac    map[fleet.MAC]string         // MAC -> node
	events []fleet.Event
	lastID int64 // of the newest event there ever was
	undo   []func()
}

func (m *memory) Close() error { return nil }

func (m *memory) Update(ctx context.Context, fn func(store.Tx) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	m.tx.undo = nil
	done := false
	defer func() {
		if !done { // an error, or a panic on its way up
			for i := len(m.tx.undo) - 1; i >= 0; i-- {
				m.tx.undo[i]()
			}
		}
	}()
	err := fn(&m.tx)
	done = err == nil
	return err
}

// Seen implements store.Store.
func (m *memory) Seen(ctx context.Context, node string, rep *fleet.Report, at time.Time) error {
	return m.Update(ctx, func(t store.Tx) error {
		n, err := t.Node(ctx, node)
		if err != nil || at.Before(n.LastSeen) {
			return err
		}
		n.Reported, n.LastSeen = rep, at
		return t.PutNode(ctx, n)
	})
}

// set writes (or, with nil, deletes) one document and remembers the old one.
func (t *tx) set(table, key string, doc []byte) {
	if t.docs[table] == nil {
		t.docs[table] = map[string][]byte{}
	}
	m := t.docs[table]
	old, had := m[key]
	t.undo = append(t.undo, func() {
		if had {
			m[key] = old
		} else {
			delete(m, key)
		}
	})
	if doc == nil {
		delete(m, key)
	} else {
		m[key] = doc
	}
}

func (t *tx) put(table, key string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s %q: %w", table, key, err)
	}
	t.set(table, key, b)
	return nil
}

func get[T any](t *tx, table, key string) (*T, error) {
	b, ok := t.docs[table][key]
	if !ok {
		return nil, store.NotFound(table, key)
	}
	v := new(T)
	return v, json.Unmarshal(b, v)
}

func list[T any](t *tx, table string) ([]*T, error) {
	keys := make([]string, 0, len(t.docs[table]))
	for k := range t.docs[table] {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	out := make([]*T, 0, len(keys))
	for _, k := range keys {
		v, err := get[T](t, table, k)
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

// index points the MACs and TPM of new to it, and those of old nowhere.
func (t *tx) index(old, new *fleet.Node) error {
	if new != nil {
		if o := t.ek[new.EKHash]; new.EKHash != "" && o != "" && o != new.Name {
			return store.Conflict("TPM", new.EKHash, o)
		}
		for _, m := range new.MACs {
			if o := t.mac[m]; o != "" && o != new.Name {
				return store.Conflict("MAC", string(m), o)
			}
		}
	}
	if old != nil {
		point(t, t.ek, old.EKHash, "")
		for _, m := range old.MACs {
			point(t, t.mac, m, "")
		}
	}
	if new != nil {
		if new.EKHash != "" {
			point(t, t.ek, new.EKHash, new.Name)
		}
		for _, m := range new.MACs {
			point(t, t.mac, m, new.Name)
		}
	}
	return nil
}

func point[K comparable](t *tx, m map[K]string, k K, to string) {
	old := m[k]
	t.undo = append(t.undo, func() { m[k] = old })
	m[k] = to
}

func (t *tx) CreateNode(_ context.Context, n *fleet.Node) error {
	if _, ok := t.docs["node"][n.Name]; ok {
		return store.Taken("node", n.Name)
	}
	if err := t.index(nil, n); err != nil {
		return err
	}
	return t.put("node", n.Name, n)
}

func (t *tx) PutNode(ctx context.Context, n *fleet.Node) error {
	old, err := t.Node(ctx, n.Name)
	if err != nil {
		return err
	}
	if err := t.index(old, n); err != nil {
		return err
	}
	return t.put("node", n.Name, n)
}

func (t *tx) DeleteNode(ctx context.Context, name string) error {
	old, err := t.Node(ctx, name)
	if err != nil {
		return err
	}
	if err := t.index(old, nil); err != nil {
		return err
	}
	t.set("node", name, nil)
	t.set("enrolment", name, nil)
	tickets, err := list[store.Ticket](t, "ticket")
	if err != nil {
		return err
	}
	for _, k := range tickets {
		if k.Node == name {
			t.set("ticket", k.Kind+" "+k.Key, nil)
		}
	}
	records, err := list[store.Record](t, "record")
	for _, r := range records {
		if r.Node == name {
			t.set("record", r.Kind+"\x00"+r.Key, nil)
		}
	}
	return err
}

func (t *tx) PutPool(_ context.Context, p *fleet.Pool) error   { return t.put("pool", p.Name, p) }
func (t *tx) PutImage(_ context.Context, i *fleet.Image) error { return t.put("image", i.Digest, i) }

func (t *tx) DeleteImage(_ context.Context, digest string) error {
	if _, ok := t.docs["image"][digest]; !ok {
		return store.NotFound("image", digest)
	}
	t.set("image", digest, nil)
	return nil
}

func (t *tx) CreateRollout(ctx context.Context, r *fleet.Rollout) error {
	r.ID = "r" + strconv.Itoa(len(t.docs["rollout"])+1)
	return t.put("rollout", r.ID, r)
}

func (t *tx) PutRollout(ctx context.Context, r *fleet.Rollout) error {
	if _, err := t.Rollout(ctx, r.ID); err != nil {
		return err
	}
	return t.put("rollout", r.ID, r)
}

func (t *tx) AppendEvent(_ context.Context, e *fleet.Event) error {
	old, last := t.events, t.lastID
	t.undo = append(t.undo, func() { t.events, t.lastID = old, last })
	t.lastID++
	e.ID = t.lastID
	t.events = append(t.events, *e)
	return nil
}

func (t *tx) PruneEvents(_ context.Context, before time.Time, keep, most int) (int64, error) {
	old := t.events
	t.undo = append(t.undo, func() { t.events = old })
	oldest, rest := old[:min(most, len(old))], old[min(most, len(old)):]
	left := append(slices.DeleteFunc(slices.Clone(oldest), func(e fleet.Event) bool { return e.At.Before(before) }), rest...)
	if drop := min(len(left)-keep, most-(len(old)-len(left))); keep > 0 && drop > 0 {
		left = left[drop:]
	}
	t.events = left
	return int64(len(old) - len(left)), nil
}

func (t *tx) PutEnrolment(_ context.Context, e *store.Enrolment) error {
	return t.put("enrolment", e.Node, e)
}

func (t *tx) DeleteEnrolment(_ context.Context, node string) error {
	t.set("enrolment", node, nil)
	return nil
}

func (t *tx) PutTicket(_ context.Context, k *store.Ticket) error {
	return t.put("ticket", k.Kind+" "+k.Key, k)
}

func (t *tx) TakeTicket(_ context.Context, kind, key, node string, now time.Time) (*store.Ticket, error) {
	all, err := list[store.Ticket](t, "ticket")
	if err != nil {
		return nil, err
	}
	for _, k := range all {
		if !now.Before(k.Expires) {
			t.set("ticket", k.Kind+" "+k.Key, nil)
		}
	}
	k, err := get[store.Ticket](t, "ticket", kind+" "+key)
	if err != nil || k.Node != node {
		return nil, store.NotFound(kind, "…")
	}
	t.set("ticket", kind+" "+key, nil)
	return k, nil
}

func (t *tx) PutLease(_ context.Context, l store.Lease) error {
	return t.put("lease", l.IP, l)
}

func (t *tx) Node(_ context.Context, name string) (*fleet.Node, error) {
	return get[fleet.Node](t, "node", name)
}

func (t *tx) NodeByEK(ctx context.Context, ek string) (*fleet.Node, error) {
	if n := t.ek[ek]; ek != "" && n != "" {
		return t.Node(ctx, n)
	}
	return nil, store.NotFound("node with TPM", ek)
}

func (t *tx) NodeByMAC(ctx context.Context, mac fleet.MAC) (*fleet.Node, error) {
	if n := t.mac[mac]; n != "" {
		return t.Node(ctx, n)
	}
	return nil, store.NotFound("node with MAC", string(mac))
}

func (t *tx) Nodes(context.Context) ([]*fleet.Node, error) { return list[fleet.Node](t, "node") }

func (t *tx) Pool(_ context.Context, name string) (*fleet.Pool, error) {
	return get[fleet.Pool](t, "pool", name)
}

func (t *tx) Pools(context.Context) ([]*fleet.Pool, error) { return list[fleet.Pool](t, "pool") }

func (t *tx) Image(_ context.Context, digest string) (*fleet.Image, error) {
	return get[fleet.Image](t, "image", digest)
}

func (t *tx) Images(context.Context) ([]*fleet.Image, error) {
	out, err := list[fleet.Image](t, "image")
	sort.SliceStable(out, func(i, j int) bool { return out[i].Published.After(out[j].Published) })
	return out, err
}

func (t *tx) Rollout(_ context.Context, id string) (*fleet.Rollout, error) {
	return get[fleet.Rollout](t, "rollout", id)
}

func (t *tx) Rollouts(context.Context) ([]*fleet.Rollout, error) {
	out, err := list[fleet.Rollout](t, "rollout")
	sort.SliceStable(out, func(i, j int) bool { return number(out[i].ID) < number(out[j].ID) })
	return out, err
}

func (t *tx) RolloutHeads(ctx context.Context) ([]*fleet.Rollout, error) {
	out, err := t.Rollouts(ctx)
	for _, r := range out {
		r.Nodes = nil
	}
	return out, err
}

func (t *tx) LiveRollouts(ctx context.Context) ([]*fleet.Rollout, error) {
	all, err := t.Rollouts(ctx)
	return slices.DeleteFunc(all, func(r *fleet.Rollout) bool { return !r.Live() }), err
}

func number(id string) int {
	n, _ := strconv.Atoi(strings.TrimPrefix(id, "r"))
	return n
}

func (t *tx) Events(_ context.Context, q store.EventQuery) ([]fleet.Event, error) {
	var out []fleet.Event
	for _, e := range t.events {
		if e.ID > q.After && (q.Node == "" || e.Node == q.Node) && strings.HasPrefix(e.Kind, q.Kind) {
			out = append(out, e)
		}
	}
	if n := q.Max(); len(out) > n {
		if q.Last {
			return out[len(out)-n:], nil
		}
		return out[:n], nil
	}
	return out, nil
}

func (t *tx) Enrolment(_ context.Context, node string) (*store.Enrolment, error) {
	return get[store.Enrolment](t, "enrolment", node)
}

func (t *tx) Leases(context.Context) ([]store.Lease, error) {
	ls, err := list[store.Lease](t, "lease")
	out := make([]store.Lease, 0, len(ls))
	for _, l := range ls {
		out = append(out, *l)
	}
	return out, err
}
