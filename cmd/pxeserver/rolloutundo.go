package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

func newRolloutUndoCommand(g *globals) *cobra.Command {
	var req api.ReasonRequest
	var yes bool
	cmd := &cobra.Command{
		Use: "undo ROLLOUT", Short: "Return what an ended rollout has moved",
		Long: `Returns every node that the rollout has moved to the image it ran before, and no
other: nodes that were asked for something else since are left alone. Nodes
whose other slot still holds that image just flip. No more of a stage are on
the move at once than on the way there, unless --max-unavailable says so.
` + exitCodes,
		Example: "  pxeserver rollout undo r7 --max-unavailable 25% --reason 'jobs are 3 % slower'",
		Args:    cli.OneArg("a rollout"), ValidArgsFunction: g.completeRollouts,
		RunE: func(cmd *cobra.Command, args []string) error {
			if req.AtOnce != "" {
				if _, err := fleet.ParseAmount(req.AtOnce); err != nil {
					return cli.Usagef(cmd, "--max-unavailable: %v", err)
				}
			}
			c, err := g.client()
			if err != nil {
				return err
			}
			r, err := c.Rollout(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			what := fmt.Sprintf("%d node(s) that rollout %s moved to %s will go back.", count(r)[fleet.MoveDone], r.ID, imageNames(cmd, c).of(r.Image))
			if err := confirm(cmd, yes, what); err != nil {
				return err
			}
			if r, err = c.RolloutAct(cmd.Context(), args[0], "undo", req); err != nil {
				return err
			}
			return g.done(cmd, r, nil, "rollout %s is being undone\nwatch it: pxeserver rollout status %s --watch", r.ID, r.ID)
		},
	}
	cmd.Flags().StringVar(&req.AtOnce, "max-unavailable", "", "nodes of a stage on the move at once, a number or a percentage; as on the way there if empty")
	cmd.Flags().StringVar(&req.Reason, "reason", "", "why, for the history")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

// showWindows says when a rollout may start nodes, and when that is next.
func showWindows(t *tabwriter.Writer, p *fleet.Policy) {
	if len(p.Windows) == 0 {
		return
	}
	now := time.Now()
	next := p.NextWindow(now)
	state := "closed, none opens within a week"
	switch {
	case next.Equal(now):
		state = "open now"
	case !next.IsZero():
		state = "closed until " + next.Local().Format("Mon 2006-01-02 15:04 MST")
	}
	for _, w := range p.Windows {
		fmt.Fprintf(t, "window %s\n", w)
	}
	fmt.Fprintf(t, "windows are %s\n", state)
}
