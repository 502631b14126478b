package recovery

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Step is one rung of the ladder.
type Step string

// The rungs, the gentlest first.
const (
	Recheck      Step = "recheck"       // the node runs its checks now; for a silent one: another look
	RestartAgent Step = "restart-agent" // the node's agent starts anew
	Flip         Step = "flip"          // its other confirmed slot
	PowerCycle   Step = "power-cycle"   // through its BMC
	Reinstall    Step = "reinstall"     // its pool's image, written anew
	Quarantine   Step = "quarantine"    // left alone, with what it runs, until a human comes
)

// Steps is the whole ladder in its order.
var Steps = []Step{Recheck, RestartAgent, Flip, PowerCycle, Reinstall, Quarantine}

// disruptive reports whether a step takes a node from its work: those are
// limited.
func (s Step) disruptive() bool {
	return s == Flip || s == PowerCycle || s == Reinstall || s == Quarantine
}

// patience is how long a step is given to help before the next one.
var patience = map[Step]time.Duration{
	Recheck: 2 * time.Minute, RestartAgent: 3 * time.Minute, Flip: 20 * time.Minute,
	PowerCycle: 20 * time.Minute, Reinstall: time.Hour, Quarantine: 0,
}

// Mode says whether anything is done.
type Mode string

// The modes.
const (
	Off  Mode = "off"  // nothing is looked at
	Tell Mode = "tell" // what would be done is an event
	Act  Mode = "act"
)

// Policy is how nodes of a pool are recovered.
type Policy struct {
	Mode    Mode
	Steps   []Step       // those that may be taken; their order is that of the ladder
	PerHour fleet.Amount // nodes of the pool that may be disrupted in an hour; at least 1
	AtOnce  fleet.Amount // of them at the same time; at least 1
}

// Limits hold for the whole fleet.
type Limits struct {
	PerHour int // disruptive steps in an hour
	Storm   int // percent of a pool, a domain or the fleet: more silent at once is no matter of nodes
	PerNode int // disruptive steps on one node in a day; then it is quarantined
}

// Config is all of it.
type Config struct {
	Default Policy
	Pools   map[string]Policy
	Limits  Limits
}

// DefaultConfig tells and does nothing.
func DefaultConfig() Config {
	return Config{
		Default: Policy{Mode: Tell, Steps: Steps, PerHour: fleet.Amount{Percent: 5}, AtOnce: fleet.Amount{Percent: 2}},
		Limits:  Limits{PerHour: 10, Storm: 20, PerNode: 3},
	}
}

// Of returns the policy of a pool.
func (c Config) Of(pool string) Policy {
	if p, ok := c.Pools[pool]; ok {
		return p
	}
	return c.Default
}

// Check reports what cannot work.
func (c Config) Check() error {
	for name, p := range c.Pools {
		if err := p.check(); err != nil {
			return fmt.Errorf("pool %s: %w", name, err)
		}
	}
	if err := c.Default.check(); err != nil {
		return err
	}
	switch l := c.Limits; {
	case l.PerHour < 1:
		return fmt.Errorf("fleet_per_hour %d: want at least 1; to do nothing say mode: tell", l.PerHour)
	case l.Storm < 1 || l.Storm > 50:
		return fmt.Errorf("storm %d%%: want 1%% to 50%%", l.Storm)
	case l.PerNode < 1:
		return fmt.Errorf("node_per_day %d: want at least 1", l.PerNode)
	}
	return nil
}

func (p Policy) check() error {
	if p.Mode != Off && p.Mode != Tell && p.Mode != Act {
		return fmt.Errorf("mode %q: want off, tell or act", p.Mode)
	}
	for _, s := range p.Steps {
		if !slices.Contains(Steps, s) {
			return fmt.Errorf("step %q: want some of %s", s, join(Steps))
		}
	}
	return nil
}

func join(steps []Step) string {
	out := make([]string, len(steps))
	for i, s := range steps {
		out[i] = string(s)
	}
	return strings.Join(out, ", ")
}
