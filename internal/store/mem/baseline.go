package mem

import (
	"context"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

func (t *tx) Baselines(context.Context) ([]*fleet.Baseline, error) {
	return list[fleet.Baseline](t, "baseline")
}

func (m *memory) Baselines(ctx context.Context) ([]*fleet.Baseline, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.tx.Baselines(ctx)
}

func (t *tx) PutBaseline(_ context.Context, b *fleet.Baseline) error {
	return t.put("baseline", b.ID, b)
}

func (t *tx) DeleteBaseline(_ context.Context, id string) error {
	if _, ok := t.docs["baseline"][id]; !ok {
		return store.NotFound("baseline", id)
	}
	t.set("baseline", id, nil)
	return nil
}
