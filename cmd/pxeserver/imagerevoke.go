package main

import (
	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/rollout"
)

func newImageRevokeCommand(g *globals) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "revoke IMAGE", Short: "Let no node run an image any more",
		Long: `Revokes an image: nodes that prove to run it are refused from their next attestation on,
and no rollout, flip, pool or reinstallation may want it. Running nodes are not touched: move
them to another image. The image is kept, so that publishing it once more does not bring it
back; "image restore" does.

It is refused while a pool or a live rollout wants the image.
` + exitCodes,
		Args: cli.OneArg("an image"), ValidArgsFunction: g.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			return actOnImage(cmd, g, args[0], "revoke", reason)
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why, for the event log and for the verdicts")
	return cmd
}

func newImageRestoreCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "restore IMAGE", Short: "Let nodes run a revoked image again",
		Long: "Takes a revocation back. Nodes that run the image are accepted again from their next\nattestation on.\n" + exitCodes,
		Args: cli.OneArg("an image"), ValidArgsFunction: g.completeImages,
		RunE: func(cmd *cobra.Command, args []string) error {
			return actOnImage(cmd, g, args[0], "restore", "")
		},
	}
}

func actOnImage(cmd *cobra.Command, g *globals, image, act, reason string) error {
	c, err := g.client()
	if err != nil {
		return err
	}
	i, err := c.ActOnImage(cmd.Context(), image, act, reason)
	if err != nil {
		return err
	}
	return g.done(cmd, i, nil, "image %s %s (%s) %sd", i.Name, i.Version, rollout.Short(i.Digest), act)
}
