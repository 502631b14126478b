package rollout

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Heat, power and broken hardware never count against an image, whatever
// else fails because of them; and the node keeps its place until it is well.
func TestTroubleThatIsNoImagesFault(t *testing.T) {
	for _, c := range []struct {
		class fleet.FaultClass
		want  Kind
	}{{fleet.FaultEnvironment, Skip}, {fleet.FaultHardware, Skip}, {fleet.FaultSoftware, Fail}} {
		n := node("n1", asked, slotB(fleet.SlotTrying, ""), booted(fleet.SlotB, false))
		n.Reported.Health = []fleet.CheckResult{
			{Name: "driver", Class: fleet.FaultSoftware, Required: true, Status: fleet.CheckFailed, Detail: "slow"},
			{Name: "gpu", Class: c.class, Required: true, Status: fleet.CheckFailed, Detail: "throttled"},
		}
		other := node("n2")
		r := rollout(fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "rack"}}},
			fleet.Move{Node: "n1", State: fleet.MoveMoving, Generation: 2, Started: t0},
			fleet.Move{Node: "n2", State: fleet.MoveWaiting})
		if got := Plan(t0.Add(time.Minute), r, []*fleet.Node{n, other}); len(got) != 0 {
			t.Errorf("%s, in time: %+v; want it waited for", c.class, got)
		}
		late := t0.Add(DefaultTimeout + time.Minute)
		n.LastSeen, other.LastSeen = late, late
		var kinds []Kind
		for i, s := range Plan(late, r, []*fleet.Node{n, other}) {
			kinds = append(kinds, s.Kind)
			if i == 0 && c.want == Skip && !strings.Contains(s.Reason, string(c.class)) {
				t.Errorf("%s: reason %q does not say what it is", c.class, s.Reason)
			}
		}
		want := []Kind{Skip}
		if c.want == Fail {
			want = []Kind{Fail, Halt}
		}
		if d := cmp.Diff(want, kinds); d != "" {
			t.Errorf("%s, too late (-want +got):\n%s", c.class, d)
		}
	}
}

// A canary that fell back while its whole rack is hot is left out, not held
// against the image; in a rack with one hot node it is.
func TestHotRackIsNotHeldAgainstACanary(t *testing.T) {
	inRack := func(n *fleet.Node) { n.Domain = "r7" }
	throttled := func(n *fleet.Node) {
		n.Reported.Health = []fleet.CheckResult{{Name: "gpu-thermal", Class: fleet.FaultEnvironment, Required: true, Status: fleet.CheckFailed}}
	}
	fell := func(n *fleet.Node) { slotB(fleet.SlotBad, "check driver: slow")(n); booted(fleet.SlotA, true)(n) }
	for _, tt := range []struct {
		name string
		hot  int // of three other nodes in the rack
		late bool
		want []string
	}{
		{"two of four are hot", 2, false, []string{"skip n1"}},
		{"one of four is", 1, false, []string{"fail n1", "halt"}},
		{"two are hot and it took too long", 2, true, []string{"skip n1"}},
	} {
		n := node("n1", inRack, asked, fell)
		if tt.late {
			n = node("n1", inRack, asked, slotB(fleet.SlotTrying, ""), booted(fleet.SlotB, false))
			n.Reported.Health = []fleet.CheckResult{{Name: "driver", Class: fleet.FaultSoftware, Required: true, Status: fleet.CheckFailed}}
		}
		nodes := []*fleet.Node{n}
		moves := []fleet.Move{{Node: "n1", State: fleet.MoveMoving, Generation: 2, Started: t0}}
		for i := range 3 {
			o := node([]string{"n2", "n3", "n4"}[i], inRack)
			if i < tt.hot {
				throttled(o)
			}
			nodes, moves = append(nodes, o), append(moves, fleet.Move{Node: o.Name, Stage: 1, State: fleet.MoveWaiting})
		}
		now := t0.Add(time.Minute)
		if tt.late {
			now = t0.Add(DefaultTimeout + time.Minute)
			for _, n := range nodes {
				n.LastSeen = now
			}
		}
		steps := Plan(now, rollout(fleet.Policy{Stages: []fleet.RolloutStage{{Nodes: []string{"n1"}}, {Pool: "rack"}}}, moves...), nodes)
		got := text(steps)
		if d := cmp.Diff(tt.want, got[:min(len(got), len(tt.want))]); d != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, d)
		}
		for _, s := range steps {
			if s.Kind == Skip && !strings.Contains(s.Reason, "2 of 4 nodes of r7") {
				t.Errorf("%s: reason %q does not say why", tt.name, s.Reason)
			}
			if tt.want[0] == "skip n1" && (s.Kind == Start || s.Kind == Return || s.Kind == Fail) {
				t.Errorf("%s: %s of %s", tt.name, s.Kind, s.Node)
			}
		}
	}
}
