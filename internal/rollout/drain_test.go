package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/mem"
)

// scheduler is a Drainer that says what the test wants.
type scheduler struct {
	mu    sync.Mutex
	busy  map[string]int   // calls until a node's jobs are gone
	fails map[string]error // by node
	calls []string
	held  map[string]bool
}

func (s *scheduler) Drain(_ context.Context, c DrainCall) (bool, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, "drain "+c.Node)
	s.held[c.Node] = true
	if err := s.fails[c.Node]; err != nil {
		return false, "", err
	}
	if s.busy[c.Node] > 0 {
		s.busy[c.Node]--
		return false, fmt.Sprint(s.busy[c.Node]+1, " jobs"), nil
	}
	return true, "", nil
}

func (s *scheduler) Undrain(_ context.Context, c DrainCall) (bool, string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls = append(s.calls, "undrain "+c.Node)
	if err := s.fails["back "+c.Node]; err != nil {
		return false, "", err
	}
	delete(s.held, c.Node)
	return true, "", nil
}

// drained is a small fleet under a rollout that drains, and its clock.
type drained struct {
	t   *testing.T
	s   store.Store
	sch *scheduler
	now time.Time
	ex  *Executor
	r   *fleet.Rollout
	act map[string]*machine
}

func newDrained(t *testing.T, p fleet.Policy, names ...string) *drained {
	d := &drained{t: t, s: mem.New(), now: t0, act: map[string]*machine{},
		sch: &scheduler{busy: map[string]int{}, fails: map[string]error{}, held: map[string]bool{}}}
	must(t, d.s.Update(context.Background(), func(tx store.Tx) error {
		err := tx.PutImage(context.Background(), &fleet.Image{Digest: newImage, Name: "x", Version: "2"})
		for _, name := range names {
			n := node(name)
			d.act[name] = &machine{truth: clone(*n.Reported), mode: "good"}
			err = errors.Join(err, tx.CreateNode(context.Background(), n))
		}
		return err
	}))
	d.ex = &Executor{Store: d.s, Now: func() time.Time { return d.now }, Drainer: d.sch}
	p.Stages, p.Drain = []fleet.RolloutStage{{Pool: "rack"}}, "test"
	var err error
	d.r, err = New(context.Background(), d.s, newImage, p, "operator:test", d.now)
	must(t, err)
	return d
}

// tick lets everybody do what is due: the machines, the planner, the hooks.
func (d *drained) tick() {
	ctx := context.Background()
	d.now = d.now.Add(20 * time.Second)
	for name, m := range d.act {
		_, err := store.UpdateNode(ctx, d.s, name, func(n *fleet.Node) error {
			was := m.truth.Healthy
			m.act(n.Desired)
			d.sch.mu.Lock()
			defer d.sch.mu.Unlock()
			if was && !m.truth.Healthy && !d.sch.held[name] {
				d.t.Errorf("node %s began to move while the scheduler used it", name)
			}
			r := clone(m.truth)
			n.Reported, n.LastSeen = &r, d.now
			return nil
		})
		must(d.t, err)
	}
	must(d.t, d.ex.Pass(ctx))
	must(d.t, d.ex.CallHooks(ctx))
	d.ex.calls.all.Wait()
	r, err := d.s.Rollout(ctx, d.r.ID)
	must(d.t, err)
	d.r = r
	away := 0
	for _, m := range r.Nodes {
		if m.Held() || m.State == fleet.MoveMoving || m.State == fleet.MoveReturning {
			away++
		}
	}
	if limit := r.Policy.MaxUnavailable.AtLeastOne(len(r.Nodes)); away > limit {
		d.t.Fatalf("%d nodes are away, allowed are %d: %+v", away, limit, r.Nodes)
	}
}

func (d *drained) until(what string, cond func() bool) {
	d.t.Helper()
	for range 1000 {
		if cond() {
			return
		}
		d.tick()
	}
	d.t.Fatalf("never: %s; %+v", what, d.r)
}

func (d *drained) move(name string) fleet.Move { return *index(d.r)[name] }

func (d *drained) events(kind string) (out []string) {
	ev, err := d.s.Events(context.Background(), store.EventQuery{Kind: kind})
	must(d.t, err)
	for _, e := range ev {
		out = append(out, e.Node+": "+e.Message)
	}
	return out
}

func TestDrainBeforeMove(t *testing.T) {
	d := newDrained(t, fleet.Policy{MaxUnavailable: fleet.Amount{Nodes: 1}}, "n1", "n2")
	d.sch.busy["n1"] = 3
	d.until("done", func() bool { return !d.r.Live() })
	if d.r.State != fleet.RolloutDone {
		t.Fatalf("rollout %s: %s", d.r.State, d.r.Reason)
	}
	want := []string{"drain n1", "drain n1", "drain n1", "drain n1", "undrain n1", "drain n2", "undrain n2"}
	if diff := cmp.Diff(want, d.sch.calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

// What is not free in time is left out, given back, and named.
func TestDrainDeadline(t *testing.T) {
	d := newDrained(t, fleet.Policy{DrainWait: 10 * time.Minute}, "n1", "n2")
	d.sch.busy["n1"] = 1000
	d.until("done", func() bool { return !d.r.Live() })
	if m := d.move("n1"); m.State != fleet.MoveSkipped || !strings.Contains(m.Reason, "not drained within 10m0s: ") || !strings.HasSuffix(m.Reason, " jobs") || m.Drain != fleet.DrainIsOver {
		t.Errorf("n1: %+v", m)
	}
	if m := d.move("n2"); m.State != fleet.MoveDone || d.r.State != fleet.RolloutDone {
		t.Errorf("n2: %+v, rollout %s", m, d.r.State)
	}
	if len(d.sch.held) != 0 {
		t.Errorf("still drained: %v", d.sch.held)
	}
}

// A hook that fails holds its node, tells once, and is tried again more and
// more rarely; nothing is moved meanwhile.
func TestFailingDrainHolds(t *testing.T) {
	d := newDrained(t, fleet.Policy{DrainWait: time.Hour}, "n1", "n2")
	d.sch.fails["n1"] = errors.New("no controller")
	for range 60 {
		d.tick()
	}
	if m := d.move("n1"); m.State != fleet.MoveDraining || m.DrainNote != "no controller" {
		t.Errorf("n1: %+v", m)
	}
	if m := d.move("n2"); m.State != fleet.MoveWaiting {
		t.Errorf("n2: %+v; want it to wait for room", m)
	}
	if n := len(d.sch.calls); n < 4 || n > 12 {
		t.Errorf("called %d times in 20 minutes", n)
	}
	if got := d.events("rollout.drain-failed"); len(got) != 1 {
		t.Errorf("events %q; want one", got)
	}
	delete(d.sch.fails, "n1")
	d.until("done", func() bool { return d.r.State == fleet.RolloutDone })
}

// A node that its scheduler does not take back keeps its place, and so holds
// the rollout.
func TestFailingUndrainHolds(t *testing.T) {
	d := newDrained(t, fleet.Policy{MaxUnavailable: fleet.Amount{Nodes: 1}}, "n1", "n2")
	d.sch.fails["back n1"] = errors.New("no controller")
	for range 60 {
		d.tick()
	}
	if a, b := d.move("n1"), d.move("n2"); a.State != fleet.MoveDone || !a.Held() || a.DrainNote != "giving it back: no controller" || b.State != fleet.MoveWaiting {
		t.Errorf("n1: %+v\nn2: %+v", a, b)
	}
	delete(d.sch.fails, "back n1")
	d.until("done", func() bool { return !d.r.Live() })
	if len(d.sch.held) != 0 || d.r.State != fleet.RolloutDone {
		t.Errorf("still drained: %v; %s", d.sch.held, d.r.State)
	}
}

// Nodes are drained for the way back too; one whose jobs go on too long
// stays as it is, and the scheduler keeps one that is not well.
func TestDrainForTheWayBack(t *testing.T) {
	d := newDrained(t, fleet.Policy{MaxUnavailable: fleet.Amount{Nodes: 1}, DrainWait: 10 * time.Minute, FlipBack: true}, "n1", "n2", "n3", "n4")
	d.act["n3"].mode = "bad"
	d.until("n2 done", func() bool { return d.move("n2").State == fleet.MoveDone && d.move("n3").State == fleet.MoveDraining })
	d.sch.mu.Lock()
	d.sch.busy["n2"] = 1000
	d.sch.mu.Unlock()
	d.until("halted", func() bool { return d.r.State == fleet.RolloutHalted })
	d.until("n1 back", func() bool { return d.move("n1").State == fleet.MoveReturned })
	d.until("n2 kept", func() bool { m := d.move("n2"); return m.Back && !m.Held() })
	if m := d.move("n2"); m.State != fleet.MoveDone || !strings.Contains(m.Reason, "not flipped back, not drained within 10m0s") {
		t.Errorf("n2: %+v", m)
	}
	if m := d.move("n4"); m.State != fleet.MoveWaiting && m.State != fleet.MoveSkipped {
		t.Errorf("n4: %+v", m)
	}
	for range 5 {
		d.tick()
	}
	if len(d.sch.held) != 0 {
		t.Errorf("still drained: %v", d.sch.held)
	}
}

// An operator who stops a rollout gets his nodes back.
func TestAbortGivesBack(t *testing.T) {
	d := newDrained(t, fleet.Policy{}, "n1", "n2")
	d.sch.busy["n1"] = 1000
	d.until("draining", func() bool { return d.move("n1").DrainNote != "" })
	_, err := Abort(context.Background(), d.s, d.r.ID, "operator:test", "", false, d.now)
	must(t, err)
	d.until("over", func() bool { r, _ := d.s.Rollout(context.Background(), d.r.ID); return !r.Live() })
	if m := d.move("n1"); m.State != fleet.MoveSkipped || len(d.sch.held) != 0 {
		t.Errorf("n1: %+v; held %v", m, d.sch.held)
	}
}

// Another server that carries on calls again, and moves what was drained.
func TestDrainOverRestart(t *testing.T) {
	d := newDrained(t, fleet.Policy{}, "n1")
	d.sch.busy["n1"] = 2
	d.until("draining", func() bool { return d.move("n1").DrainNote != "" })
	d.ex = &Executor{Store: d.s, Now: d.ex.Now, Drainer: d.sch}
	d.until("done", func() bool { return !d.r.Live() })
	if d.r.State != fleet.RolloutDone || len(d.sch.held) != 0 {
		t.Errorf("rollout %s, held %v", d.r.State, d.sch.held)
	}
}
