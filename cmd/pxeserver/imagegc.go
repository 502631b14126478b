package main

import (
	"fmt"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/progress"
	"github.com/turnout-project/turnout/internal/rollout"
)

func newImageCollectCommand(g *globals) *cobra.Command {
	req := api.CollectRequest{Keep: 3}
	var yes bool
	cmd := &cobra.Command{
		Use: "gc", Short: "Remove images that nothing needs",
		Long: `Removes the images that are in no slot of any node, wanted by no node, the image
of no pool, and part of no rollout that goes on, has halted or is the newest;
of these the newest --keep stay too. What is removed can be published again.
` + exitCodes,
		Example: "  pxeserver image gc --dry-run",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			draft := req
			draft.DryRun = true
			images, err := c.Collect(cmd.Context(), draft)
			if err != nil {
				return err
			}
			free := 0
			for _, i := range images {
				if i.NeededBy == "" {
					free++
				}
			}
			if req.DryRun || free == 0 {
				return g.printCollected(cmd, images)
			}
			if err := confirm(cmd, yes, fmt.Sprintf("%d of %d images will be removed (--dry-run says which).", free, len(images))); err != nil {
				return err
			}
			if images, err = c.Collect(cmd.Context(), req); err != nil {
				return err
			}
			return g.printCollected(cmd, images)
		},
	}
	cmd.Flags().BoolVar(&req.DryRun, "dry-run", false, "only say what would be removed")
	cmd.Flags().IntVar(&req.Keep, "keep", req.Keep, "how many of the newest stay in any case, at least 1")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func (g *globals) printCollected(cmd *cobra.Command, images []api.Collected) error {
	return g.print(cmd, images, func(t *tabwriter.Writer) {
		row(t, "IMAGE", "VERSION", "DIGEST", "SIZE", "OUTCOME")
		for _, c := range images {
			outcome := "stays: " + c.NeededBy
			switch {
			case c.Removed:
				outcome = "removed"
			case c.NeededBy == "":
				outcome = "would be removed"
			}
			row(t, c.Image.Name, c.Image.Version, rollout.Short(c.Image.Digest), progress.Size(c.Image.SizeBytes), outcome)
		}
	})
}
