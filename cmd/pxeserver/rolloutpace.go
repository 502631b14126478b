package main

import (
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

// pace is how long nodes took in the newest rollout in which some came to
// run its image. The zero value knows none.
type pace struct {
	rollout string
	median  time.Duration
	nodes   int
}

// paceOf asks for it; without an answer the pace is not known.
func paceOf(cmd *cobra.Command, c *api.Client) pace {
	all, err := c.RolloutSummaries(cmd.Context())
	if err != nil {
		return pace{}
	}
	for _, s := range slices.Backward(all) {
		r, err := c.Rollout(cmd.Context(), s.ID)
		if err != nil {
			return pace{}
		}
		if p := paceIn(r); p.nodes > 0 {
			return p
		}
	}
	return pace{}
}

func paceIn(r *fleet.Rollout) pace {
	var took []time.Duration
	for _, m := range r.Nodes {
		if m.State == fleet.MoveDone && m.Ended.After(m.Started) {
			took = append(took, m.Ended.Sub(m.Started))
		}
	}
	if len(took) == 0 {
		return pace{}
	}
	slices.Sort(took)
	return pace{r.ID, took[len(took)/2], len(took)}
}

// wavesOf says in which wave each node of a draft would move, if all nodes
// took the same time, and how many waves there are. Nodes that cannot take
// part are in none. Nodes of one domain that start together are counted as
// if they did not.
func wavesOf(r *fleet.Rollout) (of map[string]int, waves int) {
	of = map[string]int{}
	for i := range r.Policy.Stages {
		total, moving := 0, []string{}
		for _, m := range r.Nodes {
			if m.Stage != i {
				continue
			}
			total++
			if m.Reason == "" {
				moving = append(moving, m.Node)
			}
		}
		limit := r.Policy.MaxUnavailable.AtLeastOne(total)
		for k, name := range moving {
			of[name] = waves + k/limit + 1
		}
		waves += (len(moving) + limit - 1) / limit
	}
	return of, waves
}

// expect says in how many waves a rollout goes, and how long that takes
// without windows, drains and failures.
func (p pace) expect(r *fleet.Rollout) string {
	_, waves := wavesOf(r)
	text := fmt.Sprintf("%d waves", waves)
	bakes := time.Duration(len(r.Policy.Stages)-1) * r.Policy.Bake
	if p.nodes == 0 {
		return text + fmt.Sprintf(", and %s of baking; how long a node takes is not known before the first rollout", bakes)
	}
	d := (time.Duration(waves)*p.median + bakes).Round(time.Second)
	text += fmt.Sprintf(", about %s: %s a node as in rollout %s, and %s of baking", d, p.median.Round(time.Second), p.rollout, bakes)
	if r.Policy.Drain != "" {
		text += fmt.Sprintf(", and up to %s a wave until jobs have ended", r.Policy.DrainWait)
	}
	return text
}
