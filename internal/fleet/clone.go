package fleet

import (
	"maps"
	"slices"
)

// Clone returns a copy that shares no memory with n. nil stays nil.
func (n *Node) Clone() *Node {
	if n == nil {
		return nil
	}
	c := *n
	c.MACs = slices.Clone(n.MACs)
	c.Labels = maps.Clone(n.Labels)
	c.Banned = slices.Clone(n.Banned)
	c.Forgiven = slices.Clone(n.Forgiven)
	c.Reported = n.Reported.Clone()
	if n.Verdict != nil {
		v := *n.Verdict
		v.Findings = slices.Clone(v.Findings)
		c.Verdict = &v
	}
	if n.Failure != nil {
		f := *n.Failure
		c.Failure = &f
	}
	if n.Ask != nil {
		a := *n.Ask
		c.Ask = &a
	}
	return &c
}

// Clone returns a copy that shares no memory with r. nil stays nil.
func (r *Report) Clone() *Report {
	if r == nil {
		return nil
	}
	c := *r
	c.Slots = slices.Clone(r.Slots)
	c.Versions = maps.Clone(r.Versions)
	c.Metrics = maps.Clone(r.Metrics)
	c.Usage = slices.Clone(r.Usage)
	c.Health = slices.Clone(r.Health)
	if r.Inventory != nil {
		i := *r.Inventory
		i.Disks, i.NICs, i.PCI = slices.Clone(i.Disks), slices.Clone(i.NICs), slices.Clone(i.PCI)
		c.Inventory = &i
	}
	return &c
}

// Clone returns a copy that shares no memory with r. nil stays nil.
func (r *Rollout) Clone() *Rollout {
	if r == nil {
		return nil
	}
	c := *r
	c.Nodes = slices.Clone(r.Nodes)
	c.Policy = r.Policy.Clone()
	return &c
}

// Clone returns a copy that shares no memory with p.
func (p Policy) Clone() Policy {
	p.Stages = slices.Clone(p.Stages)
	for i := range p.Stages {
		p.Stages[i].Nodes = slices.Clone(p.Stages[i].Nodes)
	}
	p.Windows = slices.Clone(p.Windows)
	return p
}

// Live reports whether a rollout can still have steps.
func (r *Rollout) Live() bool {
	switch r.State {
	case RolloutRunning, RolloutPaused:
		return true
	}
	for _, m := range r.Nodes {
		if m.State == MoveMoving || m.State == MoveReturning || m.State == MoveDraining || m.Held() ||
			m.State == MoveDone && r.Policy.FlipBack && r.State != RolloutDone {
			return true
		}
	}
	return false
}
