package rollout

import (
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/mem"
)

// machine is a node of the simulation: it acts on its wishes as nodeagent
// does, takes its time, and fails the way it was told to.
type machine struct {
	truth fleet.Report // what is; the server sees reports of it
	sent  []fleet.Report
	busy  int    // ticks until the present act ends
	mode  string // "good", "bad" (falls back), "silent" (dies while moving)
	dead  bool
}

func (m *machine) act(d fleet.Desired) {
	r := &m.truth
	if m.dead {
		return
	}
	if m.busy > 0 {
		if m.busy--; m.busy == 0 {
			m.finish()
		}
		return
	}
	if d.Generation <= r.Acted || d.Image == "" {
		return
	}
	r.Acted = d.Generation
	if d.Image == r.BootedImage() {
		return
	}
	if m.mode == "silent" {
		m.dead = true
		return
	}
	other := r.Booted.Other()
	r.Slots[other.Index()] = fleet.SlotReport{Slot: other, State: fleet.SlotTrying, Image: d.Image, Generation: d.Generation}
	r.Healthy, m.busy = false, 2
}

func (m *machine) finish() {
	r := &m.truth
	for i := range r.Slots {
		s := &r.Slots[i]
		if s.State != fleet.SlotTrying {
			continue
		}
		if m.mode == "bad" && s.Image == newImage {
			s.State, s.Reason = fleet.SlotBad, "check x: failed"
		} else {
			s.State, r.Booted = fleet.SlotGood, s.Slot
		}
	}
	r.Healthy = true
}

func clone(r fleet.Report) fleet.Report {
	r.Slots = append([]fleet.SlotReport(nil), r.Slots...)
	return r
}

type world struct {
	t        *testing.T
	rnd      *rand.Rand
	s        store.Store
	now      time.Time
	machines map[string]*machine
	lastGen  map[string]uint64
}

func newWorld(t *testing.T, seed uint64) *world {
	w := &world{t: t, rnd: rand.New(rand.NewPCG(seed, 1)), s: mem.New(), now: t0, machines: map[string]*machine{}, lastGen: map[string]uint64{}}
	must(t, w.s.Update(context.Background(), func(tx store.Tx) error {
		for _, d := range []string{oldImage, newImage} {
			if err := tx.PutImage(context.Background(), &fleet.Image{Digest: d, Name: "x", Version: d[70:]}); err != nil {
				return err
			}
		}
		for i := range 3 + w.rnd.IntN(12) {
			n := node(fmt.Sprintf("n%02d", i))
			n.Pool = []string{"canary", "rack", "spare"}[min(2, i*3/(3+i))]
			if i > 1 && w.rnd.IntN(8) == 0 {
				n.State = fleet.NodeCordoned
			}
			m := &machine{truth: clone(*n.Reported), mode: "good"}
			switch w.rnd.IntN(12) {
			case 0:
				m.mode = "bad"
			case 1:
				m.mode = "silent"
			}
			w.machines[n.Name] = m
			if err := tx.CreateNode(context.Background(), n); err != nil {
				return err
			}
		}
		return nil
	}))
	return w
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// tick lets every machine act, report (late, twice or out of order at
// times), and the executor pass; the executor is made anew each time, as
// after a kill.
func (w *world) tick() {
	ctx := context.Background()
	w.now = w.now.Add(20 * time.Second)
	if w.rnd.IntN(50) == 0 {
		w.now = w.now.Add(-time.Minute) // the clock is set back
	}
	nodes, err := w.s.Nodes(ctx)
	must(w.t, err)
	for _, n := range nodes {
		m := w.machines[n.Name]
		m.act(n.Desired)
		if m.dead || w.rnd.IntN(10) == 0 {
			continue
		}
		m.sent = append(m.sent, clone(m.truth))
		rep := m.sent[len(m.sent)-1]
		if len(m.sent) > 1 && w.rnd.IntN(20) == 0 {
			rep = m.sent[len(m.sent)-2] // an old one comes again
		}
		_, err := store.UpdateNode(ctx, w.s, n.Name, func(n *fleet.Node) error {
			r := clone(rep)
			n.Reported, n.LastSeen = &r, w.now
			return nil
		})
		must(w.t, err)
	}
	ex := &Executor{Store: w.s, Now: func() time.Time { return w.now }}
	must(w.t, ex.Pass(ctx))
	if w.rnd.IntN(4) == 0 {
		must(w.t, ex.Pass(ctx)) // a second executor, or the same one again
		must(w.t, ex.Pass(ctx))
	}
}

func (w *world) dump() string {
	nodes, _ := w.s.Nodes(context.Background())
	rs, _ := w.s.Rollouts(context.Background())
	b, _ := json.Marshal([]any{nodes, rs})
	return string(b)
}

// check asserts the promises of the package comment.
func (w *world) check(prev, r *fleet.Rollout) {
	t := w.t
	nodes, err := w.s.Nodes(context.Background())
	must(t, err)
	inRollout := index(r)
	moving, size := map[int]int{}, map[int]int{}
	failed := 0
	for i, m := range r.Nodes {
		size[m.Stage]++
		switch m.State {
		case fleet.MoveMoving, fleet.MoveReturning:
			moving[m.Stage]++
		case fleet.MoveFailed:
			failed++
		}
		was := prev.Nodes[i]
		if was.State == fleet.MoveWaiting && m.State != fleet.MoveWaiting && m.State != fleet.MoveSkipped {
			if prev.State != fleet.RolloutRunning {
				t.Fatalf("node %s was started although the rollout was %s", m.Node, prev.State)
			}
			if m.Stage > r.Stage {
				t.Fatalf("node %s of stage %d was started in stage %d", m.Node, m.Stage, r.Stage)
			}
		}
	}
	for s, n := range moving {
		if limit := r.Policy.MaxUnavailable.AtLeastOne(size[s]); n > limit {
			t.Fatalf("stage %d: %d nodes on the move, limit %d", s, n, limit)
		}
	}
	if budget := r.Policy.FailureBudget.Of(len(r.Nodes)); failed > budget && (r.State == fleet.RolloutRunning || r.State == fleet.RolloutDone) {
		t.Fatalf("%d failures, budget %d, but the rollout is %s", failed, budget, r.State)
	}
	for _, n := range nodes {
		if n.Desired.Generation < w.lastGen[n.Name] {
			t.Fatalf("generation of %s went back from %d to %d", n.Name, w.lastGen[n.Name], n.Desired.Generation)
		}
		w.lastGen[n.Name] = n.Desired.Generation
		m := inRollout[n.Name]
		untouched := m == nil || m.State == fleet.MoveWaiting || m.State == fleet.MoveSkipped
		if untouched && n.Desired.Generation != 1 {
			t.Fatalf("node %s was touched without a part in the rollout (%+v)", n.Name, m)
		}
		wasRecalled := m != nil && strings.Contains(m.Reason, "back") // the way there was not judged
		if m != nil && m.State == fleet.MoveFailed && (n.Desired.Image == newImage || Banned(n, newImage) == nil && !wasRecalled) {
			t.Fatalf("node %s failed, but wants %s, banned %v", n.Name, n.Desired.Image, n.Banned)
		}
	}
}

// TestRandomFleets drives many small fleets with failures, lost and repeated
// reports and a jumping clock to the end.
func TestRandomFleets(t *testing.T) {
	ctx := context.Background()
	seen := map[fleet.RolloutState]int{}
	returned := 0
	for seed := range uint64(120) {
		w := newWorld(t, seed)
		p := fleet.Policy{
			Stages:         []fleet.RolloutStage{{Pool: "canary"}, {Pool: "rack"}},
			MaxUnavailable: fleet.Amount{Nodes: 1 + w.rnd.IntN(3)}, FailureBudget: fleet.Amount{Percent: w.rnd.IntN(40)},
			Bake: time.Duration(w.rnd.IntN(3)) * time.Minute, Timeout: 10 * time.Minute, FlipBack: w.rnd.IntN(2) == 0,
		}
		r, err := New(ctx, w.s, newImage, p, "operator:test", w.now)
		if err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		ticks := 0
		for ; Live(r) && ticks < 2000; ticks++ {
			prev := r
			w.tick()
			r, err = w.s.Rollout(ctx, r.ID)
			must(t, err)
			w.check(prev, r)
		}
		if r.State == fleet.RolloutRunning {
			t.Fatalf("seed %d: still running after %d ticks:\n%s", seed, ticks, w.dump())
		}
		for _, m := range r.Nodes {
			n, err := w.s.Node(ctx, m.Node)
			must(t, err)
			mode := w.machines[m.Node].mode
			if m.State == fleet.MoveDone && (mode != "good" || !Runs(n, newImage, m.Generation)) {
				t.Fatalf("seed %d: node %s (%s) counts as done", seed, m.Node, mode)
			}
			if m.State == fleet.MoveReturned {
				returned++
			}
			if m.State == fleet.MoveFailed && mode == "good" {
				t.Fatalf("seed %d: good node %s failed: %s", seed, m.Node, m.Reason)
			}
		}
		seen[r.State]++
	}
	if seen[fleet.RolloutDone] < 15 || seen[fleet.RolloutHalted] < 15 || returned < 5 {
		t.Errorf("outcomes %v, %d nodes returned: the fleets were not varied enough", seen, returned)
	}
}
