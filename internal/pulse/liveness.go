package pulse

import "time"

// LostAfter is how long a node may be silent before it is lost, by the
// server's clock.
const LostAfter = 5 * time.Minute

// SteadyFor is how long a lost node must be heard, without a pause as long
// as that, before it is back. So one that comes and goes makes one event.
const SteadyFor = time.Minute

// Change is what became of a node.
type Change string

// The changes.
const (
	NoChange Change = ""
	Lost     Change = "lost"
	Back     Change = "back"
)

// Liveness follows one node. The zero value is a node that is there.
type Liveness struct {
	lost  bool
	since time.Time // when it was last seen before it was lost
	heard time.Time // begin of the present run of heartbeats, zero for none
	last  time.Time // newest heartbeat of that run
}

// See takes in when the node was last seen and says what changed. Both times
// are the server's; the node's own clock has no part in it (case C81). If
// the server's clock was set back, nobody is lost by that.
func (l *Liveness) See(now, lastSeen time.Time) Change {
	silent := now.Sub(lastSeen)
	if !l.lost {
		if silent <= LostAfter {
			return NoChange
		}
		*l = Liveness{lost: true, since: lastSeen}
		return Lost
	}
	switch {
	case !lastSeen.After(l.since): // nothing new since it was lost
		return NoChange
	case silent > SteadyFor:
		l.heard = time.Time{}
		return NoChange
	case l.heard.IsZero() || lastSeen.Sub(l.last) > SteadyFor:
		l.heard = lastSeen
	}
	l.last = lastSeen
	if lastSeen.Sub(l.heard) < SteadyFor {
		return NoChange
	}
	*l = Liveness{since: l.since}
	return Back
}

// Since returns when a node that is lost, or has just come back, was last
// seen before.
func (l *Liveness) Since() time.Time { return l.since }
