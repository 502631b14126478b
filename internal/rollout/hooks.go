package rollout

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

// Drainer speaks with the schedulers of jobs. A call may be repeated, also
// one that was answered: the server may have been killed in between.
type Drainer interface {
	// Drain asks that a node gets no more jobs, and reports whether it runs
	// none. If not it is called again until the deadline. note is for people.
	Drain(ctx context.Context, c DrainCall) (done bool, note string, err error)
	// Undrain gives a node back, and reports whether that is done.
	Undrain(ctx context.Context, c DrainCall) (done bool, note string, err error)
}

// DrainCall says what a Drainer is called for.
type DrainCall struct {
	Hook     string    // its name in the server's configuration
	Node     string    //
	Rollout  string    //
	Image    string    // digest that the rollout brings
	Deadline time.Time // Drain: what still runs then keeps the node from being moved
}

// How often a hook is called again for a node: while its jobs go on, and
// after a failure, which is waited for longer each time.
const (
	drainEvery  = 15 * time.Second
	drainLater  = 30 * time.Second
	drainLatest = 5 * time.Minute
	drainAtOnce = 16
)

// callers is what is under way. It is in memory only: another server, or the
// next start, calls again.
type callers struct {
	mu   sync.Mutex
	by   map[string]*caller // by rollout and node
	room chan struct{}
	all  sync.WaitGroup
}

type caller struct {
	isBusy bool
	next   time.Time
	failed int
}

// CallHooks calls the hooks that are due, without waiting for them.
func (e *Executor) CallHooks(ctx context.Context) error {
	if e.Drainer == nil {
		return nil
	}
	rs, err := e.Store.LiveRollouts(ctx)
	if err != nil {
		return err
	}
	for _, r := range rs {
		if r.Policy.Drain == "" {
			continue
		}
		nodes, err := nodesOf(ctx, e.Store, r)
		if err != nil {
			return err
		}
		by := map[string]*fleet.Node{}
		for _, n := range nodes {
			by[n.Name] = n
		}
		for i := range r.Nodes {
			if m := r.Nodes[i]; m.State == fleet.MoveDraining && m.Drain == fleet.DrainAsked {
				e.launch(ctx, r, m, func() { e.drain(ctx, r, m) })
			}
		}
		for _, m := range toUndrain(r, by) {
			if m := *m; by[m.Node] == nil || inOther(rs, r, m.Node) {
				e.settle(ctx, r, m, fleet.DrainIsOver, "left to who has it now", "")
			} else {
				e.launch(ctx, r, m, func() { e.undrain(ctx, r, m) })
			}
		}
	}
	return nil
}

// inOther reports whether another rollout moves a node now: it is its to
// give back.
func inOther(rs []*fleet.Rollout, r *fleet.Rollout, node string) bool {
	for _, o := range rs {
		if o.ID == r.ID {
			continue
		}
		for i := range o.Nodes {
			if m := &o.Nodes[i]; m.Node == node && (m.State == fleet.MoveDraining || m.State == fleet.MoveMoving || m.State == fleet.MoveReturning) {
				return true
			}
		}
	}
	return false
}

// launch runs a call if it is due and there is room.
func (e *Executor) launch(ctx context.Context, r *fleet.Rollout, m fleet.Move, call func()) {
	c := &e.calls
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.by == nil {
		c.by, c.room = map[string]*caller{}, make(chan struct{}, drainAtOnce)
	}
	key := r.ID + " " + m.Node
	k := c.by[key]
	if k == nil {
		k = &caller{}
		c.by[key] = k
	}
	if k.isBusy || e.now().Before(k.next) {
		return
	}
	select {
	case c.room <- struct{}{}:
	default:
		return // in a later pass
	}
	k.isBusy = true
	c.all.Go(func() {
		defer func() { <-c.room }()
		call()
		c.mu.Lock()
		defer c.mu.Unlock()
		k.isBusy = false
	})
}

// again says when a hook is to be called next.
func (e *Executor) again(r *fleet.Rollout, m fleet.Move, done bool, err error) {
	c := &e.calls
	c.mu.Lock()
	defer c.mu.Unlock()
	key := r.ID + " " + m.Node
	k := c.by[key]
	switch {
	case err != nil:
		k.next = e.now().Add(min(drainLater<<min(k.failed, 10), drainLatest))
		k.failed++
	case done:
		k.next, k.failed = time.Time{}, 0
	default:
		k.next, k.failed = e.now().Add(drainEvery), 0
	}
}

func (e *Executor) call(r *fleet.Rollout, m fleet.Move) DrainCall {
	p := planner{r: r}
	return DrainCall{Hook: r.Policy.Drain, Node: m.Node, Rollout: r.ID, Image: r.Image, Deadline: m.DrainFrom.Add(p.drainWait())}
}

func (e *Executor) drain(ctx context.Context, r *fleet.Rollout, m fleet.Move) {
	done, note, err := e.Drainer.Drain(ctx, e.call(r, m))
	e.again(r, m, done, err)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		e.settle(ctx, r, m, fleet.DrainAsked, err.Error(), "rollout.drain-failed")
	case done:
		e.settle(ctx, r, m, fleet.DrainDone, note, "rollout.node-drained")
	default:
		e.settle(ctx, r, m, fleet.DrainAsked, note, "")
	}
}

func (e *Executor) undrain(ctx context.Context, r *fleet.Rollout, m fleet.Move) {
	done, note, err := e.Drainer.Undrain(ctx, e.call(r, m))
	e.again(r, m, done, err)
	switch {
	case ctx.Err() != nil:
	case err != nil:
		e.settle(ctx, r, m, m.Drain, "giving it back: "+err.Error(), "rollout.undrain-failed")
	case done:
		e.settle(ctx, r, m, fleet.DrainIsOver, note, "rollout.node-undrained")
	default:
		e.settle(ctx, r, m, m.Drain, note, "")
	}
}

// settle writes what became of a call, unless the move has gone on since.
// kind is that of the event, "" for none; nothing new is not written.
func (e *Executor) settle(ctx context.Context, r *fleet.Rollout, was fleet.Move, to fleet.DrainState, note, kind string) {
	now := e.now()
	if was.Drain == to && was.DrainNote == note {
		return
	}
	err := e.Store.Update(ctx, func(tx store.Tx) error {
		r, err := tx.Rollout(ctx, r.ID)
		if err != nil {
			return err
		}
		m := index(r)[was.Node]
		if m == nil || m.State != was.State || m.Drain != was.Drain || !m.DrainFrom.Equal(was.DrainFrom) {
			return errStale
		}
		m.Drain, m.DrainNote = to, note
		touch(r, now)
		if kind != "" {
			ev := fleet.Event{At: now, Actor: "rollout:" + r.ID, Node: m.Node, Kind: kind, Message: note}
			if err := tx.AppendEvent(ctx, &ev); err != nil {
				return err
			}
		}
		return tx.PutRollout(ctx, r)
	})
	if err != nil && !errors.Is(err, errStale) && ctx.Err() == nil {
		e.log().Error("keeping what a hook said failed; it will be called again", "rollout", r.ID, "node", was.Node, "err", err)
	}
}
