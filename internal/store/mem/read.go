package mem

import (
	"context"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

// The readers outside a transaction: the same, under a lock.

func (m *memory) Node(ctx context.Context, name string) (*fleet.Node, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tx.Node(ctx, name)
}

func (m *memory) NodeByEK(ctx context.Context, name string) (*fleet.Node, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tx.NodeByEK(ctx, name)
}

func (m *memory) NodeByMAC(ctx context.Context, name fleet.MAC) (*fleet.Node, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tx.NodeByMAC(ctx, name)
}

func (m *memory) Nodes(ctx context.Context) ([]*fleet.Node, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tx.Nodes(ctx)
}

func (m *memory) Pool(ctx context.Context, name string) (*fleet.Pool, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tx.Pool(ctx, name)
}

func (m *memory) Pools(ctx context.Context) ([]*fleet.Pool, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tx.Pools(ctx)
}

func (m *memory) Image(ctx context.Context, name string) (*fleet.Image, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tx.Image(ctx, name)
}

func (m *memory) Images(ctx context.Context) ([]*fleet.Image, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tx.Images(ctx)
}

func (m *memory) Rollout(ctx context.Context, name string) (*fleet.Rollout, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tx.Rollout(ctx, name)
}

func (m *memory) Rollouts(ctx context.Context) ([]*fleet.Rollout, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tx.Rollouts(ctx)
}

func (m *memory) RolloutHeads(ctx context.Context) ([]*fleet.Rollout, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tx.RolloutHeads(ctx)
}

func (m *memory) LiveRollouts(ctx context.Context) ([]*fleet.Rollout, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tx.LiveRollouts(ctx)
}

func (m *memory) Events(ctx context.Context, name store.EventQuery) ([]fleet.Event, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tx.Events(ctx, name)
}

func (m *memory) Enrolment(ctx context.Context, name string) (*store.Enrolment, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tx.Enrolment(ctx, name)
}

func (m *memory) Leases(ctx context.Context) ([]store.Lease, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tx.Leases(ctx)
}
