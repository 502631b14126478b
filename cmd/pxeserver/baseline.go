package main

import (
	"fmt"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

func newBaselineCommand(g *globals) *cobra.Command {
	return group("baseline", "Say which firmware nodes may have",
		newBaselineListCommand(g), newBaselineApproveCommand(g), newBaselineAnnounceCommand(g), newBaselineForgetCommand(g))
}

func newBaselineListCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List what the firmware of each hardware model measures",
		Long: "Lists what machines of each hardware model measured into PCR 0, 2, 3 (firmware, option ROMs)\n" +
			"and 7 (Secure Boot keys). A model may have several approved sets: before firmware or dbx is\n" +
			"updated, announce the new one, or approve that of one updated machine; forget the old one afterwards.\n" + exitCodes,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			bs, err := c.Baselines(cmd.Context())
			if err != nil {
				return err
			}
			return g.print(cmd, bs, func(t *tabwriter.Writer) {
				row(t, "ID", "MODEL", "STATE", "FIRST SEEN", "ON NODE", "PCR 0", "PCR 2", "PCR 3", "PCR 7", "APPROVED BY")
				for _, b := range bs {
					cells := []string{b.ID, b.Model.String(), string(b.State), ago(b.First), b.Node}
					for _, p := range []int{0, 2, 3, 7} {
						cells = append(cells, fmt.Sprintf("%.8s", b.PCRs[p]))
					}
					row(t, append(cells, b.By)...)
				}
			})
		},
	}
}

// completeBaselines completes IDs of baselines.
func (g *globals) completeBaselines(cmd *cobra.Command, args []string, _ string) ([]string, cobra.ShellCompDirective) {
	c, err := g.client()
	if err != nil || len(args) > 0 {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	bs, err := c.Baselines(cmd.Context())
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	slices.SortFunc(bs, func(a, b fleet.Baseline) int { return b.First.Compare(a.First) })
	var out []string
	for _, b := range bs {
		out = append(out, b.ID+"\t"+b.Model.String())
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func newBaselineApproveCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "approve ID", Short: "Let nodes of a model have the firmware that was seen",
		Long: "Approves one set of firmware measurements. From the next attestation on, nodes of the model\nthat show none of its approved sets are told, or refused, as attestation.baseline in the\nserver's configuration says.\n" + exitCodes,
		Args: cli.OneArg("a baseline"), ValidArgsFunction: g.completeBaselines,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			b, err := c.ApproveBaseline(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return g.done(cmd, b, nil, "baseline %s approved for %s", b.ID, b.Model)
		},
	}
}

func newBaselineForgetCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "forget ID", Short: "Drop a set of firmware measurements",
		Long: "Drops a set of firmware measurements. If a node still shows it, it is learned anew.\n" + exitCodes,
		Args: cli.OneArg("a baseline"), ValidArgsFunction: g.completeBaselines,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			return g.done(cmd, nil, c.ForgetBaseline(cmd.Context(), args[0]), "baseline %s forgotten", args[0])
		},
	}
}

func newNodeRevokeCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "revoke NODE", Short: "Take none of a node's certificates any more",
		Long: "Refuses every client certificate that a node was given so far, at once. The node gets a new\none by itself, for which it must prove its TPM: whoever only copied the old one is out. To\nkeep the TPM itself out, use clear-tpm or remove.\n" + exitCodes,
		Args: cli.OneArg("a node"), ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.act(cmd, args, "revoke", api.NodeRequest{}, "node %s: certificates revoked")
		},
	}
}
