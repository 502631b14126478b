package health

import (
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Soak follows the results of run after run. It does no I/O and reads no
// clock: times are given to it and must carry a monotonic reading
// (time.Now), so that a clock that is set does not shorten a soak.
type Soak struct {
	Need time.Duration // all required checks must go on passing for this long

	last         []fleet.CheckResult
	runs         int       // in a row that passed
	passingSince time.Time // first pass of the current row; zero while failing
	failingSince time.Time // first failure since the last full soak; zero when there was none
	soaked       bool
}

// Observe takes the results of one run that ended at now.
func (s *Soak) Observe(now time.Time, rs []fleet.CheckResult) {
	s.last = rs
	if !fleet.Passed(rs) {
		s.runs, s.passingSince, s.soaked = 0, time.Time{}, false
		if s.failingSince.IsZero() {
			s.failingSince = now
		}
		return
	}
	s.runs++
	if s.passingSince.IsZero() {
		s.passingSince = now
	}
	if s.runs >= 2 && now.Sub(s.passingSince) >= s.Need {
		s.soaked, s.failingSince = true, time.Time{}
	}
}

// Soaked reports whether every required check passed in at least two runs in
// a row, over the whole of Need.
func (s *Soak) Soaked() bool { return s.soaked }

// Results returns the last results observed, nil before the first.
func (s *Soak) Results() []fleet.CheckResult { return s.last }

// Failing returns the first required check of class software that does not
// pass now, and for how long the node has not been healthy. The time runs on
// through passing runs until a full soak, so a check that comes and goes does
// not reset it. ok is false while no such check fails, and while one of
// hardware or environment does: a GPU that is lost or too hot makes others fail
// as well, and another image would not help.
func (s *Soak) Failing(now time.Time) (c fleet.CheckResult, d time.Duration, ok bool) {
	if !fleet.Diagnose(s.last).BlamesImage() {
		return fleet.CheckResult{}, 0, false
	}
	for _, r := range s.last {
		if r.Required && r.Class == fleet.FaultSoftware && r.Status != fleet.CheckPassed {
			return r, now.Sub(s.failingSince), true
		}
	}
	return fleet.CheckResult{}, 0, false
}
