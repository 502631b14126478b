package sqlstore

import (
	"context"
	"fmt"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

func (t tx) Baselines(ctx context.Context) ([]*fleet.Baseline, error) {
	return many[fleet.Baseline](ctx, t, "baselines", "SELECT doc FROM baseline ORDER BY id")
}

func (t tx) PutBaseline(ctx context.Context, b *fleet.Baseline) error {
	return t.put(ctx, "baseline "+b.ID, b, "INSERT INTO baseline(doc, id) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET doc = excluded.doc", b.ID)
}

func (t tx) DeleteBaseline(ctx context.Context, id string) error {
	hits, err := t.exec(ctx, "DELETE FROM baseline WHERE id = ?", id)
	if err != nil {
		return fmt.Errorf("removing baseline %q: %w", id, err)
	}
	if hits == 0 {
		return store.NotFound("baseline", id)
	}
	return nil
}
