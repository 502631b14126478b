package rollout

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

// Executor carries out the plans of all live rollouts. It makes no choices.
type Executor struct {
	Store    store.Store
	Now      func() time.Time // nil means time.Now
	Log      *slog.Logger     // nil means quiet
	Interval time.Duration    // between passes when nothing wakes it; 0 means 1 s
	Wake     <-chan struct{}  // something changed; may be nil
	Drainer  Drainer          // nil: rollouts that drain cannot go on

	calls  callers
	drains bool // some live rollout does, as of the last pass
}

// errStale says that the state has moved on since the plan was made.
var errStale = errors.New("state has changed since the plan was made")

// Run makes passes until ctx ends. Errors are logged and tried again.
func (e *Executor) Run(ctx context.Context) {
	every := e.Interval
	if every <= 0 {
		every = time.Second
	}
	t := time.NewTicker(every)
	defer t.Stop()
	defer e.calls.all.Wait()
	for {
		began := time.Now()
		err := e.Pass(ctx)
		if e.drains {
			err = errors.Join(err, e.CallHooks(ctx))
		}
		if err != nil && ctx.Err() == nil {
			e.log().Error("rollout pass failed; it will be tried again", "err", err)
		}
		// A large fleet wakes it all the time: it may take a tenth of one core.
		rest := time.After(10 * time.Since(began))
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		case <-e.Wake:
		}
		select {
		case <-ctx.Done():
			return
		case <-rest:
		}
	}
}

// Pass plans each live rollout once and applies its steps in order, some
// hundred in one update: heartbeats that bring news need the writer too.
// What is left when the state changes in between, or the server is killed, is
// planned anew. Doing it twice does nothing more.
func (e *Executor) Pass(ctx context.Context) error {
	rs, err := e.Store.LiveRollouts(ctx)
	if err != nil {
		return err
	}
	var errs []error
	e.drains = false
	for _, r := range rs {
		e.drains = e.drains || r.Policy.Drain != ""
		if err := e.advance(ctx, r); err != nil && !errors.Is(err, errStale) {
			errs = append(errs, fmt.Errorf("rollout %s: %w", r.ID, err))
		}
	}
	return errors.Join(errs...)
}

func (e *Executor) advance(ctx context.Context, r *fleet.Rollout) error {
	nodes, err := nodesOf(ctx, e.Store, r)
	if err != nil {
		return err
	}
	now := e.now()
	steps := Plan(now, r, nodes)
	if len(steps) == 0 {
		return nil
	}
	for some := range slices.Chunk(steps, stepsAtOnce) {
		var updated time.Time
		err := e.Store.Update(ctx, func(tx store.Tx) (err error) { updated, err = apply(ctx, tx, r, some, now); return err })
		if err != nil {
			return err
		}
		r.Updated = updated
		for _, s := range some {
			e.log().Info("rollout step", "rollout", r.ID, "step", string(s.Kind), "node", s.Node, "generation", s.Generation, "reason", s.Reason)
		}
	}
	return nil
}

// stepsAtOnce bounds the steps of one update.
const stepsAtOnce = 100

// nodesOf returns those nodes of a rollout that are still there. They must
// not be changed.
func nodesOf(ctx context.Context, rd store.Reader, r *fleet.Rollout) ([]*fleet.Node, error) {
	names := make([]string, len(r.Nodes))
	for i := range r.Nodes {
		names[i] = r.Nodes[i].Node
	}
	return store.Peek(ctx, rd, names)
}

// apply does steps that were planned for the rollout as planned, and returns
// its new change time.
func apply(ctx context.Context, tx store.Tx, planned *fleet.Rollout, steps []Step, now time.Time) (time.Time, error) {
	r, err := tx.Rollout(ctx, planned.ID)
	if err != nil {
		return time.Time{}, err
	}
	if !r.Updated.Equal(planned.Updated) {
		return time.Time{}, errStale
	}
	label := label(ctx, tx, r.Image)
	moves := index(r)
	for _, s := range steps {
		m := moves[s.Node]
		if err := applyToNode(ctx, tx, r, m, s, now); err != nil {
			return time.Time{}, err
		}
		applyTo(r, m, s, now)
		if s.Kind == Finish {
			if err := adopt(ctx, tx, r); err != nil {
				return time.Time{}, err
			}
		}
		ev := event(r, s, label, now)
		if err := tx.AppendEvent(ctx, &ev); err != nil {
			return time.Time{}, err
		}
	}
	touch(r, now)
	return r.Updated, tx.PutRollout(ctx, r)
}

func applyToNode(ctx context.Context, tx store.Tx, r *fleet.Rollout, m *fleet.Move, s Step, now time.Time) error {
	if s.Kind != Start && s.Kind != Return && s.Kind != Fail {
		return nil
	}
	n, err := tx.Node(ctx, s.Node)
	if errors.Is(err, store.ErrNotFound) && s.Kind == Fail {
		return nil // removed: nothing to set back
	}
	if err != nil {
		return err
	}
	if !applyNode(r, m, n, s, now) {
		return errStale
	}
	return tx.PutNode(ctx, n)
}

// adopt makes the image the one that fresh nodes of the pools install, but
// for pools of which only a part was moved.
func adopt(ctx context.Context, tx store.Tx, r *fleet.Rollout) error {
	for _, s := range r.Policy.Stages {
		if !s.IsPool() {
			continue
		}
		p, err := tx.Pool(ctx, s.Pool)
		if errors.Is(err, store.ErrNotFound) {
			p, err = &fleet.Pool{Name: s.Pool}, nil
		}
		if err != nil {
			return err
		}
		p.Image = r.Image
		if err := tx.PutPool(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// label returns "name version (digest)" of an image for people.
func label(ctx context.Context, tx store.Reader, digest string) string {
	if i, err := tx.Image(ctx, digest); err == nil {
		return i.Name + " " + i.Version + " (" + Short(digest) + ")"
	}
	return "image " + Short(digest)
}

// touch gives a rollout a change time that differs from the one before, also
// when the clock stands still or goes back.
func touch(r *fleet.Rollout, now time.Time) {
	if !now.After(r.Updated) {
		now = r.Updated.Add(1)
	}
	r.Updated = now
}

func (e *Executor) now() time.Time {
	if e.Now != nil {
		return e.Now()
	}
	return time.Now()
}

func (e *Executor) log() *slog.Logger {
	if e.Log != nil {
		return e.Log
	}
	return slog.New(slog.DiscardHandler)
}
