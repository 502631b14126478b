package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
)

func newRecoveryCommand(g *globals) *cobra.Command {
	return group("recovery", "See what is done by itself about nodes in trouble, and stop it",
		newRecoveryStatusCommand(g), newRecoveryPauseCommand(g), newRecoveryResumeCommand(g))
}

func newRecoveryStatusCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "Show nodes in trouble, and what was done about them",
		Long: `Shows the nodes that are in trouble, or were within the hour, the last step that was taken about
each, and the groups of which too many fell silent at once: to those nothing is done. Every step is
an event of its node: pxeserver events --kind recovery.
` + exitCodes,
		Example: "  pxeserver recovery status\n  pxeserver events --kind recovery. --follow",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			r, err := c.Recovery(cmd.Context())
			if err != nil {
				return err
			}
			return g.printRecovery(cmd, r)
		},
	}
}

func (g *globals) printRecovery(cmd *cobra.Command, r *api.Recovery) error {
	return g.print(cmd, r, func(t *tabwriter.Writer) {
		if r.Paused != nil {
			until := r.Paused.UTC().Format(time.RFC3339)
			if r.Paused.Year() == 9999 {
				until = "it is resumed"
			}
			fmt.Fprintf(t, "PAUSED until %s by %s\n", until, r.Pauser)
		}
		fmt.Fprintf(t, "%d step(s) in the last hour that took nodes from their work\n\n", r.Steps)
		row(t, "NODE", "TROUBLE", "SINCE", "LAST STEP", "TAKEN", "WHY")
		for _, n := range r.Storms {
			row(t, n.Node, "STORM", ago(n.Since), "nothing is done", "", "silent: "+n.Why)
		}
		for _, n := range r.Nodes {
			trouble, taken := n.Trouble, ""
			if n.Calm {
				trouble = "over: " + trouble
			}
			if !n.At.IsZero() {
				taken = ago(n.At)
			}
			if n.Failed != "" {
				taken += ", FAILED: " + n.Failed
			}
			row(t, n.Node, trouble, ago(n.Since), n.Step, taken, n.Why)
		}
	})
}

func newRecoveryPauseCommand(g *globals) *cobra.Command {
	var r api.PauseRequest
	cmd := &cobra.Command{
		Use: "pause", Short: "Leave nodes alone for a time",
		Long: `Nothing is done by itself about nodes in trouble until the time is over, or until
` + "`recovery resume`" + `. Events of lost and unhealthy nodes go on.
` + exitCodes,
		Example: "  pxeserver recovery pause --for 4h --reason \"work on the switches of row 3\"",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			now, err := c.PauseRecovery(cmd.Context(), r)
			if err != nil {
				return err
			}
			return g.printRecovery(cmd, now)
		},
	}
	cmd.Flags().DurationVar(&r.For, "for", 0, "how long; 0 is until it is resumed")
	cmd.Flags().StringVar(&r.Reason, "reason", "", "why, for the events")
	return cmd
}

func newRecoveryResumeCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "resume", Short: "Take recovery up again",
		Long: "Ends a pause before its time.\n" + exitCodes, Example: "  pxeserver recovery resume",
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			now, err := c.ResumeRecovery(cmd.Context())
			if err != nil {
				return err
			}
			return g.printRecovery(cmd, now)
		},
	}
}
