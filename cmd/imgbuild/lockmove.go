package main

import (
	"context"
	"fmt"
	"path/filepath"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/apt"
	"github.com/turnout-project/turnout/internal/image"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/progress"
	"github.com/turnout-project/turnout/internal/recipe"
)

// apt is how this run asks the archives.
func (l *locker) apt() apt.Options {
	return apt.Options{
		CacheDir: filepath.Join(l.store.Dir(), "apt"),
		Package: func(ctx context.Context, p lock.Package) (string, error) {
			err := image.Fetch(ctx, l.store, &lock.File{Packages: []lock.Package{p}}, nil)
			return l.store.Path(p.SHA256), err
		},
	}
}

// move answers --update with names: it moves these packages alone.
func (l *locker) move(ctx context.Context, old *lock.File) error {
	f, changes, err := l.moved(ctx, old)
	if err != nil {
		return err
	}
	if len(changes) == 0 && f.Recipe == old.Recipe {
		l.printf("%s is kept: nothing moved\n", l.options.out)
		l.stayed(old, changes)
		return l.summary(old)
	}
	if err := l.fetch(ctx, f); err != nil {
		return err
	}
	if err := lock.Write(l.options.out, f); err != nil {
		return err
	}
	l.printf("%s is new: %s of %d packages as they were\n", l.options.out, kept(old, f), len(f.Packages))
	l.list(changes)
	l.stayed(old, changes)
	return l.summary(f)
}

// kept counts the packages that did not move.
func kept(old, f *lock.File) string {
	n := 0
	for _, p := range f.Packages {
		if o, ok := lock.Find(old.Packages, p.Name); ok && o.SHA256 == p.SHA256 {
			n++
		}
	}
	return fmt.Sprint(n)
}

// moved resolves what moving the named packages makes of the lock.
func (l *locker) moved(ctx context.Context, old *lock.File) (*lock.File, []lock.Change, error) {
	if err := l.checkNames(old); err != nil {
		return nil, nil, err
	}
	task := l.progress.Start("resolve packages", progress.Items)
	f, why, err := apt.Update(ctx, l.recipe, old, l.options.names, l.apt())
	if err != nil {
		return nil, nil, explainGone(ctx, l.recipe, l.store, err)
	}
	task.End(fmt.Sprintf("%d packages", len(f.Packages)))
	changes := lock.Diff(old, f)
	for i := range changes {
		changes[i].Why = why[changes[i].Name]
	}
	return f, changes, nil
}

// checkNames refuses packages that are neither in the lock nor in the recipe.
func (l *locker) checkNames(old *lock.File) error {
	var all []string
	for _, p := range slices.Concat(old.Packages, old.Tools, old.Build) {
		all = append(all, p.Name)
	}
	for _, list := range [][]string{l.recipe.Packages, l.recipe.Firmware.Packages, l.recipe.Driver.Packages} {
		for _, p := range list {
			name, _, _ := strings.Cut(p, "=")
			all = append(all, name)
		}
	}
	for _, n := range l.options.names {
		if slices.Contains(all, n) || n == l.recipe.Kernel.Package || lock.MatchName(l.recipe.Kernel.Package, n) {
			continue
		}
		hint := ""
		if near := recipe.Nearest(n, all); near != "" {
			hint = fmt.Sprintf("; did you mean %q?", near)
		}
		if strings.Contains(n, "=") {
			hint = "; --update takes the newest, a version is pinned in the recipe: packages: [" + n + "]"
		}
		return cli.Usagef(l.cmd, "package %q is not in %s%s", n, l.options.out, hint)
	}
	return nil
}

// list prints what moved.
func (l *locker) list(changes []lock.Change) {
	for _, c := range changes {
		l.printf("  %s\n", c)
	}
	if len(changes) == 0 {
		l.printf("  no package moved\n")
	}
}

// stayed says of each named package that did not move why not.
func (l *locker) stayed(old *lock.File, changes []lock.Change) {
	for _, n := range l.options.names {
		p, ok := lock.Find(slices.Concat(old.Packages, old.Tools, old.Build), n)
		if !ok || slices.ContainsFunc(changes, func(c lock.Change) bool { return c.Name == n }) {
			continue
		}
		why := "the archives have nothing newer that fits"
		for _, list := range [][]string{l.recipe.Packages, l.recipe.Firmware.Packages} {
			if slices.Contains(list, n+"="+p.Version) {
				why = "the recipe pins it"
			}
		}
		if n == old.Kernel && l.recipe.Kernel.Version == p.Version {
			why = "the recipe pins it (kernel.version)"
		}
		l.printf("  = %s %s stays: %s\n", n, p.Version, why)
	}
}

// diff answers --diff.
func (l *locker) diff(ctx context.Context) error {
	old, err := l.old()
	if err != nil {
		return err
	}
	var f *lock.File
	var changes []lock.Change
	if len(l.options.names) > 0 {
		f, changes, err = l.moved(ctx, old)
	} else if f, err = l.resolve(ctx); err == nil {
		changes = lock.Diff(old, f)
	}
	if err != nil {
		return err
	}
	if l.options.output == "json" {
		doc := struct {
			Lock    string        `json:"lock"`
			Changes []lock.Change `json:"changes"`
		}{l.options.out, append([]lock.Change{}, changes...)}
		if err := writeJSON(l.cmd.OutOrStdout(), doc); err != nil {
			return err
		}
	} else {
		l.printf("%s, were it updated:\n", l.options.out)
		l.list(changes)
		l.stayed(old, changes)
	}
	if len(changes) > 0 {
		return foundError{exitFailure}
	}
	return nil
}
