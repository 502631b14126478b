package recovery

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/pulse"
)

// Trouble is what is the matter with a node.
type Trouble string

// The kinds of trouble.
const (
	None        Trouble = ""
	Silent      Trouble = "silent"      // no heartbeat for pulse.LostAfter
	Software    Trouble = "software"    // a check of the image fails on a confirmed slot
	Stuck       Trouble = "stuck"       // checks give no answer
	Hardware    Trouble = "hardware"    //
	Environment Trouble = "environment" // cooling or power
)

// rungs are the steps that make sense for a trouble.
var rungs = map[Trouble][]Step{
	Silent:      {Recheck, PowerCycle, Reinstall, Quarantine}, // nothing but a BMC reaches it
	Software:    {Recheck, RestartAgent, Flip, PowerCycle, Reinstall, Quarantine},
	Stuck:       {Recheck, RestartAgent, PowerCycle, Quarantine}, // nothing says that it is the image
	Hardware:    {Recheck, Quarantine},
	Environment: {},
}

// settle is how long a trouble must last before anything is done about it.
var settle = map[Trouble]time.Duration{Silent: 0, Software: 5 * time.Minute, Stuck: 10 * time.Minute, Hardware: 5 * time.Minute}

// view is the fleet as far as one look needs it.
type view struct {
	in      Input
	hot     map[string]string          // domain -> why its whole rack counts as hot
	thermal map[string]string          // node -> why it counts as hot
	running map[[2]string]map[bool]int // (pool, image) -> healthy? -> nodes
}

// A node stands out in temperature by so much, and more usual deviations
// than that, and not before so many degrees.
const (
	hotLimit   = 6
	hotFloor   = 0.05
	hotDegrees = 10
)

func look(in Input) view {
	v := view{in: in, hot: pulse.Hot(in.Now, in.Nodes), thermal: map[string]string{}, running: map[[2]string]map[bool]int{}}
	temps := map[string]map[string]map[string]float64{}
	for _, n := range in.Nodes {
		if n.Reported == nil || n.Reported.Stage != fleet.StageSystem || v.isSilent(n) {
			continue
		}
		d := fleet.Diagnose(n.Reported.Health)
		key := [2]string{n.Pool, n.Reported.BootedImage()}
		if v.running[key] == nil {
			v.running[key] = map[bool]int{}
		}
		v.running[key][d == fleet.DiagnosisHealthy]++
		if t, ok := hottest(n.Reported.Metrics); ok {
			if temps[n.Pool] == nil {
				temps[n.Pool] = map[string]map[string]float64{}
			}
			temps[n.Pool][n.Name] = map[string]float64{"temperature": t}
		}
	}
	for _, peers := range temps {
		for _, o := range pulse.Outliers(peers, hotLimit, hotFloor) {
			if o.Value-o.Median >= hotDegrees {
				v.thermal[o.Node] = fmt.Sprintf("it is at %.0f °C, its peers at %.0f °C", o.Value, o.Median)
			}
		}
	}
	return v
}

// hottest is the highest temperature among a node's numbers.
func hottest(metrics map[string]float64) (float64, bool) {
	top, found := math.Inf(-1), false
	for name, t := range metrics {
		if strings.HasSuffix(name, "temperature_celsius") && !math.IsNaN(t) && !math.IsInf(t, 0) {
			top, found = max(top, t), true
		}
	}
	return top, found
}

func (v view) isSilent(n *fleet.Node) bool {
	return !n.LastSeen.IsZero() && v.in.Now.Sub(n.LastSeen) > pulse.LostAfter
}

// isQuiet is isSilent for storms: it sees them before anybody is lost.
func (v view) isQuiet(n *fleet.Node) bool {
	return !n.LastSeen.IsZero() && v.in.Now.Sub(n.LastSeen) > min(cmp.Or(v.in.Quiet, time.Minute), pulse.LostAfter)
}

// trouble says what is the matter with a node, and why that is believed. It
// looks at confirmed slots only: a trial is its rollout's business.
func (v view) trouble(n *fleet.Node) (Trouble, string) {
	if v.isSilent(n) {
		return Silent, "not seen since " + n.LastSeen.UTC().Format(time.RFC3339)
	}
	r := n.Reported
	if r == nil || r.Stage != fleet.StageSystem || r.Booted == fleet.NoSlot || r.Slot(r.Booted).State != fleet.SlotGood {
		return None, ""
	}
	why := ""
	if c, ok := worst(r.Health); ok {
		why = "check " + c.Name + ": " + c.Detail
	}
	var t Trouble
	switch fleet.Diagnose(r.Health) {
	case fleet.DiagnosisEnvironment:
		return Environment, why
	case fleet.DiagnosisHardware:
		t = Hardware
	case fleet.DiagnosisSoftware:
		t = Software
	case fleet.DiagnosisUnknown:
		if len(r.Health) == 0 {
			return None, "" // an image without checks
		}
		t = Stuck
	default:
		return None, ""
	}
	if hot := v.hot[pulse.Domain(n)]; hot != "" {
		return Environment, why + "; " + hot
	}
	if hot := v.thermal[n.Name]; hot != "" && t != Hardware && v.fineElsewhere(n) != "" {
		return Environment, why + "; " + hot + ", and " + v.fineElsewhere(n)
	}
	return t, why
}

// worst is the check to name: one that failed, else one without an answer.
func worst(rs []fleet.CheckResult) (fleet.CheckResult, bool) {
	i := slices.IndexFunc(rs, func(c fleet.CheckResult) bool { return c.Required && c.Status == fleet.CheckFailed })
	if i >= 0 {
		return rs[i], true
	}
	return fleet.FirstFailure(rs)
}

// Peers that must run the same image well before it is out of suspicion, and
// their share of those that run it.
const (
	finePeers = 3
	fineShare = 0.9
)

// fineElsewhere says that a node's image, and with it its driver, runs well
// on its peers; "" if that is not known.
func (v view) fineElsewhere(n *fleet.Node) string {
	c := v.running[[2]string{n.Pool, n.Reported.BootedImage()}]
	well, all := c[true], c[true]+c[false]
	if _, isBad := v.mine(n); isBad {
		all-- // itself
	}
	if well < finePeers || float64(well) < fineShare*float64(all) {
		return ""
	}
	return fmt.Sprintf("the same image and driver are healthy on %d of %d peers", well, all)
}

func (v view) mine(n *fleet.Node) (fleet.Diagnosis, bool) {
	d := fleet.Diagnose(n.Reported.Health)
	return d, d != fleet.DiagnosisHealthy
}
