package main

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/progress"
)

type inspectOptions struct {
	digest bool
	json   bool
	image  string
	keys   []string
}

func newInspectCommand() *cobra.Command {
	var o inspectOptions
	cmd := &cobra.Command{
		Use:   "inspect IMAGE",
		Short: "Show what an image holds and how it must boot",
		Long: `Shows the manifest of an image: kernel, sizes, root hash, expected TPM
measurements, health checks, and who signed image, loader and UKIs. IMAGE is the
folder that build wrote. A signature of the image is held against the keys of
--image-key; those of programs against their bytes and the certificate they bring,
for which nobody vouches here. Else nothing is verified but the digests of what is
shown; see imgbuild verify.
` + exitCodes,
		Example: `  imgbuild inspect images/rack-base
  imgbuild inspect images/rack-base --digest    # for pxeserver rollout start --image`,
		Args: cli.OneArg("the folder of an image"),
		RunE: func(cmd *cobra.Command, args []string) error { return runInspect(cmd, o, args[0]) },
	}
	cmd.Flags().BoolVar(&o.digest, "digest", false, "print the image digest only")
	cmd.Flags().BoolVar(&o.json, "json", false, "print the manifest as JSON")
	cmd.Flags().StringArrayVar(&o.keys, "image-key", nil, "public key to hold the image's signatures against; may be given again")
	cmd.Flags().StringVar(&o.image, "image", "", "digest, or the start of one, if the folder holds several images")
	return cmd
}

func runInspect(cmd *cobra.Command, o inspectOptions, dir string) error {
	l, err := oci.Open(dir)
	if err != nil {
		return err
	}
	digest, err := l.Resolve(o.image)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	if o.digest {
		fmt.Fprintln(out, digest)
		return nil
	}
	img, err := l.Image(digest)
	if err != nil {
		return err
	}
	if o.json {
		e := json.NewEncoder(out)
		e.SetIndent("", " ")
		return e.Encode(img.Manifest)
	}
	signers, err := signers(l, img, o.keys)
	if err != nil {
		return err
	}
	return printImage(out, img, signers)
}

// printImage writes the table of inspect.
func printImage(w io.Writer, img *oci.Image, signers [][2]string) error {
	m := img.Manifest
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	row("image", "%s", m.Label())
	row("digest", "%s", img.Digest)
	row("architecture", "%s", m.Architecture)
	row("kernel", "%s (%s %s)", m.Kernel.Release, m.Kernel.Package, m.Kernel.Version)
	row("packages as of", "%s", time.Unix(m.SourceDateEpoch, 0).UTC().Format(time.RFC3339))
	for _, b := range []struct {
		name string
		blob manifest.Blob
	}{{"root", m.Root}, {"verity tree", m.Verity.Blob}, {"UKI", m.UKI}, {"installer UKI", m.Installer}, {"loader", m.Loader}} {
		row(b.name, "%10s  %s", progress.Size(b.blob.SizeBytes), b.blob.Digest)
	}
	for _, s := range signers {
		row(s[0], "%s", s[1])
	}
	row("root hash", "%s", m.Verity.RootHash)
	row("stub", "systemd-stub %s", m.Measurements.StubVersion)
	for _, name := range slices.Sorted(maps.Keys(m.Tools)) {
		row("built by "+name, "%s", m.Tools[name])
	}
	for _, p := range m.Measurements.Paths {
		row("PCR 4 "+p.Name, "%s", p.PCR4["sha256"])
	}
	for _, p := range m.Measurements.PCR11 {
		row("PCR 11 "+phase(p.Phase), "%s", p.PCR["sha256"])
	}
	row("watchdog", "%s", time.Duration(m.Boot.Watchdog))
	for _, c := range m.Health.Checks {
		row("check "+c.Name, "%s", checkText(c))
	}
	return t.Flush()
}

func phase(p string) string {
	if p == "" {
		return "before userspace"
	}
	return p
}

func checkText(c manifest.Check) string {
	s := ""
	switch {
	case len(c.Exec) > 0:
		s = "runs " + strings.Join(c.Exec, " ")
	case c.Unit != "":
		s = "unit " + c.Unit + " is active"
	case c.Units != "":
		s = "units: " + c.Units
	case c.Module != "":
		s = "module " + c.Module + " is loaded"
	case c.File != "":
		s = "file " + c.File + " exists"
	case c.Kernel != "":
		s = "kernel is " + c.Kernel
	}
	if c.Advisory {
		s += " (advisory)"
	}
	return s
}
