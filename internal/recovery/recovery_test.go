package recovery

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/fleet"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

const (
	imgA = "sha256:aaaaaaaaaaaaaaaa"
	imgB = "sha256:bbbbbbbbbbbbbbbb"
)

func failing(class fleet.FaultClass) []fleet.CheckResult {
	return []fleet.CheckResult{{Name: "gpu-count", Class: class, Required: true, Status: fleet.CheckFailed, Detail: "want 8, saw 7"}}
}

var fine = []fleet.CheckResult{{Name: "gpu-count", Required: true, Status: fleet.CheckPassed}}

// lab is a fleet with a clock, and what was done to it.
type lab struct {
	in    Input
	told  []string
	deeds []Deed
	heard map[string]bool // false: silent
}

func newLab(n int, change ...func(c *Config)) *lab {
	c := DefaultConfig()
	c.Default.Mode = Act
	c.Default.PerHour, c.Default.AtOnce = fleet.Amount{Percent: 100}, fleet.Amount{Percent: 100}
	c.Limits.PerHour = 1000
	for _, f := range change {
		f(&c)
	}
	l := &lab{in: Input{Now: t0, Config: c, Held: map[string]string{}, BMC: map[string]bool{}, Images: map[string]string{"rack": imgA}}, heard: map[string]bool{}}
	for i := range n {
		name := fmt.Sprintf("n%02d", i)
		l.in.Nodes = append(l.in.Nodes, &fleet.Node{Name: name, Pool: "rack", State: fleet.NodeApproved, LastSeen: t0, Reported: &fleet.Report{
			Stage: fleet.StageSystem, Booted: fleet.SlotA, Health: fine,
			Slots: []fleet.SlotReport{{Slot: fleet.SlotA, State: fleet.SlotGood, Image: imgA}, {Slot: fleet.SlotB, State: fleet.SlotGood, Image: imgB}}}})
		l.in.BMC[name], l.heard[name] = true, true
	}
	return l
}

func (l *lab) node(i int) *fleet.Node { return l.in.Nodes[i] }

// run lets time pass in looks of half a minute.
func (l *lab) run(d time.Duration) {
	for end := l.in.Now.Add(d); l.in.Now.Before(end); l.in.Now = l.in.Now.Add(30 * time.Second) {
		for _, n := range l.in.Nodes {
			if l.heard[n.Name] {
				n.LastSeen = l.in.Now
			}
		}
		l.look()
	}
}

func (l *lab) look() {
	s, deeds, notes := Decide(l.in)
	l.in.State = s
	for _, n := range notes {
		l.told = append(l.told, strings.TrimSpace(n.Node+" "+n.Kind))
	}
	for _, d := range deeds {
		l.told = append(l.told, d.Node+" "+string(d.Step))
		if d.Step == Quarantine {
			i := slices.IndexFunc(l.in.Nodes, func(n *fleet.Node) bool { return n.Name == d.Node })
			l.in.Nodes[i].State = fleet.NodeQuarantined
		}
	}
	l.deeds = append(l.deeds, deeds...)
}

func TestLadder(t *testing.T) {
	silent := func(l *lab) { l.heard["n00"] = false }
	sick := func(class fleet.FaultClass) func(l *lab) {
		return func(l *lab) { l.node(0).Reported.Health = failing(class) }
	}
	noPeers := func(l *lab) { // nobody else to compare with
		for _, n := range l.in.Nodes[1:] {
			n.Reported.Slots = []fleet.SlotReport{{Slot: fleet.SlotA, State: fleet.SlotGood, Image: imgB}, {Slot: fleet.SlotB}}
		}
	}
	for _, c := range []struct {
		name  string
		setup []func(l *lab)
		want  string
	}{
		{"healthy", nil, ""},
		{"silent", []func(*lab){silent}, "n00 recheck, n00 power-cycle, n00 reinstall, n00 quarantine"},
		{"silent without a BMC", []func(*lab){silent, func(l *lab) { l.in.BMC["n00"] = false }},
			"n00 recheck, n00 recovery.skipped, n00 recovery.skipped, n00 quarantine"},
		{"software, image new to its peers", []func(*lab){sick(fleet.FaultSoftware), noPeers},
			"n00 recheck, n00 restart-agent, n00 flip, n00 power-cycle, n00 reinstall, n00 quarantine"},
		{"software, same image healthy elsewhere", []func(*lab){sick(fleet.FaultSoftware)},
			"n00 recheck, n00 restart-agent, n00 recovery.skipped, n00 power-cycle, n00 reinstall, n00 quarantine"},
		{"hardware keeps its slot", []func(*lab){sick(fleet.FaultHardware)}, "n00 recheck, n00 quarantine"},
		{"heat is never answered", []func(*lab){sick(fleet.FaultEnvironment)}, "n00 recovery.environment"},
		{"a check without an answer", []func(*lab){func(l *lab) {
			l.node(0).Reported.Health = []fleet.CheckResult{{Name: "x", Required: true, Status: fleet.CheckUnknown}}
		}}, "n00 recheck, n00 restart-agent, n00 power-cycle, n00 quarantine"},
		{"cordoned by a human", []func(*lab){silent, func(l *lab) { l.node(0).State = fleet.NodeCordoned }}, ""},
		{"quarantined", []func(*lab){silent, func(l *lab) { l.node(0).State = fleet.NodeQuarantined }}, ""},
		{"pending", []func(*lab){silent, func(l *lab) { l.node(0).State = fleet.NodePending }}, ""},
		{"moved by a rollout", []func(*lab){silent, func(l *lab) { l.in.Held["n00"] = "r1" }}, ""},
		{"a trial is its rollout's business", []func(*lab){sick(fleet.FaultSoftware), func(l *lab) { l.node(0).Reported.Slots[0].State = fleet.SlotTrying }}, ""},
		{"on its way to a wish", []func(*lab){sick(fleet.FaultSoftware), func(l *lab) { l.node(0).Desired = fleet.Desired{Image: imgB, Generation: 7} }}, ""},
		{"silent for long on its way to a wish", []func(*lab){silent, func(l *lab) { l.node(0).Desired = fleet.Desired{Image: imgB, Generation: 7} }},
			"n00 recheck, n00 power-cycle, n00 reinstall, n00 quarantine"},
		{"the other image is banned", []func(*lab){sick(fleet.FaultSoftware), noPeers, func(l *lab) { l.node(0).Banned = []fleet.Ban{{Image: imgB}} }},
			"n00 recheck, n00 restart-agent, n00 recovery.skipped, n00 power-cycle, n00 reinstall, n00 quarantine"},
		{"few steps allowed", []func(*lab){silent, func(l *lab) { l.in.Config.Default.Steps = []Step{PowerCycle} }}, "n00 power-cycle, n00 recovery.exhausted"},
		{"off", []func(*lab){silent, func(l *lab) { l.in.Config.Default.Mode = Off }}, ""},
		{"tell", []func(*lab){silent, func(l *lab) { l.in.Config.Default.Mode = Tell }}, "n00 recovery.would"},
		{"tell in one pool only", []func(*lab){silent, func(l *lab) {
			p := l.in.Config.Default
			p.Mode = Tell
			l.in.Config.Pools = map[string]Policy{"rack": p}
		}}, "n00 recovery.would"},
		{"a whole rack is hot", []func(*lab){func(l *lab) {
			for i := range 3 {
				l.node(i).Domain = "r1"
				l.node(i).Reported.Health = failing(fleet.FaultEnvironment)
			}
			l.node(0).Reported.Health = failing(fleet.FaultSoftware)
		}}, "n00 recovery.environment, n01 recovery.environment, n02 recovery.environment"},
		{"hotter than its peers, same driver healthy there", []func(*lab){sick(fleet.FaultSoftware), func(l *lab) {
			for i, n := range l.in.Nodes {
				n.Reported.Metrics = map[string]float64{"gpu.0.temperature_celsius": 55 + float64(i%3), "gpu.0.clock_mhz": 1500}
			}
			l.node(0).Reported.Metrics["gpu.0.temperature_celsius"] = 91
		}}, "n00 recovery.environment"},
	} {
		l := newLab(20)
		for _, f := range c.setup {
			f(l)
		}
		l.run(5 * time.Hour)
		if got := strings.Join(l.told, ", "); got != c.want {
			t.Errorf("%s:\n got %s\nwant %s", c.name, got, c.want)
		}
	}
}

// A step that helps ends the ladder, is told, and is forgotten in time; what
// comes back soon goes on where it was; what comes back again and again is
// quarantined.
func TestHelped(t *testing.T) {
	l := newLab(20)
	l.heard["n00"] = false
	l.run(12 * time.Minute) // lost after 5, cycled after 7
	l.heard["n00"] = true
	l.run(10 * time.Minute)
	want := []string{"n00 recheck", "n00 power-cycle", "n00 recovery.recovered"}
	if d := cmp.Diff(want, l.told); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	l.heard["n00"] = false
	l.run(30 * time.Minute)
	if got := l.told[len(l.told)-1]; got != "n00 reinstall" {
		t.Errorf("trouble that comes back soon goes on with %q; want the next step", got)
	}
	l.heard["n00"] = true
	l.run(2 * time.Hour)
	if len(l.in.State.Nodes) != 0 {
		t.Errorf("after two quiet hours it is remembered: %+v", l.in.State.Nodes["n00"])
	}
	l.heard["n00"] = false
	l.run(30 * time.Minute)
	l.heard["n00"] = true
	l.run(2 * time.Hour) // a third power cycle or reinstallation within the day
	l.heard["n00"] = false
	l.run(30 * time.Minute)
	if l.node(0).State != fleet.NodeQuarantined {
		t.Errorf("after three disruptive steps in a day it is %s; want quarantined\n%v", l.node(0).State, l.told)
	}
}

// A step that could not be carried out is not waited for.
func TestFailedStep(t *testing.T) {
	l := newLab(20)
	l.heard["n00"] = false
	l.run(8 * time.Minute)
	l.in.State.Nodes["n00"].Failed = "BMC does not answer"
	l.run(2 * time.Minute)
	last := l.deeds[len(l.deeds)-1]
	if last.Step != Reinstall || !strings.Contains(last.Reason, "power-cycle did not help (BMC does not answer)") {
		t.Errorf("then came %+v", last)
	}
}

func TestStorm(t *testing.T) {
	for _, c := range []struct {
		name   string
		nodes  int
		silent int // nodes that fall silent, one per minute
		acts   bool
	}{
		{"the whole fleet", 20, 20, false},
		{"a quarter", 20, 5, false},
		{"a fifth", 20, 4, true},
		{"two of three", 3, 2, false},
		{"one of three", 3, 1, true},
	} {
		l := newLab(c.nodes)
		for i := range c.silent {
			l.heard[l.node(i).Name] = false
			l.run(time.Minute)
		}
		l.run(48 * time.Hour)
		acts := slices.ContainsFunc(l.deeds, func(d Deed) bool { return d.Step.disruptive() })
		if acts != c.acts {
			t.Errorf("%s: disruptive steps: %v; want %v\n%v", c.name, acts, c.acts, l.told)
		}
		if isStorm := strings.Contains(strings.Join(l.told, " "), "recovery.storm"); isStorm == c.acts {
			t.Errorf("%s: a storm was told: %v", c.name, isStorm)
		}
	}
}

// When a storm is over, the few that did not come back are nodes in trouble.
func TestAfterStorm(t *testing.T) {
	l := newLab(20)
	for _, n := range l.in.Nodes {
		l.heard[n.Name] = false
	}
	l.run(3 * time.Hour)
	for _, n := range l.in.Nodes[1:] {
		l.heard[n.Name] = true
	}
	l.run(10 * time.Minute)
	want := []string{"recovery.storm", "recovery.storm", "recovery.storm-over", "recovery.storm-over", "n00 recheck", "n00 power-cycle"}
	if d := cmp.Diff(want, l.told); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// Many nodes of a pool that fail the same way are no matter of nodes.
func TestCommonFailure(t *testing.T) {
	l := newLab(20)
	for i := range 6 {
		l.node(i).Reported.Health = failing(fleet.FaultSoftware)
	}
	l.run(5 * time.Hour)
	for _, d := range l.deeds {
		if d.Step.disruptive() {
			t.Fatalf("%+v although six of 20 fail", d)
		}
	}
	if !slices.Contains(l.told, "n00 recovery.held") {
		t.Errorf("it was not told: %v", l.told)
	}
}

// Nodes that reboot because somebody moves them make no storm.
func TestMovingIsNoStorm(t *testing.T) {
	l := newLab(20)
	for i := range 8 {
		l.heard[l.node(i).Name] = false
		if i%2 == 0 {
			l.in.Held[l.node(i).Name] = "r1"
		} else {
			l.node(i).Desired = fleet.Desired{Image: imgB, Generation: 2}
			l.node(i).Reported.Acted = 2
		}
	}
	l.run(4 * time.Minute)
	if len(l.told) > 0 {
		t.Errorf("told: %v", l.told)
	}
}
