package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

// Refusal is the error of an act that is well formed but not allowed as
// things stand. Hint says what to do instead.
type Refusal struct{ Why, Hint string }

// Error implements error.
func (r *Refusal) Error() string { return r.Why }

// Draft returns the rollout that New would start: every node of every
// stage's pool, by name, with the reasons of those that cannot take part as
// things stand. Nothing is stored.
func Draft(ctx context.Context, rd store.Reader, image string, p fleet.Policy, by string, now time.Time) (*fleet.Rollout, error) {
	if err := checkPolicy(p); err != nil {
		return nil, err
	}
	if _, err := rd.Image(ctx, image); err != nil {
		return nil, err
	}
	nodes, err := rd.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	r := &fleet.Rollout{Image: image, State: fleet.RolloutRunning, Policy: p, By: by, Created: now, Updated: now}
	taken := map[string]bool{}
	for i, s := range p.Stages {
		chosen, err := choose(now, r, s, nodes, taken)
		if err != nil {
			return nil, err
		}
		for _, n := range chosen {
			taken[n.Name] = true
			r.Nodes = append(r.Nodes, fleet.Move{Node: n.Name, Stage: i, State: fleet.MoveWaiting, Reason: unfit(now, r, n)})
		}
		if len(chosen) == 0 {
			return nil, &Refusal{fmt.Sprintf("stage %d (%s) has no nodes", i+1, s), "`pxeserver node list` shows who is in which pool, `pxeserver node list --selector` who has which labels"}
		}
	}
	if err := checkDomains(r, nodes); err != nil {
		return nil, err
	}
	return r, overlap(ctx, rd, r, nodes, now)
}

func checkPolicy(p fleet.Policy) error {
	whole := map[string]bool{}
	for _, s := range p.Stages {
		if err := s.Check(); err != nil {
			return &Refusal{err.Error(), "a stage is POOL, POOL:10%, labels:KEY=VALUE, or nodes:n1,n2"}
		}
		switch {
		case s.Pool != "" && whole[s.Pool]:
			return &Refusal{fmt.Sprintf("nothing of pool %q is left for stage %s", s.Pool, s), "name each pool once, parts of it before the whole, least critical first"}
		case p.ByDomain && s.Percent > 0:
			return &Refusal{fmt.Sprintf("stage %s would cut failure domains", s), "leave --by-domain out, or name whole pools"}
		}
		whole[s.Pool] = s.IsPool()
	}
	for _, w := range p.Windows {
		if err := w.Check(); err != nil {
			return &Refusal{err.Error(), "a window is [DAYS] FROM-TO [ZONE], such as mon-fri 22:00-06:00 Europe/Berlin"}
		}
	}
	switch {
	case len(p.Stages) == 0:
		return &Refusal{"the rollout has no stages", "name the pools in order, the canary first: --stage canary --stage rack"}
	case p.MaxUnavailable.Nodes < 0 || p.FailureBudget.Nodes < 0 || p.Bake < 0 || p.Timeout < 0 || p.Tries < 0 || p.DrainWait < 0:
		return &Refusal{"the policy has a negative number", "max unavailable, failure budget, bake, timeout and tries are 0 or more"}
	}
	return nil
}

// overlap refuses a rollout that names a node of another that is not over.
func overlap(ctx context.Context, rd store.Reader, r *fleet.Rollout, nodes []*fleet.Node, now time.Time) error {
	others, err := rd.LiveRollouts(ctx)
	if err != nil {
		return err
	}
	mine := index(r)
	for _, o := range others {
		if o.ID == r.ID || !busy(o, nodes, now) {
			continue
		}
		for _, m := range o.Nodes {
			if mine[m.Node] != nil {
				return &Refusal{
					fmt.Sprintf("node %s is part of rollout %s, which is %s", m.Node, o.ID, o.State),
					fmt.Sprintf("wait for it (`pxeserver rollout status %s`) or end it (`pxeserver rollout abort %s`)", o.ID, o.ID),
				}
			}
		}
	}
	return nil
}

// busy reports whether a rollout still has something to do.
func busy(r *fleet.Rollout, nodes []*fleet.Node, now time.Time) bool {
	if r.State == fleet.RolloutRunning || r.State == fleet.RolloutPaused {
		return true
	}
	for _, m := range r.Nodes {
		if m.State == fleet.MoveMoving || m.State == fleet.MoveReturning || m.State == fleet.MoveDraining {
			return true
		}
	}
	return Live(r) && len(Plan(now, r, nodes)) > 0
}

// Holding returns the rollout that a node's move is under way in, or nil.
func Holding(ctx context.Context, rd store.Reader, node string) (*fleet.Rollout, error) {
	rs, err := rd.LiveRollouts(ctx)
	if err != nil {
		return nil, err
	}
	for _, r := range rs {
		for i := range r.Nodes {
			if m := &r.Nodes[i]; m.Node == node && (m.State == fleet.MoveMoving || m.State == fleet.MoveReturning) {
				return r, nil
			}
		}
	}
	return nil, nil
}

// New starts a rollout.
func New(ctx context.Context, s store.Store, image string, p fleet.Policy, by string, now time.Time) (*fleet.Rollout, error) {
	var r *fleet.Rollout
	err := s.Update(ctx, func(tx store.Tx) (err error) {
		if r, err = Draft(ctx, tx, image, p, by, now); err != nil {
			return err
		}
		for i := range r.Nodes {
			r.Nodes[i].Reason = "" // said again when its turn comes
		}
		if err := tx.CreateRollout(ctx, r); err != nil {
			return err
		}
		return note(ctx, tx, r, by, "rollout.started", fmt.Sprintf("%s to %d nodes in %d stages", label(ctx, tx, image), len(r.Nodes), len(p.Stages)), now)
	})
	return r, err
}

// Pause keeps a running rollout from starting more nodes; those on the move
// go on.
func Pause(ctx context.Context, s store.Store, id, by, reason string, now time.Time) (*fleet.Rollout, error) {
	return change(ctx, s, id, now, func(_ store.Tx, r *fleet.Rollout) (kind, msg string, err error) {
		if r.State != fleet.RolloutRunning {
			return "", "", wrongState(r, "paused", fleet.RolloutRunning)
		}
		r.State, r.Reason = fleet.RolloutPaused, reason
		return "rollout.paused", reason, nil
	}, by)
}

// Resume goes on with a paused rollout, or, by the operator's word, with one
// that halted: what has failed so far is then forgiven, the budget counts
// from there, and skipped nodes of the current stage get another chance.
func Resume(ctx context.Context, s store.Store, id, by string, now time.Time) (*fleet.Rollout, error) {
	return change(ctx, s, id, now, func(tx store.Tx, r *fleet.Rollout) (kind, msg string, err error) {
		switch r.State {
		case fleet.RolloutPaused:
		case fleet.RolloutHalted:
			if err := forgive(ctx, tx, r, now); err != nil {
				return "", "", err
			}
		default:
			return "", "", wrongState(r, "resumed", fleet.RolloutPaused, fleet.RolloutHalted)
		}
		msg = "was " + string(r.State) + because(r.Reason)
		r.State, r.Reason = fleet.RolloutRunning, ""
		return "rollout.resumed", msg, nil
	}, by)
}

func forgive(ctx context.Context, tx store.Tx, r *fleet.Rollout, now time.Time) error {
	failed := 0
	for i := range r.Nodes {
		switch m := &r.Nodes[i]; m.State {
		case fleet.MoveFailed:
			failed++
		case fleet.MoveReturning, fleet.MoveReturned:
			return &Refusal{"nodes of rollout " + r.ID + " were flipped back", "start a new rollout"}
		case fleet.MoveSkipped:
			if m.Stage == r.Stage && m.Reason != alreadyThere {
				m.State, m.Reason, m.Ended = fleet.MoveWaiting, "", time.Time{}
			}
		}
	}
	nodes, err := tx.Nodes(ctx)
	if err != nil {
		return err
	}
	b := r.Policy.FailureBudget.Of(len(r.Nodes))
	r.Policy.FailureBudget = fleet.Amount{Nodes: failed + b}
	return overlap(ctx, tx, r, nodes, now)
}

// Abort ends a rollout. Nodes on the move go on by themselves, unless
// flipBack is set: then all that the rollout changed is returned.
func Abort(ctx context.Context, s store.Store, id, by, reason string, flipBack bool, now time.Time) (*fleet.Rollout, error) {
	return change(ctx, s, id, now, func(_ store.Tx, r *fleet.Rollout) (kind, msg string, err error) {
		switch r.State {
		case fleet.RolloutRunning, fleet.RolloutPaused, fleet.RolloutHalted:
		default:
			return "", "", wrongState(r, "aborted", fleet.RolloutRunning, fleet.RolloutPaused, fleet.RolloutHalted)
		}
		r.State, r.Reason, r.Policy.FlipBack = fleet.RolloutAborted, reason, flipBack
		return "rollout.aborted", reason, nil
	}, by)
}

func wrongState(r *fleet.Rollout, act string, want ...fleet.RolloutState) error {
	return &Refusal{fmt.Sprintf("rollout %s is %s and cannot be %s", r.ID, r.State, act), fmt.Sprintf("only one that is %s can", anyOf(want))}
}

// anyOf names states for people: "running, paused or halted".
func anyOf(states []fleet.RolloutState) string {
	var b strings.Builder
	for i, s := range states {
		switch {
		case i > 0 && i == len(states)-1:
			b.WriteString(" or ")
		case i > 0:
			b.WriteString(", ")
		}
		b.WriteString(string(s))
	}
	return b.String()
}

func change(ctx context.Context, s store.Store, id string, now time.Time, fn func(store.Tx, *fleet.Rollout) (kind, msg string, err error), by string) (*fleet.Rollout, error) {
	var r *fleet.Rollout
	err := s.Update(ctx, func(tx store.Tx) (err error) {
		if r, err = tx.Rollout(ctx, id); err != nil {
			return err
		}
		kind, msg, err := fn(tx, r)
		if err != nil {
			return err
		}
		touch(r, now)
		return errors.Join(tx.PutRollout(ctx, r), note(ctx, tx, r, by, kind, msg, now))
	})
	return r, err
}

func note(ctx context.Context, tx store.Tx, r *fleet.Rollout, by, kind, msg string, now time.Time) error {
	text := "rollout " + r.ID
	if msg != "" {
		text += ": " + msg
	}
	return tx.AppendEvent(ctx, &fleet.Event{At: now, Actor: by, Kind: kind, Message: text})
}
