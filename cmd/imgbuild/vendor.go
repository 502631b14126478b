package main

import (
	"errors"
	"fmt"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/cas"
	"github.com/turnout-project/turnout/internal/image"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/oci/registry"
	"github.com/turnout-project/turnout/internal/progress"
	"github.com/turnout-project/turnout/internal/recipe"
)

type vendorOptions struct {
	lock, store, out string
	mirrors          mirrorOptions
	offline          bool
}

func newVendorCommand(common *commonOptions) *cobra.Command {
	var o vendorOptions
	cmd := &cobra.Command{
		Use:   "vendor RECIPE --out FOLDER|oci://HOST/NAME:TAG",
		Short: "Keep all artefacts of a lock in a folder or a registry",
		Long: `Copies every package, build tool and source that a lock names into a folder, by
its SHA-256, and the lock itself. With the folder the lock builds without a
network, when the archive has long dropped the packages:

  imgbuild build RECIPE --lock FOLDER/LOCK --mirror FOLDER --offline

Several locks may share a folder. It is a store (--store) too, and a mirror for
other build hosts when it is served over HTTP. Files that are there already are
read and checked; those that went bad are replaced.

With --out oci://HOST/NAME:TAG they go to an OCI registry, as one artefact: the
lock, and each package under the digest that the lock names. A transfer that was
cut off goes on when it is started again. The lock builds from there:

  imgbuild build RECIPE --lock oci://HOST/NAME:TAG --mirror oci://HOST/NAME:TAG --offline

The digest that is printed names exactly this lock: oci://HOST/NAME@DIGEST.
` + credentialsHelp + exitCodes,
		Example: `  imgbuild vendor recipes/rack-base.yaml --out vendor
  imgbuild vendor recipes/rack-base.yaml --out oci://registry.example/turnout/vendor:rack-base-2026.12`,
		Args: cli.OneArg("a recipe"),
		RunE: func(cmd *cobra.Command, args []string) error { return runVendor(cmd, common, o, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.lock, "lock", "", "lock file (default: the recipe's path with .lock.json)")
	f.StringVar(&o.out, "out", "", "folder to copy to, or oci://HOST/NAME:TAG")
	o.mirrors.addFlags(cmd)
	f.BoolVar(&o.offline, "offline", false, "ask no archive: only what is in the store, in folders and in oci:// registries")
	addStoreFlag(cmd, &o.store)
	return cmd
}

func runVendor(cmd *cobra.Command, common *commonOptions, o vendorOptions, path string) error {
	if o.out == "" {
		return cli.Usagef(cmd, "name the folder or registry to copy to with --out")
	}
	r, err := recipe.Load(path)
	if err != nil {
		return err
	}
	if o.lock == "" {
		o.lock = defaultLock(path)
	}
	f, err := o.mirrors.readLock(cmd.Context(), o.lock, path)
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
	if err := o.mirrors.set(store); err != nil {
		return err
	}
	store.Offline = o.offline
	p, err := common.reporter(cmd)
	if err != nil {
		return err
	}
	defer p.Close()
	name := r.Name + ".lock.json"
	if !strings.HasPrefix(o.lock, inRegistry) {
		name = filepath.Base(o.lock)
	}
	if ref, ok := strings.CutPrefix(o.out, inRegistry); ok {
		return vendorRegistry(cmd, o, r, store, f, ref, name, p)
	}
	files, bytes, err := image.Vendor(cmd.Context(), store, f, o.out, name, p)
	if err != nil {
		return explainGone(cmd.Context(), r, store, err)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %d files, %s, and %s\n", o.out, files, progress.Size(bytes), name)
	return nil
}

// vendorRegistry sends the lock and its packages to a registry.
func vendorRegistry(cmd *cobra.Command, o vendorOptions, r *recipe.Recipe, store *cas.Store, f *lock.File, ref, name string, p *progress.Reporter) error {
	digest, files, bytes, err := image.VendorRegistry(cmd.Context(), store, f, ref, name, registry.Options{PlainHTTP: o.mirrors.plainHTTP}, p)
	if errors.Is(err, registry.ErrReference) {
		return fmt.Errorf("%w: %w", image.ErrOptions, err)
	}
	if err != nil {
		return explainGone(cmd.Context(), r, store, err)
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s: %d files, %s, and %s\n%s\n", o.out, files, progress.Size(bytes), name, digest)
	return nil
}
