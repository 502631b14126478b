package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/fleet"
)

func newPoolCommand(g *globals) *cobra.Command {
	return group("pool", "Group nodes that should run the same image", newPoolListCommand(g), newPoolSetCommand(g))
}

func newPoolListCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List pools",
		Long: "Lists pools, the image that fresh nodes of each install, and how many nodes run it.\n" + exitCodes,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			pools, err := c.Pools(cmd.Context())
			if err != nil {
				return err
			}
			nodes, err := c.Nodes(cmd.Context())
			if err != nil {
				return err
			}
			ns := imageNames(cmd, c)
			return g.print(cmd, pools, func(t *tabwriter.Writer) {
				row(t, "POOL", "IMAGE", "NODES", "ON IT", "AUTO-APPROVE")
				for _, p := range pools {
					all, on := 0, 0
					for i := range nodes {
						if nodes[i].Pool == p.Name {
							all++
							if p.Image != "" && nodes[i].Reported.BootedImage() == p.Image {
								on++
							}
						}
					}
					row(t, p.Name, ns.of(p.Image), fmt.Sprint(all), fmt.Sprint(on), fmt.Sprint(p.AutoApprove))
				}
			})
		},
	}
}

func newPoolSetCommand(g *globals) *cobra.Command {
	var image string
	var auto bool
	cmd := &cobra.Command{
		Use: "set POOL", Short: "Make a pool, or change it",
		Long:    "Sets the image that fresh nodes of a pool install. Nodes that run are not touched: move\nthem with `pxeserver rollout start`. What is not named stays as it is.\n" + exitCodes,
		Example: `  pxeserver pool set rack --image "rack-base 1.0.0"`,
		Args:    cli.OneArg("a pool"), ValidArgsFunction: g.completePools,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			p := fleet.Pool{Name: args[0]}
			pools, err := c.Pools(cmd.Context())
			if err != nil {
				return err
			}
			for _, old := range pools {
				if old.Name == p.Name {
					p = old
				}
			}
			if cmd.Flags().Changed("image") {
				p.Image = image
			}
			if cmd.Flags().Changed("auto-approve") {
				p.AutoApprove = auto
			}
			out, err := c.SetPool(cmd.Context(), p)
			return g.done(cmd, out, err, "pool %s set", args[0])
		},
	}
	cmd.Flags().StringVar(&image, "image", "", `image of fresh nodes: digest, its first digits, or "name version"; "" for none`)
	cmd.Flags().BoolVar(&auto, "auto-approve", false, "let in every machine that is discovered in this pool")
	must(cmd.RegisterFlagCompletionFunc("image", g.completeImages))
	return cmd
}
