package rollout

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/fleet"
)

const (
	oldImage = "sha256:0000000000000000000000000000000000000000000000000000000000000001"
	newImage = "sha256:0000000000000000000000000000000000000000000000000000000000000002"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// node returns a healthy node that runs oldImage from slot A.
func node(name string, change ...func(*fleet.Node)) *fleet.Node {
	n := &fleet.Node{
		Name: name, Pool: "rack", State: fleet.NodeApproved, LastSeen: t0,
		Desired: fleet.Desired{Image: oldImage, Generation: 1},
		Reported: &fleet.Report{
			Stage: fleet.StageSystem, Booted: fleet.SlotA, Acted: 1, Healthy: true, Activity: "idle",
			Slots: []fleet.SlotReport{
				{Slot: fleet.SlotA, State: fleet.SlotGood, Image: oldImage, Generation: 1},
				{Slot: fleet.SlotB, State: fleet.SlotEmpty},
			},
		},
	}
	for _, c := range change {
		c(n)
	}
	return n
}

// asked is a node that rollout r1 asked to run newImage as generation 2.
func asked(n *fleet.Node) {
	n.Desired = fleet.Desired{Image: newImage, Generation: 2, Rollout: "r1"}
}

// slotB puts newImage, generation 2, into slot B in a state.
func slotB(s fleet.SlotState, reason string) func(*fleet.Node) {
	return func(n *fleet.Node) {
		n.Reported.Acted = 2
		n.Reported.Slots[1] = fleet.SlotReport{Slot: fleet.SlotB, State: s, Image: newImage, Generation: 2, Reason: reason}
	}
}

func booted(s fleet.Slot, healthy bool) func(*fleet.Node) {
	return func(n *fleet.Node) { n.Reported.Booted, n.Reported.Healthy = s, healthy }
}

func rollout(p fleet.Policy, ms ...fleet.Move) *fleet.Rollout {
	if p.Stages == nil {
		p.Stages = []fleet.RolloutStage{{Pool: "canary"}, {Pool: "rack"}}
	}
	return &fleet.Rollout{ID: "r1", Image: newImage, State: fleet.RolloutRunning, Policy: p, Nodes: ms}
}

func move(node string, stage int, s fleet.MoveState) fleet.Move {
	m := fleet.Move{Node: node, Stage: stage, State: s}
	if s != fleet.MoveWaiting && s != fleet.MoveSkipped {
		m.Generation, m.From, m.Started = 2, oldImage, t0
	}
	return m
}

// text writes steps as one word each, for comparison.
func text(steps []Step) (out []string) {
	for _, s := range steps {
		out = append(out, strings.TrimSuffix(string(s.Kind)+" "+s.Node, " "))
	}
	return out
}

func TestPlan(t *testing.T) {
	one := fleet.Policy{MaxUnavailable: fleet.Amount{Nodes: 1}, Bake: time.Minute}
	gone := func(n *fleet.Node) { n.LastSeen = t0.Add(-LostAfter - time.Second) }
	state := func(s fleet.NodeState) func(*fleet.Node) { return func(n *fleet.Node) { n.State = s } }
	ban := func(n *fleet.Node) { n.Banned = []fleet.Ban{{Image: newImage, Reason: "failed before"}} }
	good := func(n *fleet.Node) { slotB(fleet.SlotGood, "")(n); booted(fleet.SlotB, true)(n) }
	tests := []struct {
		name   string
		r      *fleet.Rollout
		nodes  []*fleet.Node
		at     time.Duration
		want   []string
		reason string // in the last step
	}{
		{"the canary first, others wait",
			rollout(one, move("c", 0, "waiting"), move("a", 1, "waiting")),
			[]*fleet.Node{node("a"), node("c")}, 0, []string{"start c"}, ""},
		{"nothing while it moves",
			rollout(one, move("c", 0, "moving"), move("a", 1, "waiting")),
			[]*fleet.Node{node("a"), node("c", asked, slotB(fleet.SlotTrying, ""), booted(fleet.SlotB, false))}, time.Minute, nil, ""},
		{"confirmed but not yet healthy is not done",
			rollout(one, move("c", 0, "moving")),
			[]*fleet.Node{node("c", asked, good, booted(fleet.SlotB, false))}, 0, nil, ""},
		{"done completes the stage, which bakes",
			rollout(one, move("c", 0, "moving"), move("a", 1, "waiting")),
			[]*fleet.Node{node("a"), node("c", asked, good)}, time.Minute, []string{"done c", "complete"}, ""},
		{"one bad slot halts and starts nobody",
			rollout(one, move("c", 0, "moving"), move("a", 1, "waiting")),
			[]*fleet.Node{node("a"), node("c", asked, slotB(fleet.SlotBad, "check gpu-count: want 8, saw 7"))},
			time.Minute, []string{"fail c", "halt"}, "node c: check gpu-count: want 8, saw 7 (1 failed, budget 0)"},
		{"a bad slot of an earlier generation says nothing",
			rollout(one, move("c", 0, "moving")),
			[]*fleet.Node{node("c", asked, slotB(fleet.SlotBad, ""), func(n *fleet.Node) { n.Reported.Slots[1].Generation = 1 })}, 0, nil, ""},
		{"a slot that says nothing is explained by the last failed check",
			rollout(one, move("c", 0, "moving")),
			[]*fleet.Node{node("c", asked, slotB(fleet.SlotBad, ""), func(n *fleet.Node) {
				n.Failure = &fleet.Failure{Image: newImage, Generation: 2, Check: "driver", Detail: "version 570, want 580"}
			})}, 0, []string{"fail c", "halt"}, "check driver: version 570, want 580"},
		{"silence is a failure after the time-out",
			rollout(one, move("c", 0, "moving")),
			[]*fleet.Node{node("c", asked)}, DefaultTimeout + time.Second, []string{"fail c", "halt"}, "not seen since"},
		{"removed while moving counts, by name",
			rollout(one, move("c", 0, "moving")), nil, 0, []string{"fail c", "halt"}, "node c: removed while it was moving"},
		{"a failure within the budget lets the rest go on",
			rollout(fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "rack"}}, MaxUnavailable: fleet.Amount{Nodes: 1}, FailureBudget: fleet.Amount{Nodes: 1}},
				move("a", 0, "moving"), move("b", 0, "waiting")),
			[]*fleet.Node{node("a", asked, slotB(fleet.SlotBad, "x")), node("b")}, 0, []string{"fail a", "start b"}, ""},
		{"a node left unwell keeps its place",
			rollout(fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "rack"}}, FailureBudget: fleet.Amount{Nodes: 1}},
				move("a", 0, "failed"), move("b", 0, "waiting")),
			[]*fleet.Node{node("a", booted(fleet.SlotA, false)), node("b")}, 0, nil, ""},
		{"those that cannot take part are skipped with reasons",
			rollout(fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "rack"}}},
				move("gone", 0, "waiting"), move("cordoned", 0, "waiting"), move("banned", 0, "waiting"), move("lost", 0, "waiting"), move("there", 0, "waiting"), move("ok", 0, "waiting")),
			[]*fleet.Node{node("cordoned", state(fleet.NodeCordoned)), node("banned", ban), node("lost", gone), node("there", good), node("ok")},
			0, []string{"skip gone", "skip cordoned", "skip banned", "skip lost", "skip there", "start ok"}, ""},
		{"a stage in which nobody runs the image halts",
			rollout(one, move("c", 0, "waiting"), move("a", 1, "waiting")),
			[]*fleet.Node{node("a"), node("c", state(fleet.NodeCordoned))}, 0, []string{"skip c", "halt"}, "proved nothing"},
		{"a stage that is there already goes on",
			rollout(one, move("c", 0, "waiting"), move("a", 1, "waiting")),
			[]*fleet.Node{node("a"), node("c", good)}, 0, []string{"skip c", "complete"}, ""},
		{"paused starts nobody but watches",
			func() *fleet.Rollout {
				r := rollout(fleet.Policy{MaxUnavailable: fleet.Amount{Nodes: 5}}, move("c", 0, "moving"), move("d", 0, "waiting"))
				r.State = fleet.RolloutPaused
				return r
			}(),
			[]*fleet.Node{node("c", asked, good), node("d")}, 0, []string{"done c"}, ""},
		{"halted with flip back returns its own and nobody else's",
			func() *fleet.Rollout {
				r := rollout(fleet.Policy{FlipBack: true, MaxUnavailable: fleet.Amount{Nodes: 9}}, move("c", 0, "done"), move("d", 0, "done"), move("e", 0, "failed"), move("f", 0, "waiting"))
				r.State = fleet.RolloutHalted
				return r
			}(),
			[]*fleet.Node{node("c", asked, good), node("d", good, func(n *fleet.Node) { n.Desired = fleet.Desired{Image: newImage, Generation: 3} }), node("e"), node("f")},
			0, []string{"return c"}, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Plan(t0.Add(tt.at), tt.r, lastSeen(tt.nodes, tt.at))
			if d := cmp.Diff(tt.want, text(got)); d != "" {
				t.Fatalf("Plan (-want +got):\n%s", d)
			}
			if len(got) > 0 && !strings.Contains(got[len(got)-1].Reason, tt.reason) {
				t.Errorf("last step's reason = %q; want %q in it", got[len(got)-1].Reason, tt.reason)
			}
			if again := Plan(t0.Add(tt.at), tt.r, tt.nodes); !cmp.Equal(got, again) {
				t.Errorf("Plan is not deterministic:\n%s", cmp.Diff(got, again))
			}
		})
	}
}

// lastSeen leaves the nodes as they are for long waits (they went silent),
// and keeps them fresh for short ones.
func lastSeen(nodes []*fleet.Node, at time.Duration) []*fleet.Node {
	if at < LostAfter {
		for _, n := range nodes {
			n.LastSeen = n.LastSeen.Add(at)
		}
	}
	return nodes
}

func TestBakeAndAdvance(t *testing.T) {
	p := fleet.Policy{Bake: time.Minute, Timeout: 10 * time.Minute}
	mk := func() *fleet.Rollout {
		r := rollout(p, move("c", 0, "done"), move("a", 1, "waiting"))
		r.BakedAt = t0
		return r
	}
	well := func(n *fleet.Node) { asked(n); slotB(fleet.SlotGood, "")(n); booted(fleet.SlotB, true)(n) }
	unwell := func(n *fleet.Node) { well(n); n.Reported.Healthy = false }
	tests := []struct {
		name   string
		canary func(*fleet.Node)
		at     time.Duration
		want   []string
	}{
		{"too early", well, 59 * time.Second, nil},
		{"baked", well, time.Minute, []string{"advance", "start a"}},
		{"baked but unwell holds", unwell, 2 * time.Minute, nil},
		{"unwell for the time-out fails", unwell, 12 * time.Minute, []string{"fail c", "halt"}},
		{"fell during the bake", func(n *fleet.Node) { asked(n); slotB(fleet.SlotBad, "x")(n) }, time.Second, []string{"fail c", "halt"}},
		{"server clock went back", well, -time.Hour, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			seen := func(n *fleet.Node) { n.LastSeen = t0.Add(tt.at) }
			got := text(Plan(t0.Add(tt.at), mk(), []*fleet.Node{node("c", tt.canary, seen), node("a", seen)}))
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("Plan (-want +got):\n%s", d)
			}
		})
	}
}

// TestRounding is the stated rule: percentages round down, what limits
// progress is at least one. Sizes from known bug reports.
func TestRounding(t *testing.T) {
	for _, tt := range []struct {
		amount             string
		total, max, budget int
	}{
		{"25%", 1, 1, 0}, {"25%", 5, 1, 1}, {"25%", 6, 1, 1}, {"25%", 10, 2, 2},
		{"1%", 1, 1, 0}, {"1%", 5, 1, 0}, {"1%", 50, 1, 0}, {"1%", 288, 2, 2},
		{"0%", 3, 1, 0}, {"100%", 3, 3, 3}, {"0", 3, 1, 0}, {"2", 3, 2, 2},
	} {
		a, err := fleet.ParseAmount(tt.amount)
		if err != nil {
			t.Fatal(err)
		}
		if got := a.AtLeastOne(tt.total); got != tt.max {
			t.Errorf("%s of %d nodes at once = %d; want %d", tt.amount, tt.total, got, tt.max)
		}
		if got := a.Of(tt.total); got != tt.budget {
			t.Errorf("%s of %d nodes as budget = %d; want %d", tt.amount, tt.total, got, tt.budget)
		}
	}
	for _, bad := range []string{"", "x", "-1", "101%", "1.5", "%"} {
		if a, err := fleet.ParseAmount(bad); err == nil {
			t.Errorf("ParseAmount(%q) = %v; want an error", bad, a)
		}
	}
}

func TestBan(t *testing.T) {
	n := node("n", asked, slotB(fleet.SlotBad, "x"))
	Ban(n, newImage, "x", "", t0)
	Ban(n, newImage, "again", "", t0)
	want := fleet.Desired{Image: oldImage, Generation: 3, Reason: "image 000000000000 failed: x"}
	if d := cmp.Diff(want, n.Desired); d != "" {
		t.Errorf("desired after the ban (-want +got):\n%s", d)
	}
	if len(n.Banned) != 1 || n.Banned[0].Reason != "x" {
		t.Errorf("banned = %v; want one ban with the first reason", n.Banned)
	}
}

func TestNextGenerationIsAboveAllSeen(t *testing.T) {
	n := node("n")
	n.Desired.Generation = 2
	n.Reported.Slots[1].Generation = 40 // from before the server's state was lost
	if g := NextGeneration(n); g != 41 {
		t.Errorf("NextGeneration = %d; want 41", g)
	}
}
