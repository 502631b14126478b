package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/image"
	"github.com/turnout-project/turnout/internal/oci"
)

type verifyOptions struct {
	keys  []string
	image string
}

func newVerifyCommand(common *commonOptions) *cobra.Command {
	var o verifyOptions
	cmd := &cobra.Command{
		Use:   "verify IMAGE",
		Short: "Check a finished image: signature, digests, verity tree, measurements, policy",
		Long: `Checks an image without trusting whoever built it:

  signature      by one of the keys named with --image-key
  digests        of every part
  verity tree    every block of the root against the root hash
  boot files     the UKIs name that root hash; the expected TPM measurements are theirs
  policy         nothing in the root updates packages, kernels or firmware by itself; one
                 kernel; no passwords; the node agent is enabled

It needs squashfs-tools, but not root.
` + exitCodes,
		Example: "  imgbuild verify images/rack-base --image-key keys/image.pub",
		Args:    cli.OneArg("the folder of an image"),
		RunE:    func(cmd *cobra.Command, args []string) error { return runVerify(cmd, common, o, args[0]) },
	}
	cmd.Flags().StringArrayVar(&o.keys, "image-key", nil, "public key that may have signed the image; may be given again")
	cmd.Flags().StringVar(&o.image, "image", "", "digest, or the start of one, if the folder holds several images")
	return cmd
}

func runVerify(cmd *cobra.Command, common *commonOptions, o verifyOptions, dir string) error {
	if len(o.keys) == 0 {
		return cli.Usagef(cmd, "name the key that must have signed the image with --image-key")
	}
	keys, _, err := readKeys(o.keys)
	if err != nil {
		return fmt.Errorf("%w: %w", image.ErrOptions, err)
	}
	l, err := oci.Open(dir)
	if err != nil {
		return err
	}
	digest, err := l.Resolve(o.image)
	if err != nil {
		return err
	}
	p, err := common.reporter(cmd)
	if err != nil {
		return err
	}
	defer p.Close()
	img, err := image.Verify(cmd.Context(), l, digest, keys, p)
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s is good: %s\n", digest, img.Manifest.Label())
	return nil
}
