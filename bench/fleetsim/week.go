package main

import (
	"context"
	"fmt"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

// linesOfADay is how many lines of its own story a node tells in a day: what
// a node that is updated once and rebooted once does, and some.
const linesOfADay = 20

// days lets days pass as far as they leave something behind: on each, every
// node tells its lines and is moved to another image by a rollout.
// Heartbeats without news, of which a real day has more, leave nothing. After
// each day it says what memory and database hold.
func (f *fleetSim) days(ctx context.Context) error {
	for day := 1; day <= f.o.days; day++ {
		began := time.Now()
		if err := f.each(ctx, f.tellStory); err != nil {
			return fmt.Errorf("day %d: %w", day, err)
		}
		p := f.policy(0)
		p.MaxUnavailable = fleet.Amount{Percent: f.o.atOnce}
		image := []string{oldImage, dayImage}[day%2] // which fail on no node
		r, err := f.op.StartRollout(ctx, api.RolloutRequest{Image: image, Policy: p})
		if err != nil {
			return fmt.Errorf("day %d: %w", day, err)
		}
		r, err = f.follow(ctx, r, func(r *fleet.Rollout) (bool, error) { return r.State == fleet.RolloutRunning, nil })
		if err != nil {
			return fmt.Errorf("day %d: %w", day, err)
		}
		if r.State != fleet.RolloutDone {
			return fmt.Errorf("day %d: rollout %s is %s: %s", day, r.ID, r.State, r.Reason)
		}
		ev, err := f.op.Events(ctx, api.EventQuery{Last: true, Limit: 1})
		if err != nil || len(ev) == 0 {
			return fmt.Errorf("day %d: the newest event: %d, %w", day, len(ev), err)
		}
		_, rss := usage(f.p.cmd.Process.Pid)
		f.say("day %d, in %s: %d MiB resident, database %d MiB, %d events told so far", day, since(began), rss>>20, f.dbSize()>>20, ev[0].ID)
	}
	return nil
}

// tellStory sends a day's lines of a node.
func (f *fleetSim) tellStory(ctx context.Context, n *simNode) error {
	lines := make([]api.NodeEvent, linesOfADay)
	for i := range lines {
		lines[i] = api.NodeEvent{Kind: "install.progress", Message: fmt.Sprintf("%d %%: writing the root file system of slot B", 100*i/linesOfADay)}
	}
	return n.c.Events(ctx, lines...)
}
