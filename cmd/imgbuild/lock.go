package main

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
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
	mirrors mirrorOptions
	check   bool
	diff    bool
	update  bool
	noFetch bool
	output  string
	names   []string // packages to move; none with update: all
}

func newLockCommand(common *commonOptions) *cobra.Command {
	var o lockOptions
	cmd := &cobra.Command{
		Use:   "lock RECIPE [--update [PACKAGE...]]",
		Short: "Resolve every package of a recipe to an exact version and hash",
		Long: `Writes the lock file of a recipe: every package by version, size and SHA-256, as
apt itself resolves it from the recipe's signed archives, and downloads the
packages into the store, since archives drop old versions within weeks.

A lock that answers the recipe is kept as it is, so that builds do not change
until someone asks. When the recipe asks for something else, or with --update,
it is made anew, and what moved is printed.

With names of packages behind it, --update moves these, what their dependencies
force, and what the recipe asks for and the lock does not have; every other
package keeps its exact version and hash, also one that the archives have dropped
since. Each move is printed with its reason. The parts of a GPU driver move
together; the name of the kernel's package takes the newest that the recipe
allows.

--diff shows what --update (with the names, if there are any) would move, and
writes nothing. --check says whether the lock answers the recipe, and if not, why.

Exit status: 0 done; of --diff: nothing would move; 1 failed; of --diff: something
would move; 2 the recipe, the lock or the command line is wrong; of --check: the
lock does not answer the recipe.`,
		Example: `  imgbuild lock recipes/rack-base.yaml
  imgbuild lock recipes/rack-base.yaml --update               # take what the archive has today
  imgbuild lock recipes/rack-base.yaml --update openssh-server systemd
  imgbuild lock recipes/rack-base.yaml --diff -o json         # what would move?
  imgbuild lock recipes/rack-base.yaml --check                # in CI: does the lock answer the recipe?`,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cli.Usagef(cmd, "want at least one argument, a recipe")
			}
			if len(args) > 1 && !o.update {
				return cli.Usagef(cmd, "unexpected argument %q: packages are named with --update", args[1])
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			o.names = args[1:]
			return runLock(cmd, common, o, args[0])
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.out, "out", "", "lock file (default: the recipe's path with .lock.json)")
	f.BoolVar(&o.check, "check", false, "only say whether the lock answers the recipe; exit status 2 if not")
	f.BoolVar(&o.diff, "diff", false, "only show what an update would move; exit status 1 if anything would")
	f.BoolVar(&o.update, "update", false, "resolve anew even if the lock answers the recipe; with names of packages: move only these")
	f.BoolVar(&o.noFetch, "no-fetch", false, "do not download the packages")
	f.StringVarP(&o.output, "output", "o", "text", "output of --diff and --check: text or json")
	o.mirrors.addFlags(cmd)
	addStoreFlag(cmd, &o.store)
	cmd.MarkFlagsMutuallyExclusive("check", "diff")
	cmd.MarkFlagsMutuallyExclusive("check", "update")
	return cmd
}

func runLock(cmd *cobra.Command, common *commonOptions, o lockOptions, path string) error {
	if o.output != "text" && o.output != "json" {
		return cli.Usagef(cmd, "--output %q: want text or json", o.output)
	}
	r, err := recipe.Load(path)
	if err != nil {
		return err
	}
	if o.out == "" {
		o.out = defaultLock(path)
	}
	if o.check {
		return checkLock(cmd, r, o)
	}
	store, err := cas.Open(o.store)
	if err != nil {
		return err
	}
	if err := o.mirrors.set(store); err != nil {
		return err
	}
	p, err := common.reporter(cmd)
	if err != nil {
		return err
	}
	defer p.Close()
	l := &locker{cmd: cmd, options: o, recipe: r, store: store, progress: p}
	if o.diff {
		return l.diff(cmd.Context())
	}
	return l.run(cmd.Context())
}

// checkLock answers --check.
func checkLock(cmd *cobra.Command, r *recipe.Recipe, o lockOptions) error {
	f, err := readLock(o.out, r.Path)
	if err != nil {
		return err
	}
	err = lock.Check(r, f)
	var stale *lock.StaleError
	if err != nil && !errors.As(err, &stale) {
		return err
	}
	if o.output == "json" {
		doc := struct {
			Lock    string   `json:"lock"`
			Recipe  string   `json:"recipe"`
			Current bool     `json:"current"`
			Reasons []string `json:"reasons,omitempty"`
		}{Lock: o.out, Recipe: r.Path, Current: err == nil}
		if stale != nil {
			doc.Reasons = stale.Reasons
		}
		if err := writeJSON(cmd.OutOrStdout(), doc); err != nil {
			return err
		}
		if stale != nil {
			return foundError{exitUsage}
		}
		return nil
	}
	if err != nil {
		return err
	}
	fmt.Fprintf(cmd.OutOrStdout(), "%s answers %s\n", o.out, r.Path)
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
	old, err := l.old()
	if err != nil {
		return err
	}
	why := ""
	var stale *lock.StaleError
	switch {
	case len(l.options.names) > 0:
		return l.move(ctx, old)
	case old == nil:
	case l.options.update:
		why = "--update was given"
	case errors.As(lock.Check(l.recipe, old), &stale):
		why = stale.Reasons[0]
	default:
		if err := l.fetch(ctx, old); err != nil {
			return err
		}
		l.printf("%s is kept: it answers the recipe\n", l.options.out)
		return l.summary(old)
	}
	return l.renew(ctx, old, why)
}

// old reads the lock there is; nil if there is none.
func (l *locker) old() (*lock.File, error) {
	old, err := lock.Read(l.options.out)
	switch {
	case err == nil:
		return old, nil
	case errors.Is(err, fs.ErrNotExist) && len(l.options.names) == 0 && !l.options.diff,
		l.options.update && len(l.options.names) == 0 && !l.options.diff:
		return nil, nil
	case errors.Is(err, fs.ErrNotExist):
		return nil, fmt.Errorf("%w: %w", image.ErrOptions, err)
	}
	return nil, fmt.Errorf("%w: %w; repair it, or make it anew with --update", image.ErrOptions, err)
}

// renew resolves the recipe and replaces the lock.
func (l *locker) renew(ctx context.Context, old *lock.File, why string) error {
	f, err := l.resolve(ctx)
	if err != nil {
		return err
	}
	if old != nil {
		f.Accounts = old.Accounts
	}
	if err := l.fetch(ctx, f); err != nil {
		return err
	}
	if err := lock.Write(l.options.out, f); err != nil {
		return err
	}
	if old != nil {
		l.printf("%s is new: %s\n", l.options.out, why)
		l.list(lock.Diff(old, f))
	}
	return l.summary(f)
}

func (l *locker) resolve(ctx context.Context) (*lock.File, error) {
	task := l.progress.Start("resolve packages", progress.Items)
	f, err := apt.Resolve(ctx, l.recipe, l.apt())
	if err != nil {
		return nil, err
	}
	task.End(fmt.Sprintf("%d packages", len(f.Packages)))
	return f, nil
}

func (l *locker) fetch(ctx context.Context, f *lock.File) error {
	if l.options.noFetch {
		return nil
	}
	return explainGone(ctx, l.recipe, l.store, image.Fetch(ctx, l.store, f, l.progress))
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
