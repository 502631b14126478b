package rollout

import (
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// applyTo does what a step says to the rollout and to the move it names (nil
// for none). The node itself is changed by applyNode.
func applyTo(r *fleet.Rollout, m *fleet.Move, s Step, now time.Time) {
	switch s.Kind {
	case Start:
		m.State, m.From, m.Generation, m.Started, m.Reason = fleet.MoveMoving, s.From, s.Generation, now, ""
	case Return:
		m.State, m.Generation, m.Started, m.Reason = fleet.MoveReturning, s.Generation, now, s.Reason
	case Drain:
		m.Back = m.State == fleet.MoveDone
		m.State, m.Drain, m.DrainFrom, m.DrainNote = fleet.MoveDraining, fleet.DrainAsked, now, ""
	case Keep:
		m.State, m.Reason = fleet.MoveDone, s.Reason
	case Done:
		m.State, m.Ended = fleet.MoveDone, now
	case Fail:
		m.State, m.Ended, m.Reason = fleet.MoveFailed, now, s.Reason
	case Skip:
		m.State, m.Ended, m.Reason = fleet.MoveSkipped, now, s.Reason
	case Returned:
		m.State, m.Ended = fleet.MoveReturned, now
	case Complete:
		r.BakedAt = now
	case Advance:
		r.Stage, r.BakedAt = r.Stage+1, time.Time{}
	case Halt:
		r.State, r.Reason = fleet.RolloutHalted, s.Reason
	case Finish:
		r.State = fleet.RolloutDone
	}
}

// applyNode does what a step says to the node it names, and reports whether
// it could: false means that the node has changed since the plan was made.
func applyNode(r *fleet.Rollout, m *fleet.Move, n *fleet.Node, s Step, now time.Time) bool {
	switch s.Kind {
	case Start:
		if unfit(now, r, n) != "" || NextGeneration(n) != s.Generation {
			return false
		}
		if r.Policy.Retry {
			Unban(n, r.Image)
		}
		Want(n, fleet.Desired{Image: r.Image, Tries: r.Policy.Tries, Rollout: r.ID, Reason: "rollout " + r.ID})
	case Return:
		if n.Desired.Rollout != r.ID || NextGeneration(n) != s.Generation {
			return false
		}
		Want(n, fleet.Desired{Image: s.From, Rollout: r.ID, Reason: s.Reason})
	case Fail:
		wasMoving := m.State == fleet.MoveMoving || m.State == fleet.MoveDone
		if wasMoving && n.Desired.Rollout == r.ID && n.Desired.Generation == m.Generation {
			Ban(n, r.Image, s.Reason, m.From, now)
		}
	}
	return true
}

// event says a step in the words of the fleet's history. label is the image
// as people call it.
func event(r *fleet.Rollout, s Step, label string, now time.Time) fleet.Event {
	e := fleet.Event{At: now, Actor: "rollout:" + r.ID, Node: s.Node, Message: s.Reason}
	stage := r.Policy.Stages[min(r.Stage, len(r.Policy.Stages)-1)].String()
	switch s.Kind {
	case Start:
		e.Kind, e.Message = "rollout.node-started", "asked to run "+label
	case Drain:
		e.Kind = "rollout.node-draining"
	case Keep:
		e.Kind = "rollout.node-kept"
	case Done:
		e.Kind, e.Message = "rollout.node-done", "runs "+label+", confirmed and healthy"
	case Fail:
		e.Kind = "rollout.node-failed"
	case Skip:
		e.Kind = "rollout.node-skipped"
	case Return:
		e.Kind, e.Message = "rollout.node-returning", "asked to go back: "+s.Reason
	case Returned:
		e.Kind, e.Message = "rollout.node-returned", "runs the image before again"
	case Complete:
		e.Kind, e.Message = "rollout.stage-complete", "stage "+stage+" is complete"
	case Advance:
		e.Kind, e.Message = "rollout.stage-started", "stage "+stage+" begins"
	case Halt:
		e.Kind = "rollout.halted"
	case Finish:
		e.Kind, e.Message = "rollout.done", "all stages run "+label
	}
	return e
}
