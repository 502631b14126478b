package server_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/server"
)

// gpuMetrics are the numbers of a node with eight GPUs and two NICs, each a
// little different, as agents report them.
func gpuMetrics(node, beat int) map[string]float64 {
	m := map[string]float64{}
	for g := range 8 {
		noise := float64((node*7+g*3+beat)%5) / 100
		m[fmt.Sprintf("gpu.%d.temperature_celsius", g)] = 62 * (1 + noise/4)
		m[fmt.Sprintf("gpu.%d.sm_clock_hertz", g)] = 1.98e9 * (1 - noise/10)
		m[fmt.Sprintf("gpu.%d.memory_clock_hertz", g)] = 2.619e9
		m[fmt.Sprintf("gpu.%d.power_watts", g)] = 640 * (1 + noise/2)
		m[fmt.Sprintf("gpu.%d.ecc_corrected_total", g)] = float64(node % 2)
	}
	for n := range 2 {
		m[fmt.Sprintf("nic.%d.rx_errors_total", n)] = 0
	}
	return m
}

// One slow GPU among 128 is named before it stalls a job, by its own number;
// one that counts corrected errors by the thousand, too. Nothing is done to
// either, and nobody else is named.
func TestOneSlowGPUIsNamed(t *testing.T) {
	r := newRecoveryRack(t, 16, acting)
	seen := server.NothingOutlying()
	rounds := func(n int) {
		t.Helper()
		for range n {
			for i, m := range r.nodes {
				m.report.Metrics = gpuMetrics(i, n)
			}
			r.nodes[4].report.Metrics["gpu.3.sm_clock_hertz"] = 1.2e9
			r.nodes[9].report.Metrics["gpu.0.ecc_corrected_total"] = 4000
			r.pass(1)
			r.l.must(r.l.srv.ComparePeers(ctx, seen))
		}
	}
	rounds(15)
	named := r.l.events("node.outlier")
	if len(named) != 2 {
		t.Fatalf("named: %q; want two GPUs", named)
	}
	all := strings.Join(named, "\n")
	for _, want := range []string{"n5: ", "gpu.3.sm_clock_hertz", "n10: ", "gpu.0.ecc_corrected_total"} {
		if !strings.Contains(all, want) {
			t.Errorf("named: %q; want %q among it", named, want)
		}
	}
	if got := r.story(); len(got) != 0 {
		t.Errorf("recovery did %q about it", got)
	}
}

// A rollout whose canary stands in a rack that gets hot: checks of the image
// fail there, too, and the canary falls back. It is not held against the
// image: the budget is not touched, nothing is flipped back, and recovery
// only tells. When the rack is cool the rollout goes on by an operator's word
// and ends on every node.
func TestHotRackIsNobodysFault(t *testing.T) {
	r := newRecoveryRack(t, 6, acting)
	domain := "r7"
	for i := range r.nodes {
		_, err := r.l.op.NodeAct(ctx, fmt.Sprint("n", i+1), "domain", api.NodeRequest{Domain: &domain})
		r.l.must(err)
	}
	v2 := r.l.publish("2.0.0")
	ro, err := r.l.op.StartRollout(ctx, api.RolloutRequest{Image: v2, Policy: fleet.Policy{
		Stages: []fleet.RolloutStage{{Nodes: []string{"n1"}}, {Pool: "rack"}}, MaxUnavailable: fleet.Amount{Nodes: 2}, FlipBack: true}})
	r.l.must(err)
	r.l.pass()
	canary := r.nodes[0]
	wish := canary.beat()
	if wish.Image != v2 {
		t.Fatalf("the canary is asked for %+v", wish)
	}
	check := func(m *machine, heat, software fleet.CheckStatus) {
		m.report.Health = []fleet.CheckResult{
			{Name: "gpu-throttle", Class: fleet.FaultEnvironment, Required: true, Status: heat, Detail: "HW thermal slowdown"},
			{Name: "driver", Class: fleet.FaultSoftware, Required: true, Status: software, Detail: "slow"},
		}
		m.report.Healthy = heat == fleet.CheckPassed && software == fleet.CheckPassed
	}
	// The rack gets hot; the canary has tried the image and fallen back for a check of the driver.
	for _, m := range r.nodes[1:] {
		check(m, fleet.CheckFailed, fleet.CheckFailed)
	}
	canary.report.Acted = wish.Generation
	canary.report.Slots[1] = fleet.SlotReport{Slot: fleet.SlotB, State: fleet.SlotBad, Image: v2, Generation: wish.Generation, Reason: "check driver: slow"}
	check(canary, fleet.CheckPassed, fleet.CheckPassed)
	for range 60 { // beyond every patience
		r.pass(1)
		r.l.pass()
	}
	got, err := r.l.view.Rollout(ctx, ro.ID)
	r.l.must(err)
	if m := got.Nodes[0]; m.State != fleet.MoveSkipped || !strings.Contains(m.Reason, "5 of 6 nodes of r7 have trouble with heat") {
		t.Errorf("the canary is %s: %s; want it left out because of its rack", m.State, m.Reason)
	}
	for _, m := range got.Nodes {
		if m.State == fleet.MoveFailed || m.State == fleet.MoveReturning || m.State == fleet.MoveReturned {
			t.Errorf("node %s is %s: %s", m.Node, m.State, m.Reason)
		}
	}
	for i := range r.nodes[1:] {
		if n := r.l.node(fmt.Sprint("n", i+2)); n.Desired.Image == v2 || n.Desired.Rollout != "" {
			t.Errorf("node %s wants %+v although no canary runs it", n.Name, n.Desired)
		}
	}
	for _, e := range r.story() {
		if !strings.HasPrefix(e, "recovery.environment") {
			t.Errorf("recovery did %q in a hot rack", e)
		}
	}
	if len(r.story()) == 0 {
		t.Error("nobody was told of the heat")
	}
	// It cools down: the operator lifts the node's own ban, and lets it go on.
	for _, m := range r.nodes {
		check(m, fleet.CheckPassed, fleet.CheckPassed)
	}
	_, err = r.l.op.NodeAct(ctx, "n1", "unban", api.NodeRequest{})
	r.l.must(err)
	_, err = r.l.op.RolloutAct(ctx, ro.ID, "resume", api.ReasonRequest{Reason: "the rack is cool"})
	r.l.must(err)
	for range 12 {
		r.l.clock.add(time.Minute)
		r.l.pass()
		for _, m := range r.nodes {
			m.runs(m.beat())
		}
	}
	r.l.pass()
	if got, err = r.l.view.Rollout(ctx, ro.ID); err != nil || got.State != fleet.RolloutDone {
		t.Errorf("the rollout is %s (%s), %v; want it done", got.State, got.Reason, err)
	}
}
