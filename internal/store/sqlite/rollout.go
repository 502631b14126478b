package sqlite

import (
	"bytes"
	"context"
	"database/sql"
	"encoding/json"
	"fmt"
	"strconv"
	"strings"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

// number returns the row of a rollout, 0 for what cannot be one.
func number(id string) int64 {
	n, err := strconv.ParseInt(strings.TrimPrefix(id, "r"), 10, 64)
	if err != nil || !strings.HasPrefix(id, "r") {
		return 0
	}
	return n
}

func (t tx) Rollout(ctx context.Context, id string) (*fleet.Rollout, error) {
	r, err := one[fleet.Rollout](ctx, t, "rollout", id, "SELECT doc FROM rollout WHERE id = ?", number(id))
	if err != nil {
		return nil, err
	}
	return r, t.loadMoves(ctx, r)
}

func (t tx) Rollouts(ctx context.Context) ([]*fleet.Rollout, error) {
	rs, err := many[fleet.Rollout](ctx, t, "rollouts", "SELECT doc FROM rollout ORDER BY id")
	if err != nil {
		return nil, err
	}
	for _, r := range rs {
		if err := t.loadMoves(ctx, r); err != nil {
			return nil, err
		}
	}
	return rs, nil
}

func (t tx) loadMoves(ctx context.Context, r *fleet.Rollout) error {
	ms, err := many[fleet.Move](ctx, t, "moves of rollout "+r.ID, "SELECT doc FROM move WHERE rollout = ? ORDER BY seq", number(r.ID))
	r.Nodes = make([]fleet.Move, 0, len(ms))
	for _, m := range ms {
		r.Nodes = append(r.Nodes, *m)
	}
	return err
}

func (t tx) CreateRollout(ctx context.Context, r *fleet.Rollout) error {
	var n int64
	if err := t.q.QueryRowContext(ctx, "SELECT coalesce(max(id), 0) + 1 FROM rollout").Scan(&n); err != nil {
		return fmt.Errorf("naming a rollout: %w", err)
	}
	r.ID = "r" + strconv.FormatInt(n, 10)
	if _, err := t.exec(ctx, "INSERT INTO rollout(id, doc) VALUES (?, x'7b7d')", n); err != nil {
		return fmt.Errorf("writing rollout %q: %w", r.ID, err)
	}
	return t.PutRollout(ctx, r)
}

func (t tx) PutRollout(ctx context.Context, r *fleet.Rollout) error {
	head := *r
	head.Nodes = nil
	doc, err := json.Marshal(head)
	if err != nil {
		return fmt.Errorf("rollout %q: %w", r.ID, err)
	}
	hits, err := t.exec(ctx, "UPDATE rollout SET doc = ? WHERE id = ?", doc, number(r.ID))
	if err != nil {
		return fmt.Errorf("writing rollout %q: %w", r.ID, err)
	}
	if hits == 0 {
		return store.NotFound("rollout", r.ID)
	}
	return t.saveMoves(ctx, r)
}

// saveMoves writes the moves that differ from what is stored.
func (t tx) saveMoves(ctx context.Context, r *fleet.Rollout) error {
	have, err := t.moveDocs(ctx, r)
	if err != nil {
		return err
	}
	for i, m := range r.Nodes {
		doc, err := json.Marshal(m)
		if err != nil {
			return fmt.Errorf("rollout %q, node %q: %w", r.ID, m.Node, err)
		}
		if i < len(have) && bytes.Equal(have[i], doc) {
			continue
		}
		if _, err := t.exec(ctx, "INSERT OR REPLACE INTO move(rollout, seq, doc) VALUES (?, ?, ?)", number(r.ID), i, doc); err != nil {
			return fmt.Errorf("writing rollout %q, node %q: %w", r.ID, m.Node, err)
		}
	}
	_, err = t.exec(ctx, "DELETE FROM move WHERE rollout = ? AND seq >= ?", number(r.ID), len(r.Nodes))
	return err
}

func (t tx) moveDocs(ctx context.Context, r *fleet.Rollout) ([][]byte, error) {
	rows, err := t.q.QueryContext(ctx, "SELECT doc FROM move WHERE rollout = ? ORDER BY seq", number(r.ID))
	if err != nil {
		return nil, fmt.Errorf("reading rollout %q: %w", r.ID, err)
	}
	defer rows.Close()
	var out [][]byte
	for rows.Next() {
		var d sql.RawBytes
		if err := rows.Scan(&d); err != nil {
			return nil, fmt.Errorf("reading rollout %q: %w", r.ID, err)
		}
		out = append(out, bytes.Clone(d))
	}
	return out, rows.Err()
}
