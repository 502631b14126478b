package sqlite

import (
	"context"
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
// heartbeat. This process is the file's only writer, so nothing goes by it.
// What it points to is never changed, only replaced.
type cache struct {
	mu       sync.RWMutex
	nodes    map[string]*fleet.Node
	rollouts map[string]*fleet.Rollout // live ones
	unsaved  map[string]bool           // nodes whose LastSeen is not on disk
}

// changes is what a transaction has written so far, on top of what the
// others of its batch have (below), on top of the cache. A nil node was
// deleted, a nil rollout is not live.
type changes struct {
	nodes    map[string]*fleet.Node
	rollouts map[string]*fleet.Rollout
	below    *changes
}

func newChanges(below *changes) *changes {
	return &changes{map[string]*fleet.Node{}, map[string]*fleet.Rollout{}, below}
}

// add takes over what a transaction above has written.
func (d *changes) add(above *changes) {
	maps.Copy(d.nodes, above.nodes)
	maps.Copy(d.rollouts, above.rollouts)
}

// load fills the cache from the file.
func (c *cache) load(ctx context.Context, t tx) error {
	c.nodes, c.rollouts, c.unsaved = map[string]*fleet.Node{}, map[string]*fleet.Rollout{}, map[string]bool{}
	rows, err := t.q.QueryContext(ctx, "SELECT doc, coalesce(at, 0) FROM node LEFT JOIN seen ON node = name")
	if err != nil {
		return fmt.Errorf("reading nodes: %w", err)
	}
	defer rows.Close()
	for rows.Next() {
		var doc []byte
		var at int64
		n := &fleet.Node{}
		if err := rows.Scan(&doc, &at); err != nil {
			return fmt.Errorf("reading nodes: %w", err)
		}
		if err := json.Unmarshal(doc, n); err != nil {
			return fmt.Errorf("reading nodes: %w", err)
		}
		if seen := time.Unix(0, at).UTC(); at != 0 && seen.After(n.LastSeen) {
			n.LastSeen = seen
		}
		c.nodes[n.Name] = n
	}
	if err := rows.Err(); err != nil {
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

// commit takes over what a batch has written. A heartbeat that came in
// meanwhile is newer than what the batch knew.
func (c *cache) commit(d *changes) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, n := range d.nodes {
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
	for id, r := range d.rollouts {
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

// Seen implements store.Store.
func (s *Store) Seen(_ context.Context, node string, rep *fleet.Report, at time.Time) error {
	s.c.mu.Lock()
	defer s.c.mu.Unlock()
	old := s.c.nodes[node]
	if old == nil {
		return store.NotFound("node", node)
	}
	if at.Before(old.LastSeen) {
		return nil
	}
	n := *old
	n.Reported, n.LastSeen = rep, at
	s.c.nodes[node], s.c.unsaved[node] = &n, true
	return nil
}

// How often and in what portions LastSeen goes to disk: the one writer must
// not be kept from heartbeats that bring news.
const (
	saveEvery = 30 * time.Second
	saveChunk = 500
)

// saver saves what was seen, until the store is closed.
func (s *Store) saver() {
	defer close(s.saved)
	t := time.NewTicker(saveEvery)
	defer t.Stop()
	for {
		select {
		case <-s.stop:
			return
		case <-t.C:
			s.saveSeen() //nolint:errcheck // tried again; what is lost is told again by the next heartbeat
		}
	}
}

func (s *Store) saveSeen() error {
	s.c.mu.Lock()
	names := slices.Sorted(maps.Keys(s.c.unsaved))
	clear(s.c.unsaved)
	s.c.mu.Unlock()
	ctx := context.Background()
	for chunk := range slices.Chunk(names, saveChunk) {
		err := s.Update(ctx, func(t store.Tx) error { return t.(tx).saveSeen(ctx, chunk) })
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
		if _, err := t.exec(ctx, "INSERT OR REPLACE INTO seen(node, at) VALUES (?, ?)", name, n.LastSeen.UnixNano()); err != nil {
			return fmt.Errorf("writing when node %q was seen: %w", name, err)
		}
	}
	return nil
}
