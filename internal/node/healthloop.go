package node

import (
	"context"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/node/attempts"
)

// calmFactor is how much less often a node is checked once it is healthy.
const calmFactor = 6

// healthLoop runs the image's checks again and again. It neither knows nor
// waits for the server.
func (a *Agent) healthLoop(ctx context.Context) {
	for {
		rs := a.cfg.Checks.Run(ctx, a.cfg.Identity.Health.Checks)
		if ctx.Err() != nil {
			return
		}
		every := a.cfg.CheckEvery
		if a.observe(rs) {
			every *= calmFactor
		}
		if !a.pause(ctx, every) {
			return
		}
	}
}

// observe takes in one run, and reports whether the node is healthy. News is
// told: the first full soak of a boot, a check that begins to fail.
func (a *Agent) observe(rs []fleet.CheckResult) bool {
	now := time.Now()
	a.mu.Lock()
	before, was := a.soak.Results(), a.soak.Soaked()
	a.soak.Observe(now, rs)
	a.checkedAt = now
	is := a.soak.Soaked()
	first := !a.cameUp && fleet.Passed(rs)
	a.cameUp = a.cameUp || first
	a.mu.Unlock()
	if first {
		a.localHealth()
	}
	if is && !was {
		a.tell("health.passed", "all required checks passed for the whole soak")
	}
	for i, r := range rs {
		hadFailed := i < len(before) && before[i].Status == fleet.CheckFailed
		if r.Status == fleet.CheckFailed && !hadFailed {
			a.cfg.Log("health: check %q failed: %s", r.Name, r.Detail)
			a.tell("health.failed", "check %q: %s", r.Name, r.Detail)
			poke(a.beat)
		}
	}
	poke(a.wake)
	if is != was {
		poke(a.beat)
	}
	return is
}

// localHealth resets the ledger of starts: this image can come up. One run in
// which the checks pass is enough: the ledger is about systems that never get
// so far, and a power feed that comes and goes must not look like one.
func (a *Agent) localHealth() {
	l, err := attempts.Read(a.cfg.Dir)
	if err == nil {
		err = attempts.Write(a.cfg.Dir, l.Healthy(a.cfg.Info.RootHash))
	}
	if err != nil {
		a.cfg.Log("warning: ledger of starts: %v", err)
	}
}
