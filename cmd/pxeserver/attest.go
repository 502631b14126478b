package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/pause"
)

func newAttestCommand(g *globals) *cobra.Command {
	wait := 2 * time.Minute
	cmd := &cobra.Command{
		Use: "attest NODE", Short: "Have a node prove now what it runs",
		Long: `Asks a node to attest with the answer to its next heartbeat, whatever its pace, and with the
whole event log; waits for the verdict and shows it as "verdict show" does. Exits with 3 if the
node was refused, and with 1 if it did not attest in time: it may be off, or have no agent that
knows the question.
` + exitCodes,
		Args: cli.OneArg("a node"), ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			asked, err := c.NodeAct(cmd.Context(), args[0], "attest", api.NodeRequest{})
			if err != nil {
				return err
			}
			if wait <= 0 {
				return g.done(cmd, asked, nil, "node %s is asked to attest with its next heartbeat", asked.Name)
			}
			ctx, cancel := context.WithTimeout(cmd.Context(), wait)
			defer cancel()
			n, err := nextVerdict(ctx, c, asked)
			if err != nil {
				return err
			}
			return printVerdict(cmd, g, n, imageNames(cmd, c))
		},
	}
	cmd.Flags().DurationVar(&wait, "wait", wait, "how long to wait for the verdict, 0 for not at all")
	return cmd
}

// nextVerdict waits for a verdict that is not the one that a node had when it
// was asked.
func nextVerdict(ctx context.Context, c *api.Client, asked *fleet.Node) (*fleet.Node, error) {
	for {
		n, err := c.Node(ctx, asked.Name)
		switch {
		case ctx.Err() != nil:
		case err != nil:
			return nil, err
		case n.Verdict != nil && (asked.Verdict == nil || !n.Verdict.At.Equal(asked.Verdict.At)):
			return n, nil
		}
		if err := pause.For(ctx, time.Second); errors.Is(err, context.DeadlineExceeded) {
			return nil, fmt.Errorf("node %s did not attest in time; it was last heard of %s", asked.Name, ago(asked.LastSeen))
		} else if err != nil {
			return nil, err
		}
	}
}
