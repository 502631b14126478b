package sqlstore

import (
	"cmp"
	"context"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/turnout-project/turnout/internal/fleet"
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
	if r := t.liveRollout(id); r != nil {
		return r.Clone(), nil
	}
	r, err := one[fleet.Rollout](ctx, t, "rollout", id, "SELECT doc FROM rollout WHERE id = ?", number(id))
	if err != nil {
		return nil, err
	}
	return r, t.loadMoves(ctx, r)
}

func (t tx) RolloutHeads(ctx context.Context) ([]*fleet.Rollout, error) {
	return many[fleet.Rollout](ctx, t, "rollouts", "SELECT doc FROM rollout ORDER BY id")
}

func (t tx) Rollouts(ctx context.Context) ([]*fleet.Rollout, error) {
	rs, err := t.RolloutHeads(ctx)
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

func (t tx) LiveRollouts(context.Context) ([]*fleet.Rollout, error) {
	t.c.mu.RLock()
	ids := maps.Clone(t.c.rollouts)
	t.c.mu.RUnlock()
	for d := t.d; d != nil; d = d.below {
		maps.Copy(ids, d.rollouts)
	}
	out := []*fleet.Rollout{}
	for id := range ids {
		if r := t.liveRollout(id); r != nil {
			out = append(out, r.Clone())
		}
	}
	slices.SortFunc(out, func(a, b *fleet.Rollout) int { return cmp.Compare(number(a.ID), number(b.ID)) })
	return out, nil
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
	if err := t.queryRow(ctx, "SELECT coalesce(max(id), 0) + 1 FROM rollout").Scan(&n); err != nil {
		return fmt.Errorf("naming a rollout: %w", err)
	}
	r.ID = "r" + strconv.FormatInt(n, 10)
	if _, err := t.exec(ctx, "INSERT INTO rollout(id, doc) VALUES (?, ?)", n, []byte("{}")); err != nil {
		return fmt.Errorf("writing rollout %q: %w", r.ID, err)
	}
	return t.PutRollout(ctx, r)
}

func (t tx) PutRollout(ctx context.Context, r *fleet.Rollout) error {
	old, err := t.Rollout(ctx, r.ID)
	if err != nil {
		return err
	}
	head := *r
	head.Nodes = nil
	doc, err := json.Marshal(head)
	if err != nil {
		return fmt.Errorf("rollout %q: %w", r.ID, err)
	}
	if _, err := t.exec(ctx, "UPDATE rollout SET doc = ? WHERE id = ?", doc, number(r.ID)); err != nil {
		return fmt.Errorf("writing rollout %q: %w", r.ID, err)
	}
	if err := t.saveMoves(ctx, r, old.Nodes); err != nil {
		return err
	}
	t.d.rollouts[r.ID] = nil
	if r.Live() {
		t.d.rollouts[r.ID] = r.Clone()
	}
	return nil
}

// saveMoves writes the moves that differ from what is stored.
func (t tx) saveMoves(ctx context.Context, r *fleet.Rollout, old []fleet.Move) error {
	for i, m := range r.Nodes {
		if i < len(old) && old[i] == m {
			continue
		}
		doc, err := json.Marshal(m)
		if err != nil {
			return fmt.Errorf("rollout %q, node %q: %w", r.ID, m.Node, err)
		}
		if _, err := t.exec(ctx, "INSERT INTO move(rollout, seq, doc) VALUES (?, ?, ?) ON CONFLICT (rollout, seq) DO UPDATE SET doc = excluded.doc", number(r.ID), i, doc); err != nil {
			return fmt.Errorf("writing rollout %q, node %q: %w", r.ID, m.Node, err)
		}
	}
	if len(r.Nodes) >= len(old) {
		return nil
	}
	_, err := t.exec(ctx, "DELETE FROM move WHERE rollout = ? AND seq >= ?", number(r.ID), len(r.Nodes))
	return err
}
