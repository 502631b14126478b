package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/imagediff"
	"github.com/turnout-project/turnout/internal/oci"
)

type diffOptions struct {
	output string
	all    bool
	store  string
}

// foundError ends a command that did what it should with status 1 or another
// that its help names, and without a message: the output has said it.
type foundError struct{ status int }

func (foundError) Error() string { return "differences or findings, as written" }

// fewFiles is how many files diff shows without --all.
const fewFiles = 40

func newDiffCommand() *cobra.Command {
	var o diffOptions
	cmd := &cobra.Command{
		Use:   "diff OLD NEW",
		Short: "Tell in what two images differ",
		Long: `Compares two images: packages, kernel, files by mode, owner, size and digest,
kernel modules, health checks, expected measurements, sizes, and the kernels'
configurations, if their packages are in the store (--store). For two builds of
one lock it names the first file that differs, or the tool of the build host
that packed the same files otherwise.

OLD and NEW are folders that build wrote, or FOLDER@DIGEST with the digest, or
the start of it, of one of several images. It needs squashfs-tools, but not root.

Exit status: 0 the same image; 1 they differ; 2 the command line is wrong or an
image cannot be read; 3 a part is damaged.`,
		Example: `  imgbuild diff images/rack-base.old images/rack-base
  imgbuild diff images/a images/b -o markdown >> $GITHUB_STEP_SUMMARY`,
		Args: cli.TwoArgs("the folders of two images"),
		RunE: func(cmd *cobra.Command, args []string) error {
			err := runDiff(cmd, o, args[0], args[1])
			var found foundError
			if err != nil && !errors.As(err, &found) && status(err) == exitFailure && !errors.Is(err, context.Canceled) {
				return &cli.UsageError{Msg: err.Error()}
			}
			return err
		},
	}
	cmd.Flags().StringVarP(&o.output, "output", "o", "text", "text, json or markdown")
	cmd.Flags().BoolVar(&o.all, "all", false, fmt.Sprintf("show every file and module, not the first %d", fewFiles))
	addStoreFlag(cmd, &o.store)
	return cmd
}

func runDiff(cmd *cobra.Command, o diffOptions, old, new string) error {
	most := fewFiles
	if o.all {
		most = 0
	}
	a, err := source(old)
	if err != nil {
		return err
	}
	b, err := source(new)
	if err != nil {
		return err
	}
	out := cmd.OutOrStdout()
	var write func(*imagediff.Diff) error
	switch o.output {
	case "text":
		write = func(d *imagediff.Diff) error { return d.WriteText(out, most) }
	case "json":
		write = func(d *imagediff.Diff) error { return d.WriteJSON(out) }
	case "markdown":
		write = func(d *imagediff.Diff) error { return d.WriteMarkdown(out, most) }
	default:
		return cli.Usagef(cmd, "--output %q: want text, json or markdown", o.output)
	}
	d, err := imagediff.Compare(cmd.Context(), a, b, imagediff.Options{Package: func(sum string) string {
		if path := filepath.Join(o.store, "sha256", sum[:min(2, len(sum))], sum); sum != "" && isFile(path) {
			return path
		}
		return ""
	}})
	if err != nil {
		return err
	}
	if err := write(d); err != nil {
		return err
	}
	if !d.Same() {
		return foundError{exitFailure}
	}
	return nil
}

func isFile(name string) bool {
	st, err := os.Stat(name)
	return err == nil && st.Mode().IsRegular()
}

// source finds an image by FOLDER or FOLDER@DIGEST.
func source(arg string) (imagediff.Source, error) {
	dir, ref := splitImage(arg)
	l, err := oci.Open(dir)
	if err != nil {
		return imagediff.Source{}, err
	}
	digest, err := l.Resolve(ref)
	return imagediff.Source{Layout: l, Digest: digest}, err
}
