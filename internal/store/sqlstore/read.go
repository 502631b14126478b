package sqlstore

import (
	"context"

	"github.com/turnout-project/turnout/internal/fleet"
)

// The readers outside an update of what is kept in memory: the same, once it
// is known that no other process has changed it.

// Node implements store.Reader.
func (s *Store) Node(ctx context.Context, name string) (*fleet.Node, error) {
	if err := s.fresh(ctx); err != nil {
		return nil, err
	}
	return s.tx.Node(ctx, name)
}

// NodeByEK implements store.Reader.
func (s *Store) NodeByEK(ctx context.Context, ek string) (*fleet.Node, error) {
	if err := s.fresh(ctx); err != nil {
		return nil, err
	}
	return s.tx.NodeByEK(ctx, ek)
}

// NodeByMAC implements store.Reader.
func (s *Store) NodeByMAC(ctx context.Context, mac fleet.MAC) (*fleet.Node, error) {
	if err := s.fresh(ctx); err != nil {
		return nil, err
	}
	return s.tx.NodeByMAC(ctx, mac)
}

// Nodes implements store.Reader.
func (s *Store) Nodes(ctx context.Context) ([]*fleet.Node, error) {
	if err := s.fresh(ctx); err != nil {
		return nil, err
	}
	return s.tx.Nodes(ctx)
}

// Rollout implements store.Reader.
func (s *Store) Rollout(ctx context.Context, id string) (*fleet.Rollout, error) {
	if err := s.fresh(ctx); err != nil {
		return nil, err
	}
	return s.tx.Rollout(ctx, id)
}

// LiveRollouts implements store.Reader.
func (s *Store) LiveRollouts(ctx context.Context) ([]*fleet.Rollout, error) {
	if err := s.fresh(ctx); err != nil {
		return nil, err
	}
	return s.tx.LiveRollouts(ctx)
}

// Peek is for store.Peek.
func (s *Store) Peek(ctx context.Context, names []string) ([]*fleet.Node, error) {
	if err := s.fresh(ctx); err != nil {
		return nil, err
	}
	return s.tx.Peek(ctx, names)
}

// Peek is for store.Peek: what is kept in memory is replaced, never changed.
func (t tx) Peek(_ context.Context, names []string) ([]*fleet.Node, error) {
	out := make([]*fleet.Node, 0, len(names))
	for _, name := range names {
		if n := t.node(name); n != nil {
			out = append(out, n)
		}
	}
	return out, nil
}
