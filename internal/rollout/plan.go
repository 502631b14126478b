package rollout

import (
	"fmt"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/pulse"
)

// DefaultTimeout is how long a node may take when the policy does not say.
const DefaultTimeout = 30 * time.Minute

// LostAfter is how long a node may be silent before a rollout does not wait
// for it to begin its move.
const LostAfter = pulse.LostAfter

// Kind says what a Step does.
type Kind string

// The kinds of step.
const (
	Start    Kind = "start"    // want the image on a node
	Done     Kind = "done"     // a node runs it, confirmed and healthy
	Fail     Kind = "fail"     // a node did not come to run it
	Skip     Kind = "skip"     // a node takes no part
	Complete Kind = "complete" // every node of the stage has ended; bake
	Advance  Kind = "advance"  // go on to the next stage
	Halt     Kind = "halt"     // stop by itself
	Finish   Kind = "finish"   // all stages are complete
	Return   Kind = "return"   // want the image before on a node
	Returned Kind = "returned" // a node runs the image before again
	Drain    Kind = "drain"    // ask the scheduler to take a node's jobs away
	Keep     Kind = "keep"     // a node that was to go back stays as it is: its jobs go on
)

// Step is one change that follows from what is seen. Node, Generation and
// From are empty for the steps that concern no node.
type Step struct {
	Kind       Kind
	Node       string
	Generation uint64 // Start, Return: the generation of the wish
	From       string // Start: the image before; Return: the image wanted
	Reason     string
}

// Plan returns the next steps of a rollout as things stand: now by the
// server's clock, nodes as last reported. It changes nothing and is
// deterministic: the same input gives the same steps. Nodes that the rollout
// does not name are ignored; ones it names that are not among nodes have
// been removed. An empty plan means wait.
func Plan(now time.Time, r *fleet.Rollout, nodes []*fleet.Node) []Step {
	p := newPlanner(now, r, nodes)
	p.observe()
	if p.r.State == fleet.RolloutRunning || p.r.State == fleet.RolloutPaused {
		p.judgeBudget()
	}
	switch p.r.State {
	case fleet.RolloutRunning:
		p.progress()
	case fleet.RolloutHalted, fleet.RolloutAborted:
		p.flipBack()
	}
	return p.steps
}

// Live reports whether a rollout can still have steps.
func Live(r *fleet.Rollout) bool { return r.Live() }

type planner struct {
	now   time.Time
	r     *fleet.Rollout // a copy that steps are applied to
	nodes map[string]*fleet.Node
	moves map[string]*fleet.Move
	hot   map[string]string // domains that are hot as a whole, and why
	steps []Step
}

func newPlanner(now time.Time, r *fleet.Rollout, nodes []*fleet.Node) *planner {
	c := *r
	c.Nodes = append([]fleet.Move(nil), r.Nodes...)
	p := &planner{now: now, r: &c, nodes: make(map[string]*fleet.Node, len(nodes)), moves: index(&c), hot: pulse.Hot(now, nodes)}
	for _, n := range nodes {
		p.nodes[n.Name] = n
	}
	return p
}

func index(r *fleet.Rollout) map[string]*fleet.Move {
	ms := make(map[string]*fleet.Move, len(r.Nodes))
	for i := range r.Nodes {
		ms[r.Nodes[i].Node] = &r.Nodes[i]
	}
	return ms
}

// step records a step and applies it to the copy, so that what follows in
// the same plan sees it.
func (p *planner) step(s Step) {
	p.steps = append(p.steps, s)
	applyTo(p.r, p.moves[s.Node], s, p.now)
}

func (p *planner) timeout() time.Duration {
	if t := p.r.Policy.Timeout; t > 0 {
		return t
	}
	return DefaultTimeout
}

// observe ends the moves whose outcome can be seen.
func (p *planner) observe() {
	for i := range p.r.Nodes {
		m := &p.r.Nodes[i]
		switch m.State {
		case fleet.MoveMoving:
			p.observeMoving(m)
		case fleet.MoveReturning:
			p.observeReturning(m)
		case fleet.MoveDone:
			p.observeDone(m)
		case fleet.MoveDraining:
			p.observeDraining(m)
		}
	}
}

func (p *planner) observeMoving(m *fleet.Move) {
	n := p.nodes[m.Node]
	switch {
	case n == nil:
		p.fail(m, "removed while it was moving")
	case Runs(n, p.r.Image, m.Generation) && n.Reported.Healthy:
		p.step(Step{Kind: Done, Node: m.Node})
	case Banned(n, p.r.Image) != nil:
		p.blame(m, n, Banned(n, p.r.Image).Reason)
	case Fell(n, p.r.Image, m.Generation) != "":
		p.blame(m, n, Fell(n, p.r.Image, m.Generation))
	case n.Desired.Generation != m.Generation:
		p.fail(m, "an operator wanted something else of it meanwhile: "+n.Desired.Reason)
	case p.now.Sub(m.Started) > p.timeout() && n.Reported != nil && !fleet.Diagnose(n.Reported.Health).BlamesImage():
		p.step(Step{Kind: Skip, Node: m.Node, Reason: fmt.Sprintf("not the image's fault (%s): %s", fleet.Diagnose(n.Reported.Health), p.last(n))})
	case p.now.Sub(m.Started) > p.timeout():
		p.blame(m, n, fmt.Sprintf("not confirmed within %s: %s", p.timeout(), p.last(n)))
	}
}

// last says what was last known of a node that took too long.
func (p *planner) last(n *fleet.Node) string {
	if f := n.Failure; f != nil && f.Image == p.r.Image {
		return f.String()
	}
	if n.Reported == nil {
		return "it has not reported"
	}
	if p.now.Sub(n.LastSeen) > LostAfter {
		return "not seen since " + n.LastSeen.UTC().Format(time.RFC3339)
	}
	if f, ok := fleet.FirstFailure(n.Reported.Health); ok {
		return "check " + f.Name + ": " + f.Detail
	}
	return "it says: " + n.Reported.Activity
}

// observeDone watches a node that had made it, while the rollout goes on. A
// node that an operator took elsewhere since is no failure of the image.
func (p *planner) observeDone(m *fleet.Move) {
	n := p.nodes[m.Node]
	if p.r.State != fleet.RolloutRunning && p.r.State != fleet.RolloutPaused || n == nil {
		return
	}
	if b := Banned(n, p.r.Image); b != nil {
		p.blame(m, n, "after it was done: "+b.Reason)
	} else if why := Fell(n, p.r.Image, m.Generation); why != "" {
		p.blame(m, n, "after it was done: "+why)
	}
}

// blame counts a node as failed, unless its whole rack is hot: then the image
// may be as innocent as the node, and the node is left out.
func (p *planner) blame(m *fleet.Move, n *fleet.Node, reason string) {
	if why, ok := p.hot[pulse.Domain(n)]; ok {
		p.step(Step{Kind: Skip, Node: m.Node, Reason: "not the image's fault: " + why + "; " + reason})
		return
	}
	p.fail(m, reason)
}

func (p *planner) fail(m *fleet.Move, reason string) {
	p.step(Step{Kind: Fail, Node: m.Node, Reason: reason})
}

// judgeBudget halts a rollout with more failures than it may have.
func (p *planner) judgeBudget() {
	failed := 0
	var last *fleet.Move
	for i := range p.r.Nodes {
		if m := &p.r.Nodes[i]; m.State == fleet.MoveFailed {
			failed++
			if last == nil || m.Ended.After(last.Ended) {
				last = m
			}
		}
	}
	if budget := p.r.Policy.FailureBudget.Of(len(p.r.Nodes)); failed > budget {
		p.step(Step{Kind: Halt, Reason: fmt.Sprintf("node %s: %s (%d failed, budget %d)", last.Node, last.Reason, failed, budget)})
	}
}

// progress starts what may start, and goes from stage to stage.
func (p *planner) progress() {
	for p.r.State == fleet.RolloutRunning {
		p.start()
		if !p.stageEnded() || !p.endStage() {
			return
		}
	}
}

func (p *planner) stageMoves() []*fleet.Move {
	var ms []*fleet.Move
	for i := range p.r.Nodes {
		if p.r.Nodes[i].Stage == p.r.Stage {
			ms = append(ms, &p.r.Nodes[i])
		}
	}
	return ms
}

// start begins moves of the current stage while there is room.
func (p *planner) start() {
	room := p.room(p.r.Stage)
	if !p.r.Policy.InWindow(p.now) {
		room = 0
	}
	var fit []*fleet.Move
	for _, m := range p.stageMoves() {
		if m.State != fleet.MoveWaiting {
			continue
		}
		if why := unfit(p.now, p.r, p.nodes[m.Node]); why != "" {
			p.step(Step{Kind: Skip, Node: m.Node, Reason: why})
			continue
		}
		fit = append(fit, m)
	}
	for _, unit := range p.units(fit) {
		if len(unit) > room {
			return // in order: a large unit must not wait for ever behind small ones
		}
		room -= len(unit)
		for _, m := range unit {
			if p.r.Policy.Drain != "" {
				p.step(Step{Kind: Drain, Node: m.Node, Reason: "drained by " + p.r.Policy.Drain + ", its jobs have " + p.drainWait().String()})
				continue
			}
			p.begin(m)
		}
	}
}

// begin starts a node's move.
func (p *planner) begin(m *fleet.Move) {
	n := p.nodes[m.Node]
	p.step(Step{Kind: Start, Node: m.Node, Generation: NextGeneration(n), From: n.Reported.BootedImage()})
}

// units groups moves into what starts together, in order of their first.
func (p *planner) units(ms []*fleet.Move) [][]*fleet.Move {
	var out [][]*fleet.Move
	at := map[string]int{}
	for _, m := range ms {
		d := ""
		if p.r.Policy.ByDomain {
			d = p.nodes[m.Node].Domain
		}
		i, ok := at[d]
		if !ok || d == "" {
			i = len(out)
			at[d] = i
			out = append(out, nil)
		}
		out[i] = append(out[i], m)
	}
	return out
}

// room returns how many more nodes of a stage may become unavailable.
func (p *planner) room(stage int) int {
	total, busy := 0, 0
	for i := range p.r.Nodes {
		m := &p.r.Nodes[i]
		if m.Stage != stage {
			continue
		}
		total++
		n := p.nodes[m.Node]
		if m.Held() && n != nil {
			busy++ // the scheduler has not got it back
			continue
		}
		switch m.State {
		case fleet.MoveMoving, fleet.MoveReturning, fleet.MoveDraining:
			busy++
		case fleet.MoveFailed, fleet.MoveSkipped:
			if m.State == fleet.MoveSkipped && m.Started.IsZero() {
				continue // was never touched
			}
			if n != nil && (n.Reported == nil || !n.Reported.Healthy) {
				busy++ // left unwell by this rollout: it keeps its place
			}
		}
	}
	return p.r.Policy.MaxUnavailable.AtLeastOne(total) - busy
}

func (p *planner) stageEnded() bool {
	for _, m := range p.stageMoves() {
		switch {
		case m.State == fleet.MoveWaiting, m.State == fleet.MoveMoving, m.State == fleet.MoveReturning, m.State == fleet.MoveDraining:
			return false
		case m.State == fleet.MoveDone && m.Held() && p.nodes[m.Node] != nil && p.nodes[m.Node].State == fleet.NodeApproved:
			return false // not before its scheduler uses it again
		}
	}
	return true
}

// endStage completes a stage whose nodes have all ended, and goes on to the
// next once it has baked. It returns whether there is a next one to start.
func (p *planner) endStage() bool {
	if p.r.BakedAt.IsZero() {
		if why := p.unproven(); why != "" {
			p.step(Step{Kind: Halt, Reason: why})
			return false
		}
		p.step(Step{Kind: Complete})
	}
	if p.r.Stage >= len(p.r.Policy.Stages)-1 {
		p.step(Step{Kind: Finish})
		return false
	}
	baked := p.r.BakedAt.Add(p.r.Policy.Bake)
	if p.now.Before(baked) || !p.stageHealthy(baked) {
		return false
	}
	p.step(Step{Kind: Advance})
	return true
}

// unproven says why a stage that has ended proves nothing: nobody in it came
// to run the image. A later stage must not be the first to try it.
func (p *planner) unproven() string {
	why := ""
	for _, m := range p.stageMoves() {
		if m.State == fleet.MoveDone || m.State == fleet.MoveSkipped && m.Reason == alreadyThere {
			return ""
		}
		if why == "" {
			why = "node " + m.Node + " " + m.Reason
		}
	}
	if why == "" {
		return ""
	}
	return fmt.Sprintf("stage %d (%s) proved nothing, no node of it runs the image: %s",
		p.r.Stage+1, p.r.Policy.Stages[p.r.Stage], why)
}

// stageHealthy reports whether the nodes that are done are still well. One
// that has been unwell for the time-out after the bake has failed.
func (p *planner) stageHealthy(baked time.Time) bool {
	healthy := true
	for _, m := range p.stageMoves() {
		n := p.nodes[m.Node]
		if m.State != fleet.MoveDone || n == nil || n.Reported == nil || n.Reported.Healthy || n.State != fleet.NodeApproved {
			continue
		}
		healthy = false
		if p.now.Sub(baked) > p.timeout() {
			p.fail(m, "unhealthy after it was done: "+p.last(n))
		}
	}
	if !healthy {
		p.judgeBudget()
	}
	return healthy
}
