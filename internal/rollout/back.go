package rollout

import (
	"fmt"

	"github.com/turnout-project/turnout/internal/fleet"
)

func (p *planner) observeReturning(m *fleet.Move) {
	n := p.nodes[m.Node]
	switch {
	case n == nil:
		p.fail(m, "removed on its way back")
	case Runs(n, m.From, m.Generation):
		p.step(Step{Kind: Returned, Node: m.Node})
	case Fell(n, m.From, m.Generation) != "":
		p.fail(m, "on its way back: "+Fell(n, m.From, m.Generation))
	case n.Desired.Generation != m.Generation:
		p.fail(m, "an operator wanted something else of it on its way back: "+n.Desired.Reason)
	case p.now.Sub(m.Started) > p.timeout():
		p.fail(m, fmt.Sprintf("not back within %s: %s", p.timeout(), p.last(n)))
	}
}

// flipBack returns what the rollout changed, if its policy says so, within
// the same limits as the way there.
func (p *planner) flipBack() {
	if !p.r.Policy.FlipBack {
		return
	}
	room := map[int]int{}
	for i := range p.r.Policy.Stages {
		room[i] = p.room(i)
	}
	for i := range p.r.Nodes {
		m := &p.r.Nodes[i]
		n := p.nodes[m.Node]
		isOurs := n != nil && n.Desired.Rollout == p.r.ID && n.Desired.Generation == m.Generation
		isBack := m.State == fleet.MoveDone || m.State == fleet.MoveMoving
		if !isBack || !isOurs || m.From == "" || m.Back || Banned(n, m.From) != nil {
			continue
		}
		if m.State == fleet.MoveDone && !m.Held() { // others have their place already
			if room[m.Stage] <= 0 {
				continue
			}
			room[m.Stage]--
			if p.r.Policy.Drain != "" {
				p.step(Step{Kind: Drain, Node: m.Node, Reason: "drained by " + p.r.Policy.Drain + " for the way back, its jobs have " + p.drainWait().String()})
				continue
			}
		}
		p.step(Step{Kind: Return, Node: m.Node, Generation: NextGeneration(n), From: m.From,
			Reason: "rollout " + p.r.ID + " " + string(p.r.State)})
	}
}
