package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/tpm/softtpm"
)

// fleetSim is a simulation under way.
type fleetSim struct {
	o     options
	p     *child
	op    *api.Client
	own   *scraper
	nodes []*simNode
	boots []booted
	lat   latencies
	hand  int                         // nodes of canary that an operator moved himself
	away  map[string]*[2]atomic.Int64 // by pool: nodes that do not serve now, and the most there were
}

func newFleetSim(o options, p *child, token string, boots []booted) (*fleetSim, error) {
	ca, err := os.ReadFile(filepath.Join(o.dir, "ca.pem"))
	if err != nil {
		return nil, err
	}
	url := "https://" + p.address
	f := &fleetSim{o: o, p: p, boots: boots, away: map[string]*[2]atomic.Int64{"canary": {}, "rack": {}}}
	if f.op, err = api.NewClient(url, ca, token); err != nil {
		return nil, err
	}
	if f.own, err = newScraper(o.dir, url, token); err != nil {
		return nil, err
	}
	for i := range o.nodes {
		pool := "rack"
		if i < max(1, o.nodes/100) {
			pool = "canary"
		}
		fails := pool == "rack" && float64(i%1000) < 10*o.failing
		n, err := newSimNode(i, pool, fails, url, ca)
		if err != nil {
			return nil, err
		}
		if len(boots) > 0 {
			n.boot = &boots[i%len(boots)]
			if n.tpm, err = softtpm.New(); err != nil {
				return nil, err
			}
		}
		n.failsBad = pool == "rack" && i%10 == 0
		n.away, n.most = &f.away[pool][0], &f.away[pool][1]
		f.nodes = append(f.nodes, n)
	}
	return f, nil
}

// play is the whole simulation.
func (f *fleetSim) play(ctx context.Context) error {
	began := time.Now()
	if err := f.each(ctx, f.addNode); err != nil {
		return fmt.Errorf("adding nodes: %w", err)
	}
	f.say("added %d nodes in %s", len(f.nodes), since(began))
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	var all sync.WaitGroup
	began = time.Now()
	err := f.each(ctx, func(ectx context.Context, n *simNode) error {
		if err := f.join(ectx, n); err != nil {
			return err
		}
		all.Go(func() { f.live(ctx, n, time.Duration(n.rnd.Int64N(int64(f.o.interval))), stop) })
		return nil
	})
	if err == nil {
		f.say("enrolled them in %s", since(began))
		err = f.acts(ctx)
	} else {
		err = fmt.Errorf("enrolling: %w", err)
	}
	if err == nil {
		err = context.Cause(ctx)
	}
	stop(nil)
	all.Wait()
	return err
}

func (f *fleetSim) acts(ctx context.Context) error {
	if err := pause(ctx, f.o.interval); err != nil {
		return err
	}
	f.lat.reset()
	own, err := f.own.histogram(ctx)
	if err != nil {
		return err
	}
	cpu, rss0 := usage(f.p.cmd.Process.Pid)
	size0 := f.dbSize()
	if err := pause(ctx, f.o.run); err != nil {
		return err
	}
	if err := f.tell(ctx, "heartbeats", own); err != nil {
		return err
	}
	after, rss := usage(f.p.cmd.Process.Pid)
	f.say("server: %.0f %% of one core, %d MiB resident (%+d since), database %d MiB (%+d KiB since)", 100*(after-cpu).Seconds()/f.o.run.Seconds(),
		rss>>20, (rss-rss0)>>20, f.dbSize()>>20, (f.dbSize()-size0)>>10)
	for _, part := range []struct {
		do   bool
		what func(context.Context) error
	}{{f.o.attest > 0, f.attestAll}, {f.o.rollout, f.rollOut}, {f.o.halt, f.haltAndReturn}, {f.o.days > 0, f.days}} {
		if !part.do {
			continue
		}
		if own, err = f.own.histogram(ctx); err != nil {
			return err
		}
		f.lat.reset()
		f.p.profile()
		err := part.what(ctx)
		f.p.profile()
		if err != nil {
			return err
		}
		if err := f.tell(ctx, "heartbeats meanwhile", own); err != nil {
			return err
		}
		_, rss = usage(f.p.cmd.Process.Pid)
		f.say("server: %d MiB resident, database %d MiB", rss>>20, f.dbSize()>>20)
	}
	return nil
}

// tell says how long heartbeats took, as the nodes saw it and as the server.
func (f *fleetSim) tell(ctx context.Context, what string, old histogram) error {
	f.say("%s: %s", what, f.lat.String())
	now, err := f.own.histogram(ctx)
	if err == nil {
		f.say("  as the server counts: %s", now.since(old))
	}
	return err
}

func (f *fleetSim) dbSize() (n int64) {
	if f.p.pg != nil {
		return f.p.pg.Size()
	}
	for _, s := range []string{"", "-wal"} {
		if st, err := os.Stat(filepath.Join(f.o.dir, "fleet.db"+s)); err == nil {
			n += st.Size()
		}
	}
	return n
}

func (f *fleetSim) addNode(ctx context.Context, n *simNode) error {
	_, err := f.op.AddNode(ctx, api.NodeRequest{Name: n.name, Pool: n.pool, MACs: []string{string(n.mac)}})
	return err
}

// join enrols a node and sends its first heartbeat, the one with the
// inventory, over the connection that it keeps.
func (f *fleetSim) join(ctx context.Context, n *simNode) error {
	if err := n.join(ctx); err != nil {
		return err
	}
	_, err := n.beat(ctx, true)
	return err
}

// each does something to all nodes, 32 at a time.
func (f *fleetSim) each(ctx context.Context, do func(context.Context, *simNode) error) error {
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(32)
	for _, n := range f.nodes {
		g.Go(func() error { return do(ctx, n) })
	}
	return g.Wait()
}

// live sends a node's heartbeats until ctx ends. An unreachable server is
// tried again; a broken promise ends the simulation.
func (f *fleetSim) live(ctx context.Context, n *simNode, offset time.Duration, stop context.CancelCauseFunc) {
	next := time.Now().Add(offset)
	for {
		if pause(ctx, time.Until(next)) != nil {
			return
		}
		took, err := n.beat(ctx, false)
		if ctx.Err() != nil {
			return
		}
		f.lat.add(took, err)
		if errors.Is(err, errBackwards) || api.Unauthorized(err) {
			stop(err)
			return
		}
		next = next.Add(f.o.interval)
	}
}

func (f *fleetSim) policy(budget int) fleet.Policy {
	return fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "canary"}, {Pool: "rack"}},
		MaxUnavailable: fleet.Amount{Percent: f.o.atOnce}, FailureBudget: fleet.Amount{Percent: budget}, Timeout: time.Hour, FlipBack: true}
}

// rollOut moves all nodes and checks at each look what was promised.
func (f *fleetSim) rollOut(ctx context.Context) error {
	p := f.policy(5)
	began := time.Now()
	draft, err := f.op.StartRollout(ctx, api.RolloutRequest{Image: newImage, Policy: p, DryRun: true})
	if err != nil {
		return err
	}
	f.say("rollout of %d nodes planned in %s", len(draft.Nodes), since(began))
	r, err := f.op.StartRollout(ctx, api.RolloutRequest{Image: newImage, Policy: p})
	if err != nil {
		return err
	}
	began = time.Now()
	killed := f.o.kill == 0
	r, err = f.follow(ctx, r, func(r *fleet.Rollout) (bool, error) {
		if !killed && time.Since(began) > f.o.kill {
			killed = true
			down := time.Now()
			f.p.kill()
			if err := f.p.start(ctx); err != nil {
				return false, err
			}
			f.say("server killed, and back after %s", since(down))
		}
		return r.State == fleet.RolloutRunning, nil
	})
	if err != nil {
		return err
	}
	return f.ended(ctx, r, began)
}

// follow looks at a rollout each second, and at what was promised, while
// goesOn says so.
func (f *fleetSim) follow(ctx context.Context, r *fleet.Rollout, goesOn func(*fleet.Rollout) (bool, error)) (*fleet.Rollout, error) {
	looks := 0
	for {
		if err := pause(ctx, time.Second); err != nil {
			return nil, context.Cause(ctx)
		}
		on, err := goesOn(r)
		if err != nil {
			return nil, err
		}
		if !on {
			f.say("promises held at %d looks; most nodes away at once: %d of canary, %d of rack", looks, f.away["canary"][1].Load(), f.away["rack"][1].Load())
			return r, nil
		}
		got, err := f.op.Rollout(ctx, r.ID)
		if errors.Is(err, api.ErrUnreachable) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if err := errors.Join(check(r, got), f.checkAway(got)); err != nil {
			return nil, err
		}
		r = got
		looks++
	}
}

// checkAway holds what the nodes know themselves against the policy.
func (f *fleetSim) checkAway(r *fleet.Rollout) error {
	size := map[string]int{}
	for _, n := range f.nodes {
		size[n.pool]++
	}
	for pool, away := range f.away {
		limit := r.Policy.MaxUnavailable.AtLeastOne(size[pool])
		if pool == "canary" {
			limit += f.hand
		}
		if int(away[1].Load()) > limit {
			return fmt.Errorf("%d nodes of pool %s were away at once, allowed are %d", away[1].Load(), pool, limit)
		}
	}
	return nil
}

// check holds one look at a rollout against the one before.
func check(old, r *fleet.Rollout) error {
	size, moving := map[int]int{}, map[int]int{}
	for i, m := range r.Nodes {
		size[m.Stage]++
		if m.State == fleet.MoveMoving {
			moving[m.Stage]++
		}
		if m.Stage > r.Stage && m.State != fleet.MoveWaiting {
			return fmt.Errorf("node %s of stage %d is %s in stage %d", m.Node, m.Stage, m.State, r.Stage)
		}
		if was := old.Nodes[i].State; m.State == fleet.MoveWaiting && was != fleet.MoveWaiting {
			return fmt.Errorf("node %s was %s and waits again", m.Node, was)
		}
	}
	for s, n := range moving {
		if limit := r.Policy.MaxUnavailable.AtLeastOne(size[s]); n > limit {
			return fmt.Errorf("%d nodes of stage %d are on the move, allowed are %d", n, s, limit)
		}
	}
	return nil
}

// ended checks where every node is.
func (f *fleetSim) ended(ctx context.Context, r *fleet.Rollout, began time.Time) error {
	states := map[fleet.MoveState]int{}
	for _, m := range r.Nodes {
		states[m.State]++
	}
	f.say("rollout %s after %s: %v %s", r.State, since(began), states, r.Reason)
	nodes, err := f.op.Nodes(ctx)
	if err != nil {
		return err
	}
	if len(nodes) != len(f.nodes) || r.State != fleet.RolloutDone {
		return fmt.Errorf("%d of %d nodes are left, the rollout is %s", len(nodes), len(f.nodes), r.State)
	}
	for i, n := range nodes {
		want := newImage
		if f.nodes[i].fails {
			want = oldImage
		}
		if got := n.Reported.BootedImage(); got != want {
			return fmt.Errorf("node %s runs %s, want %s", n.Name, got, want)
		}
	}
	f.say("every node runs what it should")
	return nil
}

func (f *fleetSim) say(format string, a ...any) { fmt.Printf(format+"\n", a...) }

func since(t time.Time) time.Duration { return time.Since(t).Round(time.Millisecond) }

// pause waits, or returns why not.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
