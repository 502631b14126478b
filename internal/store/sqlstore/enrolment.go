package sqlstore

import (
	"context"
	"iter"
	"sync"

	"github.com/turnout-project/turnout/internal/store"
)

// enrolments keeps enrolments that were asked for: each heartbeat looks
// whether its certificate is one that is taken. The zero value is empty.
type enrolments struct {
	mu     sync.RWMutex
	by     map[string]*store.Enrolment // by node; never changed, only replaced
	forgot uint64                      // rises when something was forgotten
}

// get returns what is known of a node, nil for nothing, and the age of what
// put needs to know.
func (e *enrolments) get(node string) (*store.Enrolment, uint64) {
	e.mu.RLock()
	defer e.mu.RUnlock()
	return e.by[node], e.forgot
}

// put keeps what was read after get said since, unless it may be older than
// something that was forgotten meanwhile.
func (e *enrolments) put(x *store.Enrolment, since uint64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.forgot != since {
		return
	}
	if e.by == nil {
		e.by = map[string]*store.Enrolment{}
	}
	e.by[x.Node] = x
}

// forget drops enrolments that have changed.
func (e *enrolments) forget(nodes iter.Seq[string]) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for n := range nodes {
		delete(e.by, n)
		e.forgot++
	}
}

// Enrolment implements store.Reader: from memory, once it is known that no
// other process has changed it.
func (s *Store) Enrolment(ctx context.Context, node string) (*store.Enrolment, error) {
	if err := s.fresh(ctx); err != nil {
		return nil, err
	}
	x, since := s.c.enrolments.get(node)
	if x == nil {
		var err error
		if x, err = s.tx.Enrolment(ctx, node); err != nil {
			return nil, err
		}
		s.c.enrolments.put(x, since)
	}
	return x.Clone(), nil
}

// Enrolment implements store.Reader, from the database.
func (t tx) Enrolment(ctx context.Context, node string) (*store.Enrolment, error) {
	return one[store.Enrolment](ctx, t, "enrolment", node, "SELECT doc FROM enrolment WHERE node = ?", node)
}

// PutEnrolment implements store.Tx.
func (t tx) PutEnrolment(ctx context.Context, e *store.Enrolment) error {
	err := t.put(ctx, "enrolment of "+e.Node, e, "INSERT INTO enrolment(doc, node) VALUES (?, ?) ON CONFLICT (node) DO UPDATE SET doc = excluded.doc", e.Node)
	if err != nil {
		return err
	}
	return t.enrolled(ctx, e.Node)
}

// DeleteEnrolment implements store.Tx.
func (t tx) DeleteEnrolment(ctx context.Context, node string) error {
	if _, err := t.exec(ctx, "DELETE FROM enrolment WHERE node = ?", node); err != nil {
		return err
	}
	return t.enrolled(ctx, node)
}

// enrolled notes that an enrolment has changed. In a shared database its node
// is stamped as changed: that is what other servers look for.
func (t tx) enrolled(ctx context.Context, node string) error {
	t.d.enrolled[node] = true
	n := t.node(node)
	if !t.numbered || n == nil {
		return nil
	}
	t.d.nodes[node] = n
	_, err := t.exec(ctx, "UPDATE node SET ek = ek WHERE name = ?", node)
	return err
}
