package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path/filepath"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/apt"
	"github.com/turnout-project/turnout/internal/cas"
	"github.com/turnout-project/turnout/internal/image"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/progress"
	"github.com/turnout-project/turnout/internal/recipe"
)

type lockOptions struct {
	out     string
	store   string
	mirrors []string
	check   bool
	update  bool
	noFetch bool
}

func newLockCommand(common *commonOptions) *cobra.Command {
	var o lockOptions
	cmd := &cobra.Command{
		Use:   "lock RECIPE",
		Short: "Resolve every package of a recipe to an exact version and hash",
		Long: `Writes the lock file of a recipe: every package by version, size and SHA-256, as
apt itself resolves it from the recipe's signed archives, and downloads the
packages into the store, since archives drop old versions within weeks.

A lock that answers the recipe is kept as it is, so that builds do not change
until someone asks. It is made anew, and what moved is printed, when the recipe
asks for something else, when a package of it is gone from the archives and from
the store, or with --update.
` + exitCodes,
		Example: `  imgbuild lock recipes/rack-base.yaml
  imgbuild lock recipes/rack-base.yaml --update   # take what the archive has today
  imgbuild lock recipes/rack-base.yaml --check    # in CI: does the lock answer the recipe?`,
		Args: cli.OneArg("a recipe"),
		RunE: func(cmd *cobra.Command, args []string) error { return runLock(cmd, common, o, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.out, "out", "", "lock file (default: the recipe's path with .lock.json)")
	f.BoolVar(&o.check, "check", false, "only say whether the lock answers the recipe; exit status 2 if not")
	f.BoolVar(&o.update, "update", false, "resolve anew even if the lock answers the recipe")
	f.BoolVar(&o.noFetch, "no-fetch", false, "do not download the packages")
	f.StringArrayVar(&o.mirrors, "mirror", nil, "store of another build host (address or folder), to ask for packages the archive has dropped")
	addStoreFlag(cmd, &o.store)
	return cmd
}

func runLock(cmd *cobra.Command, common *commonOptions, o lockOptions, path string) error {
	r, err := recipe.Load(path)
	if err != nil {
		return err
	}
	if o.out == "" {
		o.out = defaultLock(path)
	}
	if o.check {
		return checkLock(cmd, r, o.out)
	}
	store, err := cas.Open(o.store)
	if err != nil {
		return err
	}
	if store.Mirrors, err = absoluteMirrors(o.mirrors); err != nil {
		return err
	}
	p, err := common.reporter(cmd)
	if err != nil {
		return err
	}
	defer p.Close()
	l := &locker{cmd: cmd, options: o, recipe: r, store: store, progress: p}
	return l.run(cmd.Context())
}

// checkLock answers --check.
func checkLock(cmd *cobra.Command, r *recipe.Recipe, name string) error {
	f, err := readLock(name, r.Path)
	if err != nil {
		return err
	}
	if err := lock.Check(r, f); err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s answers %s\n", name, r.Path)
	return nil
}

// locker is one run of the lock command.
type locker struct {
	cmd      *cobra.Command
	options  lockOptions
	recipe   *recipe.Recipe
	store    *cas.Store
	progress *progress.Reporter
}

// run keeps the lock if it can, and makes a new one otherwise.
func (l *locker) run(ctx context.Context) error {
	old, err := lock.Read(l.options.out)
	if err != nil && !errors.Is(err, fs.ErrNotExist) && !l.options.update {
		return fmt.Errorf("%w: %w; repair it, or make it anew with --update", image.ErrOptions, err)
	}
	why := ""
	var stale *lock.StaleError
	switch {
	case old == nil:
	case l.options.update:
		why = "--update was given"
	case errors.As(lock.Check(l.recipe, old), &stale):
		why = stale.Reasons[0]
	default:
		err := l.fetch(ctx, old)
		var gone *cas.GoneError
		if err == nil {
			l.printf("%s is kept: it answers the recipe\n", l.options.out)
			return l.summary(old)
		}
		if !errors.As(err, &gone) {
			return err
		}
		why = gone.Item.Name + " is gone from the archives and from the store"
	}
	return l.renew(ctx, old, why)
}

// renew resolves the recipe and replaces the lock.
func (l *locker) renew(ctx context.Context, old *lock.File, why string) error {
	task := l.progress.Start("resolve packages", progress.Items)
	f, err := apt.Resolve(ctx, l.recipe, apt.Options{CacheDir: filepath.Join(l.store.Dir(), "apt")})
	if err != nil {
		return err
	}
	task.End(fmt.Sprintf("%d packages", len(f.Packages)))
	if err := l.fetch(ctx, f); err != nil {
		return err
	}
	if err := lock.Write(l.options.out, f); err != nil {
		return err
	}
	if old != nil {
		l.printf("%s is new: %s\n", l.options.out, why)
		changes := lock.Diff(old, f)
		for _, c := range changes {
			l.printf("  %s\n", c)
		}
		if len(changes) == 0 {
			l.printf("  no package moved\n")
		}
	}
	return l.summary(f)
}

func (l *locker) fetch(ctx context.Context, f *lock.File) error {
	if l.options.noFetch {
		return nil
	}
	return image.Fetch(ctx, l.store, f, l.progress)
}

func (l *locker) summary(f *lock.File) error {
	var size int64
	for _, p := range slices.Concat(f.Packages, f.Tools) {
		size += p.SizeBytes
	}
	kernel, _ := lock.Find(f.Packages, f.Kernel) // reading or resolving saw to it
	l.printf("%s: %d packages, %s, kernel %s %s, archives as of %s\n", l.options.out, len(f.Packages), progress.Size(size),
		kernel.Name, kernel.Version, time.Unix(f.SourceDateEpoch, 0).UTC().Format(time.RFC3339))
	return nil
}

func (l *locker) printf(format string, args ...any) {
	fmt.Fprintf(l.cmd.OutOrStdout(), format, args...)
}
