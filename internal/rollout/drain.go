package rollout

import (
	"fmt"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// DefaultDrainWait is how long jobs may go on when the policy does not say.
const DefaultDrainWait = time.Hour

func (p *planner) drainWait() time.Duration {
	if w := p.r.Policy.DrainWait; w > 0 {
		return w
	}
	return DefaultDrainWait
}

// observeDraining goes on with a node once its jobs are gone, or gives up.
// What the hook says comes from outside, see Executor.
func (p *planner) observeDraining(m *fleet.Move) {
	n := p.nodes[m.Node]
	if m.Back {
		p.observeDrainingBack(m)
		return
	}
	if p.r.State != fleet.RolloutRunning && p.r.State != fleet.RolloutPaused {
		p.skip(m, "the rollout is "+string(p.r.State))
		return
	}
	if why := unfit(p.now, p.r, n); why != "" {
		p.skip(m, why)
		return
	}
	if p.r.State == fleet.RolloutPaused {
		return
	}
	switch {
	case m.Drain == fleet.DrainDone:
		p.begin(m)
	case p.now.Sub(m.DrainFrom) > p.drainWait():
		p.skip(m, p.notDrained(m))
	}
}

// observeDrainingBack is observeDraining for a node that was done and is to
// be returned.
func (p *planner) observeDrainingBack(m *fleet.Move) {
	n := p.nodes[m.Node]
	switch {
	case n == nil:
		p.fail(m, "removed on its way back")
	case n.Desired.Rollout != p.r.ID || n.Desired.Generation != m.Generation:
		p.fail(m, "an operator wanted something else of it on its way back: "+n.Desired.Reason)
	case m.Drain == fleet.DrainDone:
		p.step(Step{Kind: Return, Node: m.Node, Generation: NextGeneration(n), From: m.From,
			Reason: "rollout " + p.r.ID + " " + string(p.r.State)})
	case p.now.Sub(m.DrainFrom) > p.drainWait():
		p.step(Step{Kind: Keep, Node: m.Node, Reason: "not flipped back, " + p.notDrained(m)})
	}
}

func (p *planner) notDrained(m *fleet.Move) string {
	why := fmt.Sprintf("not drained within %s", p.drainWait())
	if m.DrainNote != "" {
		why += ": " + m.DrainNote
	}
	return why
}

func (p *planner) skip(m *fleet.Move, reason string) {
	p.step(Step{Kind: Skip, Node: m.Node, Reason: reason})
}

// toUndrain returns the moves whose nodes the scheduler may use again: they
// are through, and well. An operator's cordon is not worked against.
func toUndrain(r *fleet.Rollout, nodes map[string]*fleet.Node) []*fleet.Move {
	var out []*fleet.Move
	for i := range r.Nodes {
		m := &r.Nodes[i]
		if !m.Held() {
			continue
		}
		switch m.State {
		case fleet.MoveDraining, fleet.MoveMoving, fleet.MoveReturning:
			continue
		}
		if n := nodes[m.Node]; n == nil || n.State == fleet.NodeApproved && n.Reported != nil && n.Reported.Healthy {
			out = append(out, m)
		}
	}
	return out
}
