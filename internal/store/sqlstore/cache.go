package sqlstore

import (
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

// cache holds what is asked for all the time in decoded form: all nodes and
// the live rollouts, as of the last commit and, for reports, of the last
// heartbeat. Unless the database is shared (see shared.go), nothing goes by it.
// What it points to is never changed, only replaced.
type cache struct {
	mu       sync.RWMutex
	rev      int64 // of what is in it; only for a shared database
	nodes    map[string]*fleet.Node
	rollouts map[string]*fleet.Rollout // live ones
	unsaved  map[string]bool           // nodes whose LastSeen is not on disk

	enrolments enrolments
}

// changes is what a transaction has written so far, on top of what the
// others of its batch have (below), on top of the cache. A nil node was
// deleted, a nil rollout is not live.
type changes struct {
	nodes    map[string]*fleet.Node
	rollouts map[string]*fleet.Rollout
	enrolled map[string]bool // nodes whose enrolment was written or deleted
	below    *changes
	rev      int64 // that the transaction makes; only for a shared database
}

func newCache() *cache {
	return &cache{rev: -1, nodes: map[string]*fleet.Node{}, rollouts: map[string]*fleet.Rollout{}, unsaved: map[string]bool{}}
}

func newChanges(below *changes) *changes {
	return &changes{nodes: map[string]*fleet.Node{}, rollouts: map[string]*fleet.Rollout{}, enrolled: map[string]bool{}, below: below}
}

// add takes over what a transaction above has written.
func (d *changes) add(above *changes) {
	maps.Copy(d.nodes, above.nodes)
	maps.Copy(d.rollouts, above.rollouts)
	maps.Copy(d.enrolled, above.enrolled)
}

// load fills the empty cache from the database.
func (c *cache) load(ctx context.Context, t tx) error {
	err := t.each(ctx, "SELECT doc, coalesce(at, 0) FROM node LEFT JOIN seen ON node = name", nil, func(r *sql.Rows) error {
		n, err := scanNode(r)
		if err == nil {
			c.nodes[n.Name] = n
		}
		return err
	})
	if err != nil {
		return fmt.Errorf("reading nodes: %w", err)
	}
	rs, err := t.Rollouts(ctx)
	for _, r := range rs {
		if r.Live() {
			c.rollouts[r.ID] = r
		}
	}
	return err
}

// scanNode reads a node's document and when it was seen.
func scanNode(r *sql.Rows) (*fleet.Node, error) {
	var doc sql.RawBytes
	var at int64
	n := &fleet.Node{}
	if err := r.Scan(&doc, &at); err != nil {
		return nil, err
	}
	if err := json.Unmarshal(doc, n); err != nil {
		return nil, err
	}
	if seen := time.Unix(0, at).UTC(); at != 0 && seen.After(n.LastSeen) {
		n.LastSeen = seen
	}
	return n, nil
}

// commit takes over what a batch has written.
func (c *cache) commit(d *changes) {
	c.enrolments.forget(maps.Keys(d.enrolled))
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(d.nodes) == 0 && len(d.rollouts) == 0 || d.rev > 0 && c.rev >= d.rev {
		return // nothing, or it was loaded again already, perhaps with what came after
	}
	c.apply(d.nodes, d.rollouts)
	if d.rev > 0 {
		c.rev = d.rev
	}
}

// apply puts newer nodes and rollouts in the place of older ones. A
// heartbeat that came in meanwhile is newer than what a writer knew.
func (c *cache) apply(nodes map[string]*fleet.Node, rollouts map[string]*fleet.Rollout) {
	for name, n := range nodes {
		old := c.nodes[name]
		switch {
		case n == nil:
			delete(c.nodes, name)
			delete(c.unsaved, name)
			continue
		case old != nil && old.LastSeen.After(n.LastSeen) && n.Reported != nil:
			m := *n
			m.Reported, m.LastSeen = old.Reported, old.LastSeen
			n = &m
		}
		c.nodes[name] = n
	}
	for id, r := range rollouts {
		if r == nil {
			delete(c.rollouts, id)
		} else {
			c.rollouts[id] = r
		}
	}
}

// node returns a node that must not be changed, or nil.
func (t tx) node(name string) *fleet.Node {
	for d := t.d; d != nil; d = d.below {
		if n, ok := d.nodes[name]; ok {
			return n
		}
	}
	t.c.mu.RLock()
	defer t.c.mu.RUnlock()
	return t.c.nodes[name]
}

// allNodes returns nodes by name that must not be changed.
func (t tx) allNodes() []*fleet.Node {
	t.c.mu.RLock()
	all := maps.Clone(t.c.nodes)
	t.c.mu.RUnlock()
	over := []*changes{}
	for d := t.d; d != nil; d = d.below {
		over = append(over, d)
	}
	for _, d := range slices.Backward(over) {
		maps.Copy(all, d.nodes)
	}
	out := make([]*fleet.Node, 0, len(all))
	for _, name := range slices.Sorted(maps.Keys(all)) {
		if n := all[name]; n != nil {
			out = append(out, n)
		}
	}
	return out
}

// liveRollout returns a live rollout that must not be changed, or nil.
func (t tx) liveRollout(id string) *fleet.Rollout {
	for d := t.d; d != nil; d = d.below {
		if r, ok := d.rollouts[id]; ok {
			return r
		}
	}
	t.c.mu.RLock()
	defer t.c.mu.RUnlock()
	return t.c.rollouts[id]
}

// seen takes in a report, if it is the newest, and reports whether the node
// is known.
func (c *cache) seen(node string, rep *fleet.Report, at time.Time) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	old := c.nodes[node]
	if old != nil && !at.Before(old.LastSeen) {
		n := *old
		n.Reported, n.LastSeen = rep, at
		c.nodes[node] = &n
	}
	return old != nil
}

// Seen implements store.Store.
func (s *Store) Seen(_ context.Context, node string, rep *fleet.Report, at time.Time) error {
	if !s.c.seen(node, rep, at) {
		return store.NotFound("node", node)
	}
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	s.c.unsaved[node] = true
	return nil
}

// How often and in what portions LastSeen goes to disk: the one writer must
// not be kept from heartbeats that bring news. Servers that share a database
// tell each other what they have seen.
const (
	saveEvery = 30 * time.Second
	tellEvery = 3 * time.Second
	saveChunk = 500
)

// saver saves what was seen, until the store is closed.
func (s *Store) saver() {
	defer close(s.saved)
	every := saveEvery
	if s.b.Shared {
		every = tellEvery
	}
	t := time.NewTicker(every)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
			// Errors are left: what is lost is told again by the next heartbeat.
			ctx, cancel := context.WithTimeout(context.Background(), saveEvery)
			s.saveSeen(ctx) //nolint:errcheck // see above
			if s.b.Shared {
				s.hear(ctx) //nolint:errcheck // see above
			}
			cancel()
		}
	}
}

func (s *Store) saveSeen(ctx context.Context) error {
	s.c.mu.Lock()
	names := slices.Sorted(maps.Keys(s.c.unsaved))
	clear(s.c.unsaved)
	s.c.mu.Unlock()
	for chunk := range slices.Chunk(names, saveChunk) {
		var err error
		if s.b.Shared {
			err = s.tell(ctx, chunk)
		} else {
			err = s.Update(ctx, func(t store.Tx) error { return t.(tx).saveSeen(ctx, chunk) })
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (t tx) saveSeen(ctx context.Context, names []string) error {
	for _, name := range names {
		n := t.node(name)
		if n == nil {
			continue
		}
		if _, err := t.exec(ctx, "INSERT INTO seen(node, at) VALUES (?, ?) ON CONFLICT (node) DO UPDATE SET at = excluded.at", name, n.LastSeen.UnixNano()); err != nil {
			return fmt.Errorf("writing when node %q was seen: %w", name, err)
		}
	}
	return nil
}
