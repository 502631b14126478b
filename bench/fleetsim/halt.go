package main

import (
	"context"
	"fmt"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

// taken is how many nodes an operator takes out of the rollout that is to
// halt, after it has moved them.
const taken = 5

// haltAndReturn drives a rollout that fails on a tenth of the rack, of which
// 2 % may: it has to halt, and to flip back what it changed and nothing else.
func (f *fleetSim) haltAndReturn(ctx context.Context) error {
	before := map[string]fleet.Node{}
	nodes, err := f.op.Nodes(ctx)
	if err != nil {
		return err
	}
	for _, n := range nodes {
		before[n.Name] = n
	}
	r, err := f.op.StartRollout(ctx, api.RolloutRequest{Image: badImage, Policy: f.policy(2)})
	if err != nil {
		return err
	}
	began := time.Now()
	var flipped []string
	r, err = f.follow(ctx, r, func(r *fleet.Rollout) (bool, error) {
		if len(flipped) == 0 && r.Stage > 0 { // the canary is done, and some of it no longer the rollout's
			if flipped, err = f.takeAway(ctx, r); err != nil {
				return false, err
			}
		}
		return r.State == fleet.RolloutRunning || !allBack(r, len(flipped)), nil
	})
	if err != nil {
		return err
	}
	f.say("rollout %s and its nodes back after %s: %s", r.State, since(began), r.Reason)
	if r.State != fleet.RolloutHalted {
		return fmt.Errorf("rollout %s is %s, want it halted", r.ID, r.State)
	}
	if nodes, err = f.op.Nodes(ctx); err != nil {
		return err
	}
	return returned(r, before, nodes, flipped)
}

// allBack reports whether a halted rollout has no node left that it moved,
// but for so many that are no longer its own.
func allBack(r *fleet.Rollout, others int) bool {
	for _, m := range r.Nodes {
		switch m.State {
		case fleet.MoveMoving, fleet.MoveReturning:
			return false
		case fleet.MoveDone:
			others--
		}
	}
	return others >= 0
}

// takeAway flips nodes that the rollout has moved, by an operator's word.
func (f *fleetSim) takeAway(ctx context.Context, r *fleet.Rollout) ([]string, error) {
	var names []string
	for _, m := range r.Nodes {
		if m.Stage == 0 && m.State == fleet.MoveDone && len(names) < taken {
			names = append(names, m.Node)
		}
	}
	f.hand += len(names)
	flips, err := f.op.Flip(ctx, api.FlipRequest{Nodes: names, Reason: "fleetsim"})
	if err != nil {
		return nil, err
	}
	for _, x := range flips {
		if !x.Done {
			return nil, fmt.Errorf("node %s was not flipped: %s", x.Node, x.Refused)
		}
	}
	return names, nil
}

// returned checks that each node is where it was, and that only those were
// touched that the rollout had changed.
func returned(r *fleet.Rollout, before map[string]fleet.Node, nodes []fleet.Node, flipped []string) error {
	moves := map[string]fleet.Move{}
	for _, m := range r.Nodes {
		moves[m.Node] = m
	}
	byOperator := map[string]bool{}
	for _, name := range flipped {
		byOperator[name] = true
	}
	count := map[fleet.MoveState]int{}
	for _, n := range nodes {
		was, m := before[n.Name], moves[n.Name]
		count[m.State]++
		switch {
		case byOperator[n.Name]:
			if n.Desired.Rollout != "" || m.State != fleet.MoveDone {
				return fmt.Errorf("node %s, which an operator took, is %s and wants %+v", n.Name, m.State, n.Desired)
			}
		case m.State == fleet.MoveWaiting || m.State == fleet.MoveSkipped:
			if n.Desired != was.Desired {
				return fmt.Errorf("node %s was never begun with, and wants %+v instead of %+v", n.Name, n.Desired, was.Desired)
			}
		case n.Reported.BootedImage() != was.Reported.BootedImage():
			return fmt.Errorf("node %s is %s and runs %s, ran %s", n.Name, m.State, n.Reported.BootedImage(), was.Reported.BootedImage())
		}
	}
	fmt.Printf("every node runs what it ran: %v; %d that an operator took were left to him\n", count, len(flipped))
	return nil
}
