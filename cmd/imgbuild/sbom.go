package main

import (
	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/image"
	"github.com/turnout-project/turnout/internal/oci"
)

func newSBOMCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use:   "sbom IMAGE",
		Short: "Print the software bill of materials of an image",
		Long: `Prints what an image is made of: the SPDX 2.3 document that is part of the image
and covered by its signature, or the same packages as CycloneDX 1.5. IMAGE is a
folder that build wrote, or FOLDER@DIGEST.
` + exitCodes,
		Example: `  imgbuild sbom images/rack-base --format cyclonedx > rack-base.cdx.json`,
		Args:    cli.OneArg("the folder of an image"),
		RunE:    func(cmd *cobra.Command, args []string) error { return runSBOM(cmd, format, args[0]) },
	}
	cmd.Flags().StringVar(&format, "format", "spdx", "spdx or cyclonedx")
	return cmd
}

func runSBOM(cmd *cobra.Command, format, arg string) error {
	if format != "spdx" && format != "cyclonedx" {
		return cli.Usagef(cmd, "--format %q: want spdx or cyclonedx", format)
	}
	l, img, err := openImage(arg)
	if err != nil {
		return err
	}
	var bill []byte
	if format == "spdx" {
		bill, err = image.SPDX(l, img)
	} else {
		bill, err = cycloneDX(l, img)
	}
	if err != nil {
		return err
	}
	_, err = cmd.OutOrStdout().Write(bill)
	return err
}

func cycloneDX(l *oci.Layout, img *oci.Image) ([]byte, error) {
	packages, err := image.PackageList(l, img)
	if err != nil {
		return nil, err
	}
	return image.CycloneDX(img.Digest, img.Manifest, packages)
}

// openImage loads an image by FOLDER or FOLDER@DIGEST.
func openImage(arg string) (*oci.Layout, *oci.Image, error) {
	s, err := source(arg)
	if err != nil {
		return nil, nil, err
	}
	img, err := s.Layout.Image(s.Digest)
	return s.Layout, img, err
}
