package rollout

import (
	"context"
	"fmt"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

// Undo returns the nodes that an ended rollout has moved to what they ran
// before, at most atOnce of a stage at a time (the zero Amount: as many as on
// the way there). Nodes that have got another wish since are left alone, and
// so are those that failed: they are back already. Fresh nodes of a pool then
// install again what all its nodes ran before.
func Undo(ctx context.Context, s store.Store, id, by, reason string, atOnce fleet.Amount, now time.Time) (*fleet.Rollout, error) {
	return change(ctx, s, id, now, func(tx store.Tx, r *fleet.Rollout) (kind, msg string, err error) {
		switch r.State {
		case fleet.RolloutDone, fleet.RolloutHalted, fleet.RolloutAborted:
		default:
			return "", "", &Refusal{fmt.Sprintf("rollout %s is %s", r.ID, r.State), "end it and return its nodes: `pxeserver rollout abort " + r.ID + " --flip-back`"}
		}
		nodes, err := nodesOf(ctx, tx, r)
		if err != nil {
			return "", "", err
		}
		if atOnce != (fleet.Amount{}) {
			r.Policy.MaxUnavailable = atOnce
		}
		for i := range r.Nodes {
			if r.Nodes[i].State == fleet.MoveDone {
				r.Nodes[i].Back = false // that its jobs went on once is no reason to leave it now
			}
		}
		wasDone := r.State == fleet.RolloutDone
		r.State, r.Reason, r.Policy.FlipBack = fleet.RolloutAborted, "undone by "+by+because(reason), true
		if err := overlap(ctx, tx, r, nodes, now); err != nil {
			return "", "", err
		}
		if !Live(r) || len(Plan(now, r, nodes)) == 0 {
			return "", "", &Refusal{"none of its nodes is where rollout " + r.ID + " has left it", "`pxeserver rollout status " + r.ID + "` says what became of each"}
		}
		if wasDone {
			if err := unadopt(ctx, tx, r); err != nil {
				return "", "", err
			}
		}
		return "rollout.undone", reason, nil
	}, by)
}

// unadopt takes back what adopt did, for the pools that still have the
// rollout's image and whose nodes all ran one image before.
func unadopt(ctx context.Context, tx store.Tx, r *fleet.Rollout) error {
	for i, st := range r.Policy.Stages {
		if !st.IsPool() {
			continue
		}
		p, err := tx.Pool(ctx, st.Pool)
		if err != nil || p.Image != r.Image {
			continue
		}
		before := ""
		for _, m := range r.Nodes {
			if m.Stage != i || m.From == "" {
				continue
			}
			if before != "" && before != m.From {
				before = ""
				break
			}
			before = m.From
		}
		if before == "" {
			continue
		}
		p.Image = before
		if err := tx.PutPool(ctx, p); err != nil {
			return err
		}
	}
	return nil
}
