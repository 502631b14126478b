package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/rollout"
)

// flipMany are the flags of `slot flip` for more nodes than one would name.
type flipMany struct {
	pool, rollout string
	selector      string
	atOnce        string
	now           bool
	timeout       time.Duration
}

func (m *flipMany) add(cmd *cobra.Command, g *globals) {
	f := cmd.Flags()
	f.StringVar(&m.pool, "pool", "", "flip the nodes of this pool")
	f.StringVar(&m.rollout, "rollout", "", "flip the nodes that this rollout has moved")
	selectorFlag(cmd, &m.selector, "flip the nodes")
	f.StringVar(&m.atOnce, "max-unavailable", "25%", "with --pool, --rollout or --selector: nodes on the move at once, a number or a percentage; rounded down, at least 1")
	f.BoolVar(&m.now, "now", false, "with --pool, --rollout or --selector: all at once")
	f.DurationVar(&m.timeout, "timeout", rollout.DefaultTimeout, "with --pool, --rollout or --selector: how long a node may take")
	must(cmd.RegisterFlagCompletionFunc("pool", g.completePools))
	must(cmd.RegisterFlagCompletionFunc("rollout", g.completeRollouts))
}

// isMany reports whether nodes are picked rather than named.
func (m *flipMany) isMany() bool { return m.pool != "" || m.rollout != "" || m.selector != "" }

// args wants either nodes, or a pool or a selector or both, or a rollout.
func (m *flipMany) args(cmd *cobra.Command, args []string) error {
	ways := 0
	for _, is := range []bool{len(args) > 0, m.pool != "" || m.selector != "", m.rollout != ""} {
		if is {
			ways++
		}
	}
	if ways != 1 {
		return cli.Usagef(cmd, "want either nodes, or --pool or --selector, or --rollout")
	}
	if _, err := selectorOf(cmd, m.selector); err != nil {
		return err
	}
	if _, err := fleet.ParseAmount(m.atOnce); err != nil {
		return cli.Usagef(cmd, "--max-unavailable: %v", err)
	}
	return nil
}

func (m *flipMany) run(cmd *cobra.Command, g *globals, r api.FlipRequest, yes bool) error {
	c, err := g.client()
	if err != nil {
		return err
	}
	names, err := m.nodes(cmd.Context(), c)
	if err != nil {
		return err
	}
	draft := r
	draft.Nodes, draft.DryRun = names, true
	flips, err := c.Flip(cmd.Context(), draft)
	if err != nil {
		return err
	}
	fit := slices.DeleteFunc(slices.Clone(flips), func(f api.Flip) bool { return f.Refused != "" })
	size := m.batch(len(fit))
	if r.DryRun || !yes {
		if err := g.printFlips(cmd, c, flips, "would boot"); err != nil || r.DryRun {
			return err
		}
	}
	if len(fit) == 0 {
		return refusedf("none of the %d nodes can be flipped; --dry-run says why", len(flips))
	}
	if err := confirm(cmd, yes, fmt.Sprintf("%d node(s) will reboot, %d at once; %d left out.", len(fit), size, len(flips)-len(fit))); err != nil {
		return err
	}
	done := 0
	for batch := range slices.Chunk(fit, size) {
		if err := m.flip(cmd, c, r, batch); err != nil {
			return fmt.Errorf("%w\n  %d of %d nodes are flipped; no more are started", err, done, len(fit))
		}
		done += len(batch)
		fmt.Fprintf(cmd.ErrOrStderr(), "%d of %d nodes run their other slot, confirmed\n", done, len(fit))
	}
	return nil
}

// batch is how many of total may be on the move at once.
func (m *flipMany) batch(total int) int {
	if m.now || total == 0 {
		return max(total, 1)
	}
	a, _ := fleet.ParseAmount(m.atOnce) // checked with the arguments
	return min(a.AtLeastOne(total), total)
}

// nodes finds who is meant.
func (m *flipMany) nodes(ctx context.Context, c *api.Client) ([]string, error) {
	nodes, err := c.Nodes(ctx)
	if err != nil {
		return nil, err
	}
	var names []string
	if m.rollout == "" {
		var sel fleet.Selector
		if m.selector != "" {
			if sel, err = fleet.ParseSelector(m.selector); err != nil {
				return nil, err
			}
		}
		for _, n := range nodes {
			if (m.pool == "" || n.Pool == m.pool) && sel.Matches(n.Labels) && n.State != fleet.NodePending {
				names = append(names, n.Name)
			}
		}
		switch {
		case names == nil && m.selector != "":
			return nil, refusedf("no node matches %q; `pxeserver node list -o wide` shows labels", m.selector)
		case names == nil:
			return nil, refusedf("pool %q has no nodes", m.pool)
		}
		return names, nil
	}
	r, err := c.Rollout(ctx, m.rollout)
	if err != nil {
		return nil, err
	}
	runs := map[string]bool{}
	for _, n := range nodes {
		runs[n.Name] = n.Reported.BootedImage() == r.Image
	}
	for _, mv := range r.Nodes {
		if mv.State == fleet.MoveDone && runs[mv.Node] {
			names = append(names, mv.Node)
		}
	}
	if names == nil {
		return nil, refusedf("no node runs the image of rollout %s because of it", r.ID)
	}
	return names, nil
}

// flip flips a batch and waits until all of it runs the other slot.
func (m *flipMany) flip(cmd *cobra.Command, c *api.Client, r api.FlipRequest, batch []api.Flip) error {
	r.Nodes = nil
	for _, f := range batch {
		r.Nodes = append(r.Nodes, f.Node)
	}
	flips, err := c.Flip(cmd.Context(), r)
	if err != nil {
		return err
	}
	if err := refusedFlips(flips); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), m.timeout)
	defer cancel()
	for {
		waits, err := arrived(ctx, c, flips)
		if err != nil && !errors.Is(err, api.ErrUnreachable) && api.StatusOf(err) < 500 {
			return err
		}
		if err == nil && len(waits) == 0 {
			return nil
		}
		select {
		case <-ctx.Done():
			if cmd.Context().Err() != nil {
				return cmd.Context().Err()
			}
			return &statusError{exitRollout, fmt.Sprintf("not there after %s: %s", m.timeout, strings.Join(waits, ", "))}
		case <-time.After(time.Second):
		}
	}
}

// arrived returns the nodes that are still on their way. A node that fell
// back is an error.
func arrived(ctx context.Context, c *api.Client, flips []api.Flip) (waits []string, err error) {
	for _, f := range flips {
		n, err := c.Node(ctx, f.Node)
		if err != nil {
			return nil, err
		}
		why := rollout.Fell(n, f.Image, f.Generation)
		if b := rollout.Banned(n, f.Image); b != nil {
			why = b.Reason
		}
		switch {
		case why != "":
			return nil, &statusError{exitRollout, fmt.Sprintf("node %s went back: %s", f.Node, why)}
		case n.Desired.Generation != f.Generation:
			return nil, &statusError{exitRollout, fmt.Sprintf("node %s was asked for something else meanwhile: %s", f.Node, n.Desired.Reason)}
		case !rollout.Runs(n, f.Image, f.Generation) || !n.Reported.Healthy:
			waits = append(waits, f.Node)
		}
	}
	return waits, nil
}
