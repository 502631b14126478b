package server

import "github.com/turnout-project/turnout/internal/fleet"

// A node's mood is a leaky bucket over its heartbeats: one with a failing
// check puts in, a healthy one takes out less. Full tells "unhealthy" once,
// empty tells "healthy" once. So a node that flaps at every heartbeat makes
// one event, and a check that needs a moment after the boot makes none.
const (
	moodIn   = 2
	moodFull = 10
	moodMax  = 12
)

// mood is in memory only: after a restart a change may be told again.
type mood struct {
	level int
	told  bool // that it is unhealthy
}

// mood returns the event for a change of the node's health, if it is to be
// told now.
func (s *Server) mood(node string, r *fleet.Report) *note {
	if r.Stage != fleet.StageSystem || r.Booted == fleet.NoSlot || r.Slot(r.Booted).State != fleet.SlotGood {
		return nil // a trial tells its own story
	}
	c, isFailing := fleet.FirstFailure(r.Health)
	s.mu.Lock()
	defer s.mu.Unlock()
	m := s.moods[node]
	if m == nil {
		m = &mood{}
		s.moods[node] = m
	}
	if isFailing && c.Status == fleet.CheckFailed {
		m.level = min(m.level+moodIn, moodMax)
	} else if r.Healthy {
		m.level = max(m.level-1, 0)
	}
	switch {
	case m.level >= moodFull && !m.told:
		m.told = true
		return &note{"node.unhealthy", "check " + c.Name + " (" + string(c.Class) + "): " + c.Detail}
	case m.level == 0 && m.told:
		m.told = false
		return &note{"node.healthy", "all required checks pass again"}
	}
	return nil
}
