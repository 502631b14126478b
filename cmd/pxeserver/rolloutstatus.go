package main

import (
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

func newRolloutStatusCommand(g *globals) *cobra.Command {
	var watch, wait bool
	cmd := &cobra.Command{
		Use: "status [ROLLOUT]", Short: "Show how a rollout stands, and what failed where",
		Long: "Shows a rollout, the newest if none is named: its stages, each node, and for a failed node\nthe check that failed. With --watch it is shown again as it changes, until it ends; with\n--wait only its end is shown. Both exit with 5 if it did not succeed.\n" + exitCodes,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 {
				return cli.Usagef(cmd, "want one rollout; got %d", len(args))
			}
			return nil
		},
		ValidArgsFunction: g.completeRollouts,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			return runStatus(cmd, g, c, args, watch, wait)
		},
	}
	cmd.Flags().BoolVarP(&watch, "watch", "w", false, "show it again as it changes, until it ends")
	cmd.Flags().BoolVar(&wait, "wait", false, "show it once it has ended")
	return cmd
}

func runStatus(cmd *cobra.Command, g *globals, c *api.Client, args []string, watch, wait bool) error {
	r, err := findRollout(cmd, c, args)
	if err != nil {
		return err
	}
	ns := imageNames(cmd, c)
	show := func() error {
		return g.print(cmd, r, func(t *tabwriter.Writer) { showRollout(t, r, ns) })
	}
	if !watch && !wait {
		return show()
	}
	var shown time.Time
	for {
		if watch && !r.Updated.Equal(shown) || ended(r) {
			shown = r.Updated
			clearScreen(cmd.OutOrStdout(), g)
			if err := show(); err != nil {
				return err
			}
		}
		if ended(r) {
			return outcome(r)
		}
		select {
		case <-cmd.Context().Done():
			return cmd.Context().Err()
		case <-time.After(time.Second):
		}
		next, err := c.Rollout(cmd.Context(), r.ID)
		switch {
		case err == nil:
			r = next
		case errors.Is(err, api.ErrUnreachable), api.StatusOf(err) >= 500: // it restarts
		default:
			return err
		}
	}
}

func findRollout(cmd *cobra.Command, c *api.Client, args []string) (*fleet.Rollout, error) {
	if len(args) == 1 {
		return c.Rollout(cmd.Context(), args[0])
	}
	rs, err := c.RolloutSummaries(cmd.Context())
	if err != nil {
		return nil, err
	}
	if len(rs) == 0 {
		return nil, errors.New("there has been no rollout yet; start one: pxeserver rollout start --image … --stage …")
	}
	return c.Rollout(cmd.Context(), rs[len(rs)-1].ID)
}

// ended reports whether nothing more will happen without an operator.
func ended(r *fleet.Rollout) bool {
	n := count(r)
	return r.State != fleet.RolloutRunning && r.State != fleet.RolloutPaused && n[fleet.MoveMoving]+n[fleet.MoveReturning]+n[fleet.MoveDraining] == 0
}

func outcome(r *fleet.Rollout) error {
	if r.State == fleet.RolloutDone {
		return nil
	}
	return &statusError{exitRollout, fmt.Sprintf("rollout %s %s: %s", r.ID, r.State, or(r.Reason, "no reason given"))}
}

// clearScreen starts afresh on a terminal, and with an empty line elsewhere.
func clearScreen(w io.Writer, g *globals) {
	f, ok := w.(interface{ Fd() uintptr })
	switch {
	case g.output == "json" || g.output == "yaml":
	case ok && isatty.IsTerminal(f.Fd()):
		fmt.Fprint(w, "\x1b[H\x1b[2J")
	default:
		fmt.Fprintln(w)
	}
}

func showRollout(t *tabwriter.Writer, r *fleet.Rollout, ns names) {
	n := count(r)
	fmt.Fprintf(t, "rollout %s: %s to %d nodes, %s", r.ID, ns.of(r.Image), len(r.Nodes), r.State)
	if r.Reason != "" {
		fmt.Fprintf(t, ": %s", r.Reason)
	}
	fmt.Fprintf(t, "\n%d done, %d moving, %d waiting, %d failed (budget %s), %d skipped", n[fleet.MoveDone], n[fleet.MoveMoving],
		n[fleet.MoveWaiting], n[fleet.MoveFailed], r.Policy.FailureBudget, n[fleet.MoveSkipped])
	if d := n[fleet.MoveDraining]; d > 0 {
		fmt.Fprintf(t, ", %d draining", d)
	}
	if back := n[fleet.MoveReturning] + n[fleet.MoveReturned]; back > 0 {
		fmt.Fprintf(t, ", %d returned or on the way back", back)
	}
	fmt.Fprintln(t)
	if r.State == fleet.RolloutRunning {
		showWindows(t, &r.Policy)
	}
	for i, s := range r.Policy.Stages {
		fmt.Fprintf(t, "\nstage %d, %s: %s\n", i+1, stageText(s), stageState(r, i))
		for _, m := range r.Nodes {
			if m.Stage == i {
				row(t, "  "+m.Node, string(m.State), moveTime(m), moveWhy(m))
			}
		}
	}
}

func stageState(r *fleet.Rollout, i int) string {
	switch {
	case i < r.Stage || r.State == fleet.RolloutDone:
		return "complete"
	case i > r.Stage:
		return "not begun"
	case r.BakedAt.IsZero():
		return "under way"
	}
	if left := time.Until(r.BakedAt.Add(r.Policy.Bake)).Round(time.Second); left > 0 && r.State == fleet.RolloutRunning {
		return "complete, bakes for another " + left.String()
	}
	return "complete"
}

// moveWhy is what there is to say of a node's move.
func moveWhy(m fleet.Move) string {
	switch {
	case m.State == fleet.MoveDraining:
		return or(m.DrainNote, "its jobs are waited for")
	case m.Held() && m.State != fleet.MoveMoving && m.State != fleet.MoveReturning:
		return or(m.Reason, "through") + "; still drained" + colon(m.DrainNote)
	}
	return m.Reason
}

func colon(s string) string {
	if s == "" {
		return ""
	}
	return ": " + s
}

// moveTime is how long a node's move took, or takes so far.
func moveTime(m fleet.Move) string {
	switch {
	case m.State == fleet.MoveDraining:
		return "for " + age(m.DrainFrom)
	case m.Started.IsZero():
		return ""
	case m.Ended.IsZero() || m.Ended.Before(m.Started):
		return "for " + age(m.Started)
	}
	return "in " + m.Ended.Sub(m.Started).Round(time.Second).String()
}
