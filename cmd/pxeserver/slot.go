package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/internal/api"
)

func newSlotCommand(g *globals) *cobra.Command {
	return group("slot", "Work with the two slots of a node", newSlotFlipCommand(g))
}

func newSlotFlipCommand(g *globals) *cobra.Command {
	var r api.FlipRequest
	var m flipMany
	var yes bool
	cmd := &cobra.Command{
		Use: "flip NODE… | --pool POOL | --selector LABELS | --rollout ROLLOUT", Short: "Boot the other confirmed slot",
		Long: `Asks nodes to boot their other slot, which must be confirmed (good). It is
tried like a new image: if it does not come up healthy and attested, the node
falls back to the slot it runs now.

What will be done is said first. If one of the nodes cannot be flipped, none is
touched, and the reason is given.

With --pool, --selector or --rollout many nodes are flipped: those of a pool,
those with some labels, or those that a rollout has moved and that still run
its image. Nodes that cannot be flipped
are named and left out. They go in batches of --max-unavailable; the next batch
starts when the one before runs its other slot, confirmed and healthy, and none
starts after a node that did not get there. --now flips all at once.
` + exitCodes,
		Example: "  pxeserver slot flip n1 n2 --dry-run\n  pxeserver slot flip n1 --reason 'driver hangs under load' --yes\n  pxeserver slot flip --rollout r7 --max-unavailable 25%",
		Args:    m.args, ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			if m.isMany() {
				return m.run(cmd, g, r, yes)
			}
			r.Nodes = args
			return runFlip(cmd, g, r, yes)
		},
	}
	cmd.Flags().BoolVar(&r.DryRun, "dry-run", false, "only say what would be done")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().StringVar(&r.Reason, "reason", "", "why, for the history")
	m.add(cmd, g)
	return cmd
}

func runFlip(cmd *cobra.Command, g *globals, r api.FlipRequest, yes bool) error {
	c, err := g.client()
	if err != nil {
		return err
	}
	draft := r
	draft.DryRun = true
	flips, err := c.Flip(cmd.Context(), draft)
	if err != nil {
		return err
	}
	if err := refusedFlips(flips); err != nil || r.DryRun {
		if e := g.printFlips(cmd, c, flips, "would boot"); e != nil {
			return e
		}
		return err
	}
	if !yes {
		if err := g.printFlips(cmd, c, flips, "will boot"); err != nil {
			return err
		}
	}
	if err := confirm(cmd, yes, fmt.Sprintf("%d node(s) will reboot.", len(flips))); err != nil {
		return err
	}
	if flips, err = c.Flip(cmd.Context(), r); err != nil {
		return err
	}
	if err := refusedFlips(flips); err != nil { // things changed since the draft
		return err
	}
	return g.printFlips(cmd, c, flips, "boots")
}

func refusedFlips(flips []api.Flip) error {
	var why []string
	for _, f := range flips {
		if f.Refused != "" {
			why = append(why, "node "+f.Node+" cannot be flipped: "+f.Refused)
		}
	}
	if why == nil {
		return nil
	}
	return refusedf("%s\n  no node was touched; `pxeserver node show NODE` tells more", strings.Join(why, "\n"))
}

func (g *globals) printFlips(cmd *cobra.Command, c *api.Client, flips []api.Flip, verb string) error {
	ns := imageNames(cmd, c)
	return g.print(cmd, flips, func(t *tabwriter.Writer) {
		for _, f := range flips {
			if f.Refused != "" {
				fmt.Fprintf(t, "%s\trefused: %s\n", f.Node, f.Refused)
				continue
			}
			fmt.Fprintf(t, "%s\t%s slot %s instead of %s\t%s\tgeneration %d\n", f.Node, verb, f.To, f.From, ns.of(f.Image), f.Generation)
		}
	})
}
