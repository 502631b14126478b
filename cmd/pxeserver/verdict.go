package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/fleet"
)

func newVerdictCommand(g *globals) *cobra.Command {
	show := &cobra.Command{
		Use: "show NODE", Short: "Show the last attestation of a node",
		Long: "Shows how a node's last attestation was judged: the image it was held against, and each\nthing that was not as expected, with PCR, event, expected and seen value.\nExits with 3 if it was refused.\n" + exitCodes,
		Args: cli.OneArg("a node"), ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			n, err := c.Node(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			if n.Verdict == nil {
				return fmt.Errorf("node %s has not attested yet", n.Name)
			}
			ns := imageNames(cmd, c)
			return printVerdict(cmd, g, n, ns)
		},
	}
	return group("verdict", "Look at attestations", show)
}

func printVerdict(cmd *cobra.Command, g *globals, n *fleet.Node, ns names) error {
	if err := g.print(cmd, n.Verdict, func(t *tabwriter.Writer) { showVerdict(t, n, ns) }); err != nil {
		return err
	}
	if !n.Verdict.Accepted {
		return refusedf("node %s is not what it should be: %s", n.Name, n.Verdict.Summary)
	}
	return nil
}

func showVerdict(t *tabwriter.Writer, n *fleet.Node, ns names) {
	v := n.Verdict
	row(t, "node", n.Name)
	row(t, "verdict", attested(n))
	row(t, "why", v.Summary)
	row(t, "image", ns.of(v.Image))
	row(t, "boot path", v.Path)
	row(t, "phase", v.Phase)
	row(t, "bank", v.Bank)
	row(t, "when", ago(v.At)+", boot "+v.BootID)
	for i, f := range v.Findings {
		where := f.Kind
		if f.PCR >= 0 {
			where += fmt.Sprintf(", PCR %d", f.PCR)
		}
		if f.Event >= 0 {
			where += fmt.Sprintf(", event %d", f.Event)
		}
		row(t, fmt.Sprintf("finding %d", i+1), where+": "+f.Detail)
		for _, x := range [][2]string{{"  what", f.What}, {"  expected", f.Expected}, {"  seen", f.Seen}} {
			if x[1] != "" {
				row(t, x[0], x[1])
			}
		}
	}
}
