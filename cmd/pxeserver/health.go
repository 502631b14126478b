package main

import (
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/pulse"
)

// ailment is why a node is not well.
type ailment struct {
	Node      string `json:"node"`
	Pool      string `json:"pool"`
	Diagnosis string `json:"diagnosis"`       // as fleet.Diagnose says, or "silent", "refused"
	Check     string `json:"check,omitempty"` // the first that fails
	Detail    string `json:"detail"`
}

func newHealthCommand(g *globals) *cobra.Command {
	var pool string
	cmd := &cobra.Command{
		Use: "health [NODE…]", Short: "Show nodes that are not well, and why",
		Long: `Shows the nodes whose required checks fail, that are silent, or whose attestation
was refused, each with the first thing that is wrong. What is wrong is one of
software, hardware, environment (heat, power) and unknown: only software is ever
held against an image. Exits with 3 if a node is not well, so that scripts can
wait for health. Pending nodes are left out.
` + exitCodes,
		Example: "  pxeserver health --pool rack",
		Args:    cobra.ArbitraryArgs, ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			nodes, err := c.Nodes(cmd.Context())
			if err != nil {
				return err
			}
			for _, a := range args {
				if !slices.ContainsFunc(nodes, func(n fleet.Node) bool { return n.Name == a }) {
					return fmt.Errorf("node %q not found", a)
				}
			}
			looked, ill := 0, []ailment{}
			for i := range nodes {
				n := &nodes[i]
				if n.State == fleet.NodePending || pool != "" && n.Pool != pool || len(args) > 0 && !slices.Contains(args, n.Name) {
					continue
				}
				looked++
				if a := ailmentOf(n, time.Now()); a != nil {
					ill = append(ill, *a)
				}
			}
			err = g.print(cmd, ill, func(t *tabwriter.Writer) {
				if len(ill) == 0 {
					fmt.Fprintf(t, "%d nodes, all well\n", looked)
					return
				}
				row(t, "NODE", "POOL", "DIAGNOSIS", "CHECK", "DETAIL")
				for _, a := range ill {
					row(t, a.Node, a.Pool, a.Diagnosis, a.Check, a.Detail)
				}
			})
			if err == nil && len(ill) > 0 {
				return refusedf("%d of %d nodes are not well", len(ill), looked)
			}
			return err
		},
	}
	cmd.Flags().StringVar(&pool, "pool", "", "only nodes of this pool")
	must(cmd.RegisterFlagCompletionFunc("pool", g.completePools))
	return cmd
}

// ailmentOf says why a node is not well at now, nil if it is.
func ailmentOf(n *fleet.Node, now time.Time) *ailment {
	a := &ailment{Node: n.Name, Pool: n.Pool}
	r := n.Reported
	switch {
	case r == nil:
		a.Diagnosis, a.Detail = "silent", "it has never reported"
		return a
	case now.Sub(n.LastSeen) > pulse.LostAfter:
		a.Diagnosis, a.Detail = "silent", "not seen for "+age(n.LastSeen)
		return a
	case n.Verdict != nil && !n.Verdict.Accepted:
		a.Diagnosis, a.Check, a.Detail = "refused", "attestation", n.Verdict.Summary
		return a
	case r.Stage != fleet.StageSystem:
		a.Diagnosis, a.Detail = "not installed", strings.TrimSuffix(string(r.Stage)+": "+r.Activity, ": ")
		return a
	case r.Healthy:
		return nil
	}
	a.Diagnosis = string(fleet.Diagnose(r.Health))
	if c, ok := fleet.FirstFailure(r.Health); ok {
		a.Check, a.Detail = c.Name, c.Detail
	} else {
		a.Detail = "all checks pass; this boot is not attested yet"
	}
	return a
}
