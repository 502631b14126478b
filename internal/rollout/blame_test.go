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
