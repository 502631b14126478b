package main

import (
	"fmt"
	"path/filepath"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/cas"
	"github.com/turnout-project/turnout/internal/image"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/progress"
	"github.com/turnout-project/turnout/internal/recipe"
)

type vendorOptions struct {
	lock, store, out string
	mirrors          []string
	offline          bool
}

func newVendorCommand(common *commonOptions) *cobra.Command {
	var o vendorOptions
	cmd := &cobra.Command{
		Use:   "vendor RECIPE --out FOLDER",
		Short: "Keep all artefacts of a lock in a folder",
		Long: `Copies every package, build tool and source that a lock names into a folder, by
its SHA-256, and the lock itself. With the folder the lock builds without a
network, when the archive has long dropped the packages:

  imgbuild build RECIPE --lock FOLDER/LOCK --mirror FOLDER --offline

Several locks may share a folder. It is a store (--store) too, and a mirror for
other build hosts when it is served over HTTP. Files that are there already are
read and checked; those that went bad are replaced.
` + exitCodes,
		Example: `  imgbuild vendor recipes/rack-base.yaml --out vendor`,
		Args:    cli.OneArg("a recipe"),
		RunE:    func(cmd *cobra.Command, args []string) error { return runVendor(cmd, common, o, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.lock, "lock", "", "lock file (default: the recipe's path with .lock.json)")
	f.StringVar(&o.out, "out", "", "folder to copy to")
	f.StringArrayVar(&o.mirrors, "mirror", nil, mirrorHelp)
	f.BoolVar(&o.offline, "offline", false, "use no network: only what is in the store and in mirrors that are folders")
	addStoreFlag(cmd, &o.store)
	return cmd
}

func runVendor(cmd *cobra.Command, common *commonOptions, o vendorOptions, path string) error {
	if o.out == "" {
		return cli.Usagef(cmd, "name the folder to copy to with --out")
	}
	r, err := recipe.Load(path)
	if err != nil {
		return err
	}
	if o.lock == "" {
		o.lock = defaultLock(path)
	}
	f, err := readLock(cmd.Context(), o.lock, path)
	if err != nil {
		return err
	}
	if err := lock.Check(r, f); err != nil {
		return err
	}
	store, err := cas.Open(o.store)
	if err != nil {
		return err
	}
	if err := setMirrors(store, o.mirrors); err != nil {
		return err
	}
	store.Offline = o.offline
	p, err := common.reporter(cmd)
	if err != nil {
		return err
	}
	defer p.Close()
	name := filepath.Base(o.lock)
	files, bytes, err := image.Vendor(cmd.Context(), store, f, o.out, name, p)
	if err != nil {
		return explainGone(cmd.Context(), r, store, err)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %d files, %s, and %s\n", o.out, files, progress.Size(bytes), name)
	return nil
}
