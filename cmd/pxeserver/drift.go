package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/fleet"
)

func newDriftCommand(g *globals) *cobra.Command {
	var pool string
	cmd := &cobra.Command{
		Use: "drift", Short: "Show where the fleet is not as it should be, or soon will not be",
		Long: `Shows nodes that do not run their pool's image and why; the driver versions that nodes run, with
the end of life of their branches; firmware that is outside the recipe's pins, or unlike that of most
nodes of the same model; and GPUs that the pool's image, one that a rollout brings, or the newest of
that name is not for.

Firmware is what nodes report and what their BMCs tell, which the server asks once a day.
` + exitCodes,
		Example: "  pxeserver drift\n  pxeserver drift --pool rack -o json",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			d, err := c.Drift(cmd.Context(), pool)
			if err != nil {
				return err
			}
			ns := imageNames(cmd, c)
			return g.print(cmd, d, func(t *tabwriter.Writer) { showDrift(t, d, ns) })
		},
	}
	cmd.Flags().StringVar(&pool, "pool", "", "only nodes of this pool")
	must(cmd.RegisterFlagCompletionFunc("pool", g.completePools))
	return cmd
}

func showDrift(t *tabwriter.Writer, d *fleet.Drift, ns names) {
	section := func(title string, n int, head ...string) {
		fmt.Fprintf(t, "%s: %d\n", title, n)
		if n > 0 {
			row(t, append([]string{" "}, head...)...)
		}
	}
	section("nodes off their pool's image", len(d.OffImage), "NODE", "POOL", "RUNS", "WANTS", "WHY")
	for _, x := range d.OffImage {
		row(t, " ", x.Node, x.Pool, ns.of(x.Runs), ns.of(x.Wants), x.Why)
	}
	section("driver versions", len(d.Drivers), "DRIVER", "NODES", "POOLS", "BRANCH", "END OF LIFE")
	for _, x := range d.Drivers {
		row(t, " ", x.Version, fmt.Sprint(len(x.Nodes)), strings.Join(x.Pools, ", "), x.State, x.EOL)
	}
	section("firmware that stands out", len(d.Firmware), "NODE", "COMPONENT", "VERSION", "USUAL", "MODEL")
	for _, x := range d.Firmware {
		usual := x.Pin
		if usual == "" {
			usual = fmt.Sprintf("%s on %d", x.Usual, x.Peers)
		}
		row(t, " ", x.Node, x.Component, x.Version, usual, x.Model)
	}
	section("GPUs that an image is not for", len(d.GPUs), "POOL", "GPU", "NODES", "IMAGE", "WHY")
	for _, x := range d.GPUs {
		row(t, " ", x.Pool, x.Board, few(x.Nodes), ns.of(x.Image), x.Message)
	}
}
