package demo

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/vmtest"
)

// patience is how long one move of a node may take under software emulation
// on a slow machine. It bounds a hang of the demo; nothing is measured by it.
const patience = 12 * time.Minute

// names of the rack's nodes; the first is the canary.
var names = []string{"n1", "n2", "n3"}

func pool(name string) string {
	if name == names[0] {
		return "canary"
	}
	return "rack"
}

// provision is scene 1.
func provision(ctx context.Context, l *lab) error {
	for _, name := range names {
		if _, err := l.rack.AddNode(vmtest.NodeSpec{Name: name}); err != nil {
			return err
		}
	}
	if err := l.startServer(ctx); err != nil {
		return err
	}
	if err := l.follow(); err != nil {
		return err
	}
	if err := l.publish(ctx, "v1"); err != nil {
		return err
	}
	for _, p := range []string{"canary", "rack"} {
		if _, err := l.operator(ctx, "pool", "set", p, "--image", l.digests["v1"]); err != nil {
			return err
		}
	}
	for _, n := range l.rack.Nodes() {
		if err := n.PowerOn(); err != nil {
			return err
		}
	}
	for _, n := range l.rack.Nodes() {
		if err := l.approve(ctx, n); err != nil {
			return err
		}
	}
	for _, name := range names {
		n, err := l.settled(ctx, name, l.digests["v1"], patience)
		if err != nil {
			return err
		}
		if n.Reported.Booted != fleet.SlotA || n.Reported.BootPath != "disk" {
			return fmt.Errorf("node %s booted slot %s from %s, want A from disk", name, n.Reported.Booted, n.Reported.BootPath)
		}
	}
	_, err := l.operator(ctx, "node", "list")
	return err
}

func (l *lab) publish(ctx context.Context, v string) error {
	_, err := l.operator(ctx, "image", "publish", l.path("images/"+v))
	return err
}

// approve waits until the server has met the machine, then lets it in.
func (l *lab) approve(ctx context.Context, n *vmtest.Node) error {
	var found string
	err := l.until(ctx, n.Name+" to show up", patience, func() (bool, string) {
		var nodes []fleet.Node
		if err := l.query(ctx, &nodes, "node", "list"); err != nil {
			return false, err.Error()
		}
		for _, x := range nodes {
			if slices.Contains(x.MACs, fleet.MAC(n.MAC)) && x.State == fleet.NodePending && x.EKHash != "" {
				found = x.Name
				return true, ""
			}
		}
		return false, fmt.Sprintf("%d nodes known", len(nodes))
	})
	if err != nil {
		return err
	}
	_, err = l.operator(ctx, "node", "approve", found, "--name", n.Name, "--pool", pool(n.Name))
	return err
}

// canary is scene 2, with the server killed in the middle.
func canary(ctx context.Context, l *lab) error {
	if err := l.publish(ctx, "v2"); err != nil {
		return err
	}
	id, err := l.startRollout(ctx, "v2")
	if err != nil {
		return err
	}
	if err := l.until(ctx, "the canary to be on its way", patience, func() (bool, string) {
		n, err := l.node(ctx, names[0])
		if err != nil || n.Reported == nil {
			return false, fmt.Sprint(err)
		}
		return n.Reported.Activity != "" && n.Reported.Activity != "idle", l.describe(n)
	}); err != nil {
		return err
	}
	l.say("killing pxeserver with SIGKILL, and starting it again")
	l.stopStory()
	if err := l.killServer(); err != nil {
		return err
	}
	if err := l.startServer(ctx); err != nil {
		return err
	}
	if err := l.follow(); err != nil {
		return err
	}
	r, err := l.rolloutEnds(ctx, id)
	if err != nil {
		return err
	}
	if r.State != fleet.RolloutDone {
		return fmt.Errorf("rollout %s ended %s (%s), want done", id, r.State, r.Reason)
	}
	if err := canaryFirst(r); err != nil {
		return err
	}
	for _, name := range names {
		n, err := l.settled(ctx, name, l.digests["v2"], patience)
		if err != nil {
			return err
		}
		if n.Reported.Booted != fleet.SlotB {
			return fmt.Errorf("node %s runs v2 from slot %s, want B", name, n.Reported.Booted)
		}
	}
	return nil
}

// canaryFirst checks that no other node started before the canary was done.
func canaryFirst(r fleet.Rollout) error {
	for _, m := range r.Nodes {
		if m.State != fleet.MoveDone {
			return fmt.Errorf("node %s ended %s (%s), want done", m.Node, m.State, m.Reason)
		}
		if m.Stage > 0 && m.Started.Before(r.Nodes[0].Ended) {
			return fmt.Errorf("node %s was moved before the canary %s was confirmed", m.Node, r.Nodes[0].Node)
		}
	}
	return nil
}

func (l *lab) startRollout(ctx context.Context, v string) (string, error) {
	return l.startRolloutTo(ctx, v, "canary", "rack")
}

func (l *lab) startRolloutTo(ctx context.Context, v string, pools ...string) (string, error) {
	args := []string{"rollout", "start", "--image", l.digests[v]}
	for _, p := range pools {
		args = append(args, "--stage", p)
	}
	args = append(args, "--bake", "5s", "--max-unavailable", "2", "--failure-budget", "0", "--tries", "1", "--yes")
	l.say("$ pxeserver %s", l.shorten(strings.Join(args, " ")))
	var r fleet.Rollout
	err := l.query(ctx, &r, args...)
	return r.ID, err
}

func (l *lab) rolloutEnds(ctx context.Context, id string) (fleet.Rollout, error) {
	var r fleet.Rollout
	err := l.until(ctx, "rollout "+id+" to end", 2*patience, func() (bool, string) {
		if err := l.query(ctx, &r, "rollout", "status", id); err != nil {
			return false, err.Error()
		}
		return r.State != fleet.RolloutRunning, string(r.State)
	})
	return r, err
}

// unhealthy is scene 3.
func unhealthy(ctx context.Context, l *lab) error {
	return l.badImage(ctx, "v3", func(status string) error {
		if !strings.Contains(status, "workload") {
			return fmt.Errorf("rollout status does not name the failed check workload:\n%s", status)
		}
		return nil
	})
}

// hang is scene 4.
func hang(ctx context.Context, l *lab) error {
	_, before := l.rack.Nodes()[0].Resets()
	err := l.badImage(ctx, "v4", func(string) error { return nil })
	if err != nil {
		return err
	}
	if _, after := l.rack.Nodes()[0].Resets(); after == before {
		return fmt.Errorf("node %s came back, but not by its hardware watchdog", names[0])
	}
	l.say("the hardware watchdog reset %s", names[0])
	return nil
}

// badImage rolls out an image that must fail on the canary, and checks that
// the canary is back on v2, the rollout halted and nobody else was touched.
func (l *lab) badImage(ctx context.Context, v string, check func(status string) error) error {
	boots, err := l.bootIDs(ctx)
	if err != nil {
		return err
	}
	if err := l.publish(ctx, v); err != nil {
		return err
	}
	id, err := l.startRollout(ctx, v)
	if err != nil {
		return err
	}
	r, err := l.rolloutEnds(ctx, id)
	if err != nil {
		return err
	}
	if r.State != fleet.RolloutHalted {
		return fmt.Errorf("rollout of %s ended %s (%s), want halted", v, r.State, r.Reason)
	}
	n, err := l.settled(ctx, names[0], l.digests["v2"], patience)
	if err != nil {
		return err
	}
	if bad := n.Reported.Slot(n.Reported.Booted.Other()); bad.State != fleet.SlotBad {
		return fmt.Errorf("slot %s of %s is %s after %s failed, want bad", bad.Slot, n.Name, bad.State, v)
	}
	after, err := l.bootIDs(ctx)
	if err != nil {
		return err
	}
	for _, name := range names[1:] {
		if boots[name] != after[name] {
			return fmt.Errorf("node %s was rebooted although the canary failed", name)
		}
	}
	status, err := l.operator(ctx, "rollout", "status", id)
	if err != nil {
		return err
	}
	return check(status)
}

func (l *lab) bootIDs(ctx context.Context) (map[string]string, error) {
	ids := map[string]string{}
	for _, name := range names {
		n, err := l.node(ctx, name)
		if err != nil {
			return nil, err
		}
		if n.Reported == nil {
			return nil, fmt.Errorf("node %s has reported nothing", name)
		}
		ids[name] = n.Reported.BootID
	}
	return ids, nil
}

// flip is scene 5.
func flip(ctx context.Context, l *lab) error {
	if _, err := l.operator(ctx, "slot", "flip", names[1], "--yes"); err != nil {
		return err
	}
	n, err := l.settled(ctx, names[1], l.digests["v1"], patience)
	if err != nil {
		return err
	}
	if n.Reported.Booted != fleet.SlotA {
		return fmt.Errorf("node %s runs slot %s after the flip, want A", n.Name, n.Reported.Booted)
	}
	return nil
}
