package rollout

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/mem"
)

// storm is a small fleet in which everything goes wrong: machines fail, die
// and flap, reports are lost, late and repeated, the clock jumps, hooks fail,
// operators meddle, servers are killed between any two steps and two of them
// act at once. The promises are those of docs/operating.md, by number.
type storm struct {
	t    *testing.T
	seed uint64
	rnd  *rand.Rand
	s    store.Store
	now  time.Time
	ms   map[string]*machine
	r    *fleet.Rollout
	gens map[string]uint64

	mu    sync.Mutex
	held  map[string]bool // by the scheduler
	calm  bool            // nobody meddles any more, nothing new breaks
	stale []stalePlan
	count map[string]int // what happened, over all seeds
}

type stalePlan struct {
	r     *fleet.Rollout
	steps []Step
}

func newStorm(t *testing.T, seed uint64, count map[string]int) *storm {
	w := &storm{t: t, seed: seed, rnd: rand.New(rand.NewPCG(seed, 2)), s: mem.New(), now: t0, ms: map[string]*machine{},
		gens: map[string]uint64{}, held: map[string]bool{}, count: count}
	w.update(func(tx store.Tx) error {
		err := errors.Join(tx.PutImage(ctx0, &fleet.Image{Digest: oldImage}), tx.PutImage(ctx0, &fleet.Image{Digest: newImage}))
		for i := range 4 + w.rnd.IntN(10) {
			n := node(fmt.Sprintf("n%02d", i))
			n.Pool = []string{"canary", "rack", "spare"}[min(2, i*3/(4+i))]
			n.Domain = []string{"", "x", "y", "z"}[w.rnd.IntN(4)]
			w.ms[n.Name] = &machine{truth: clone(*n.Reported), mode: []string{"good", "good", "good", "good", "good", "bad", "silent"}[w.rnd.IntN(7)]}
			err = errors.Join(err, tx.CreateNode(ctx0, n))
		}
		return err
	})
	return w
}

var ctx0 = context.Background()

func (w *storm) fatalf(format string, a ...any) {
	w.t.Helper()
	w.t.Fatalf("seed %d at %s: %s\n%+v", w.seed, w.now.Format(time.TimeOnly), fmt.Sprintf(format, a...), w.r)
}

func (w *storm) update(fn func(tx store.Tx) error) {
	w.t.Helper()
	if err := w.s.Update(ctx0, fn); err != nil {
		w.fatalf("%v", err)
	}
}

func (w *storm) policy() fleet.Policy {
	p := fleet.Policy{
		Stages: []fleet.RolloutStage{{Pool: "canary"}, {Pool: "rack"}}, MaxUnavailable: fleet.Amount{Nodes: 1 + w.rnd.IntN(3)},
		FailureBudget: fleet.Amount{Percent: w.rnd.IntN(50)}, Bake: time.Duration(w.rnd.IntN(3)) * time.Minute,
		Timeout: 10 * time.Minute, FlipBack: w.rnd.IntN(2) == 0, Retry: w.rnd.IntN(4) == 0, ByDomain: w.rnd.IntN(3) == 0,
	}
	if w.rnd.IntN(3) == 0 {
		p.MaxUnavailable = fleet.Amount{Percent: 1 + w.rnd.IntN(60)}
	}
	if w.rnd.IntN(2) == 0 {
		p.Drain, p.DrainWait = "test", time.Duration(1+w.rnd.IntN(15))*time.Minute
	}
	if w.rnd.IntN(3) == 0 {
		at := 12*60 + w.rnd.IntN(30)
		x, err := fleet.ParseWindow(fmt.Sprintf("%02d:%02d-%02d:%02d UTC", at/60, at%60, (at+30)/60, (at+30)%60))
		must(w.t, err)
		p.Windows = []fleet.Window{x}
	}
	return p
}

func (w *storm) Drain(_ context.Context, c DrainCall) (bool, string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.held[c.Node] = true
	switch x := w.rnd.IntN(4); {
	case x == 0 && !w.calm:
		return false, "", errors.New("no answer")
	case x < 3:
		return false, "jobs", nil
	}
	return true, "", nil
}

func (w *storm) Undrain(_ context.Context, c DrainCall) (bool, string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if !w.calm && w.rnd.IntN(3) == 0 {
		return false, "", errors.New("no answer")
	}
	delete(w.held, c.Node)
	return true, "", nil
}

// machines lets each act and report.
func (w *storm) machines() {
	nodes, err := w.s.Nodes(ctx0)
	must(w.t, err)
	for _, n := range nodes {
		m := w.ms[n.Name]
		was := m.truth.Healthy
		m.act(n.Desired)
		if was && m.busy > 0 && n.Desired.Rollout != "" && w.r.Policy.Drain != "" && !w.held[n.Name] {
			w.fatalf("9: node %s moves while its scheduler uses it", n.Name)
		}
		if m.busy == 0 && !m.dead {
			m.truth.Healthy = w.calm || w.rnd.IntN(30) > 0
		}
		if m.dead || !w.calm && w.rnd.IntN(8) == 0 {
			continue // lost
		}
		m.sent = append(m.sent, clone(m.truth))
		rep := m.sent[len(m.sent)-1]
		if len(m.sent) > 1 && !w.calm && w.rnd.IntN(15) == 0 {
			rep = m.sent[len(m.sent)-2]
		}
		_, err := store.UpdateNode(ctx0, w.s, n.Name, func(n *fleet.Node) error {
			r := clone(rep)
			n.Reported, n.LastSeen = &r, w.now
			return nil
		})
		must(w.t, err)
	}
}

// operator does something to the fleet that the rollout did not ask for.
func (w *storm) operator() {
	if w.calm || w.rnd.IntN(8) > 0 {
		return
	}
	nodes, err := w.s.Nodes(ctx0)
	must(w.t, err)
	n := nodes[w.rnd.IntN(len(nodes))]
	what := []string{"cordon", "uncordon", "flip", "unban", "pause", "resume", "abort", "remove"}[min(7, w.rnd.IntN(9))]
	w.count[what]++
	switch what {
	case "cordon":
		n.State = fleet.NodeCordoned
	case "uncordon":
		n.State = fleet.NodeApproved
	case "flip":
		Want(n, fleet.Desired{Image: []string{oldImage, newImage}[w.rnd.IntN(2)], Reason: "an operator"})
	case "unban":
		Unban(n, "")
	case "remove":
		if len(nodes) > 3 && w.rnd.IntN(3) == 0 {
			w.update(func(tx store.Tx) error { return tx.DeleteNode(ctx0, n.Name) })
		}
		return
	case "pause":
		_, err = Pause(ctx0, w.s, w.r.ID, "operator:test", "", w.now)
	case "resume":
		_, err = Resume(ctx0, w.s, w.r.ID, "operator:test", w.now)
	case "abort":
		if w.rnd.IntN(4) == 0 {
			_, err = Abort(ctx0, w.s, w.r.ID, "operator:test", "", w.rnd.IntN(2) == 0, w.now)
		}
	}
	var no *Refusal
	if err != nil && !errors.As(err, &no) {
		w.fatalf("%s: %v", what, err)
	}
	w.update(func(tx store.Tx) error { return tx.PutNode(ctx0, n) })
}

func (w *storm) tick() {
	w.now = w.now.Add(time.Duration(5+w.rnd.IntN(40)) * time.Second)
	if !w.calm && w.rnd.IntN(60) == 0 {
		w.now = w.now.Add(time.Duration(w.rnd.IntN(40)-20) * time.Minute) // the clock jumps
	}
	w.machines()
	w.operator()
	for range 1 + w.rnd.IntN(3) {
		w.pass()
	}
}

// pass is one pass of an executor that is new each time, as after a kill,
// and at times is killed in the middle or was too slow.
func (w *storm) pass() {
	before, nodes := w.state()
	steps := Plan(w.now, before, nodes)
	some := steps
	if len(steps) > 0 && !w.calm && w.rnd.IntN(4) == 0 {
		some = steps[:w.rnd.IntN(len(steps))]
		w.count["killed"]++
	}
	if len(some) > 0 {
		w.apply(before, some, nil)
	}
	w.check(before, nodes)
	if len(some) > 0 { // 8: once more, or by another server
		w.apply(before, some, errStale)
	}
	for _, p := range w.stale {
		if w.r.Updated.Equal(p.r.Updated) {
			continue
		}
		w.apply(p.r, p.steps, errStale)
	}
	w.stale = w.stale[:0]
	if now, nodes := w.state(); w.rnd.IntN(3) == 0 {
		if steps := Plan(w.now, now, nodes); len(steps) > 0 {
			w.stale = append(w.stale, stalePlan{now, steps})
		}
	}
	ex := &Executor{Store: w.s, Now: func() time.Time { return w.now }, Drainer: w}
	must(w.t, ex.CallHooks(ctx0))
	ex.calls.all.Wait()
	w.r, _ = w.state()
}

func (w *storm) state() (*fleet.Rollout, []*fleet.Node) {
	r, err := w.s.Rollout(ctx0, w.r.ID)
	must(w.t, err)
	nodes, err := nodesOf(ctx0, w.s, r)
	must(w.t, err)
	return r, nodes
}

func (w *storm) apply(planned *fleet.Rollout, steps []Step, want error) {
	w.t.Helper()
	err := w.s.Update(ctx0, func(tx store.Tx) error { _, err := apply(ctx0, tx, planned, steps, w.now); return err })
	if !errors.Is(err, want) {
		w.fatalf("8: applying %+v: %v; want %v", steps, err, want)
	}
}

// check holds one pass against the promises.
func (w *storm) check(before *fleet.Rollout, nodesBefore []*fleet.Node) {
	w.t.Helper()
	r, nodes := w.state()
	w.r = r
	was, is := map[string]*fleet.Node{}, map[string]*fleet.Node{}
	for _, n := range nodesBefore {
		was[n.Name] = n
	}
	for _, n := range nodes {
		is[n.Name] = n
	}
	away, size, failed, began := map[int]int{}, map[int]int{}, 0, false
	for i := range r.Nodes {
		m, old := &r.Nodes[i], &before.Nodes[i]
		size[m.Stage]++
		isBusy := m.Held() || m.State == fleet.MoveDraining || m.State == fleet.MoveMoving || m.State == fleet.MoveReturning
		if isBusy && is[m.Node] != nil {
			away[m.Stage]++
		}
		if m.State == fleet.MoveFailed {
			failed++
		}
		if old.State == fleet.MoveWaiting && (m.State == fleet.MoveDraining || m.State == fleet.MoveMoving) {
			began = true
			w.began(before, m)
		}
		w.wish(r, m, old, was[m.Node], is[m.Node])
	}
	for stage, n := range away {
		if limit := r.Policy.MaxUnavailable.AtLeastOne(size[stage]); n > limit {
			w.fatalf("1: %d nodes of stage %d are away, allowed are %d", n, stage, limit)
		}
	}
	if budget := r.Policy.FailureBudget.Of(len(r.Nodes)); began && failed > budget {
		w.fatalf("4: begun with %d failures, budget %d", failed, budget)
	}
	all, err := w.s.Nodes(ctx0)
	must(w.t, err)
	for _, n := range all {
		if n.Desired.Generation < w.gens[n.Name] {
			w.fatalf("7: generation of %s went back from %d to %d", n.Name, w.gens[n.Name], n.Desired.Generation)
		}
		w.gens[n.Name] = n.Desired.Generation
		if n.Pool == "spare" && n.Desired.Rollout != "" {
			w.fatalf("5: node %s is in no stage and wants %+v", n.Name, n.Desired)
		}
	}
}

// began holds the beginning of a node's part against what must be before.
func (w *storm) began(before *fleet.Rollout, m *fleet.Move) {
	w.count["began"]++
	switch {
	case before.State != fleet.RolloutRunning:
		w.fatalf("3: node %s was begun with while the rollout was %s", m.Node, before.State)
	case !w.r.Policy.InWindow(w.now):
		w.fatalf("3: node %s was begun with outside the window", m.Node)
	case m.Stage > w.r.Stage:
		w.fatalf("2: node %s of stage %d was begun with in stage %d", m.Node, m.Stage, w.r.Stage)
	}
	for _, o := range before.Nodes {
		if o.Stage < m.Stage && (o.State == fleet.MoveMoving || o.State == fleet.MoveDraining) && w.r.Stage > before.Stage && index(w.r)[o.Node].State == o.State {
			w.fatalf("2: stage %d began although %s of stage %d is %s", m.Stage, o.Node, o.Stage, o.State)
		}
	}
}

// wish holds what became of a node's wish against what its move says.
func (w *storm) wish(r *fleet.Rollout, m, old *fleet.Move, was, is *fleet.Node) {
	if was == nil || is == nil || was.Desired == is.Desired {
		return
	}
	ours := was.Desired.Rollout == r.ID && was.Desired.Generation == old.Generation
	switch m.State {
	case fleet.MoveMoving:
		if old.State != fleet.MoveWaiting && old.State != fleet.MoveDraining || is.Desired.Image != newImage {
			w.fatalf("5: node %s, which was %s, wants %+v", m.Node, old.State, is.Desired)
		}
		if r.Policy.Drain != "" && old.Drain != fleet.DrainDone {
			w.fatalf("9: node %s is moved, drain is %q", m.Node, old.Drain)
		}
	case fleet.MoveReturning:
		w.count["returned"]++
		if !ours || is.Desired.Image != old.From {
			w.fatalf("6: node %s is flipped back to %+v, wanted %+v, move was %+v", m.Node, is.Desired, was.Desired, *old)
		}
	case fleet.MoveFailed:
		w.count["failed"]++
		if !ours || is.Desired.Image == newImage || Banned(is, newImage) == nil {
			w.fatalf("7: node %s failed, wanted %+v, wants %+v, banned %v", m.Node, was.Desired, is.Desired, is.Banned)
		}
	default:
		w.fatalf("5: node %s is %s and wants %+v instead of %+v", m.Node, m.State, is.Desired, was.Desired)
	}
}

// settle lets the storm pass, and drives the rollout to its end.
func (w *storm) settle() {
	w.calm = true
	w.update(func(tx store.Tx) error {
		nodes, err := tx.Nodes(ctx0)
		for _, n := range nodes {
			n.State = fleet.NodeApproved
			err = errors.Join(err, tx.PutNode(ctx0, n))
		}
		return err
	})
	if w.r.State == fleet.RolloutPaused {
		_, err := Resume(ctx0, w.s, w.r.ID, "operator:test", w.now)
		must(w.t, err)
		w.r, _ = w.state()
	}
	over := func() bool {
		if w.r.State == fleet.RolloutRunning {
			return false
		}
		for i := range w.r.Nodes {
			switch m := &w.r.Nodes[i]; {
			case m.State == fleet.MoveMoving, m.State == fleet.MoveReturning, m.State == fleet.MoveDraining:
				return false
			case m.Held() && !w.ms[m.Node].dead:
				return false
			}
		}
		return true
	}
	for ticks := 0; !over(); ticks++ {
		if ticks > 1500 {
			w.fatalf("10: it does not come to its end")
		}
		if !w.r.Policy.InWindow(w.now) && ticks%20 == 0 {
			w.now = w.now.Add(20 * time.Minute)
		}
		w.tick()
	}
	nodes, err := w.s.Nodes(ctx0)
	must(w.t, err)
	for _, n := range nodes {
		if w.held[n.Name] && n.Reported.Healthy && !w.ms[n.Name].dead {
			w.fatalf("9: node %s is healthy and left drained", n.Name)
		}
	}
}

func TestStorm(t *testing.T) {
	count := map[string]int{}
	for seed := range uint64(120) {
		w := newStorm(t, seed, count)
		var no *Refusal
		r, err := New(ctx0, w.s, newImage, w.policy(), "operator:test", w.now)
		if errors.As(err, &no) {
			count["refused"]++ // a domain that is too large
			continue
		}
		must(t, err)
		w.r = r
		for ticks := 0; ticks < 60 && (w.r.State == fleet.RolloutRunning || w.r.Live()); ticks++ {
			w.tick()
		}
		w.settle()
		count[string(w.r.State)]++
	}
	t.Log(count)
	for _, what := range []string{"began", "returned", "failed", "killed", "done", "halted", "aborted", "flip", "remove", "refused"} {
		if count[what] < 4 {
			t.Errorf("%q happened %d times: the storm was none (%v)", what, count[what], count)
		}
	}
}
