// Package apt answers a recipe with a lock: it runs the host's apt in a root
// of its own, so that apt's verification of archives and its solver decide,
// and nothing of the host's apt configuration does. It installs and downloads
// no package; that is the work of cas and rootfs.
//
// Trust: apt verifies each InRelease file with the recipe's keyring and each
// index with the hashes in it; the SHA-256 of every package in a lock is from
// such an index.
package apt

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/recipe"
)

// Options is what Resolve needs beside a recipe.
type Options struct {
	CacheDir string       // where indexes are kept from one run to the next; shared by processes
	Log      *slog.Logger // nil is quiet
	// Package brings a package to this host and returns its path. Update asks
	// it for the dependencies of packages that the archives have dropped.
	Package func(ctx context.Context, p lock.Package) (path string, err error)
}

// tools are the packages an image is built with, but does not contain:
// systemd's EFI stub and boot loader.
var tools = []string{"systemd-boot-efi"}

// Resolve asks the archives of r for the newest packages that satisfy it:
// what Debian calls essential, the kernel, the packages of r, and what they
// depend on (no recommendations). A request that cannot be met is a
// *recipe.Error at the line of the package that is the cause.
func Resolve(ctx context.Context, r *recipe.Recipe, o Options) (*lock.File, error) {
	a, ix, f, err := prepare(ctx, r, o)
	if err != nil {
		return nil, err
	}
	defer a.close()
	if err := choose(ctx, a, ix, r, f); err != nil {
		return nil, err
	}
	return f, f.Validate()
}

// prepare opens a root with fresh, verified indexes, and begins the lock that
// is resolved from them. The caller closes the root.
func prepare(ctx context.Context, r *recipe.Recipe, o Options) (*root, *index, *lock.File, error) {
	log := o.Log
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	a, err := openRoot(ctx, r, o.CacheDir)
	if err != nil {
		return nil, nil, nil, err
	}
	fail := func(err error) (*root, *index, *lock.File, error) {
		a.close()
		return nil, nil, nil, err
	}
	log.Info("reading the indexes of the archives", "sources", len(r.Base.Sources))
	if err := a.update(ctx, r); err != nil {
		return fail(err)
	}
	targets, err := a.targets(ctx, r)
	if err != nil {
		return fail(err)
	}
	ix, err := readIndex(targets)
	if err != nil {
		return fail(err)
	}
	f := &lock.File{Version: lock.Version, Recipe: r.Request, Name: r.Name, Architecture: r.Architecture}
	if err := describeIndexes(ctx, f, targets, r.Base.Keyring); err != nil {
		return fail(err)
	}
	log.Info("choosing packages", "available", len(ix.stanzas))
	return a, ix, f, nil
}

// Versions returns the versions of a package that the archives of r have, the
// newest first.
func Versions(ctx context.Context, r *recipe.Recipe, name string, o Options) ([]string, error) {
	a, ix, _, err := prepare(ctx, r, o)
	if err != nil {
		return nil, err
	}
	a.close()
	return ix.versions(name), nil
}

// choose fills in the packages of f.
func choose(ctx context.Context, a *root, ix *index, r *recipe.Recipe, f *lock.File) error {
	want, err := ix.request(r)
	if err != nil {
		return err
	}
	tables := compat.Default()
	d, err := ix.driver(tables, r)
	if err != nil {
		return err
	}
	if d != nil {
		want.names = append(want.names, d.image...)
		maps.Copy(want.pins, d.pins(tables, ix))
	}
	if err := a.pin(want.pins); err != nil {
		return err
	}
	chosen, err := a.install(ctx, ix, r, want.names)
	if err != nil {
		return err
	}
	essential := closure(ix.essential, chosen)
	for _, s := range chosen {
		f.Packages = append(f.Packages, s.locked(essential[s.name]))
	}
	f.Kernel = want.kernel
	if f.Tools, err = a.tools(ctx, ix); err != nil {
		return err
	}
	if d != nil {
		if f.Build, err = a.build(ctx, ix, r, want.kernel, d); err != nil {
			return err
		}
	}
	return finish(r, f, chosen)
}

// finish orders the packages of f and refuses sets that cannot work.
func finish(r *recipe.Recipe, f *lock.File, chosen []*stanza) error {
	byName := func(a, b lock.Package) int { return strings.Compare(a.Name, b.Name) }
	slices.SortFunc(f.Packages, byName)
	slices.SortFunc(f.Tools, byName)
	slices.SortFunc(f.Build, byName)
	if err := oneKernel(r, f.Kernel, chosen); err != nil {
		return err
	}
	return families(r, f)
}

// tools finds the build tools, the newest that the archives have.
func (a *root) tools(ctx context.Context, ix *index) ([]lock.Package, error) {
	var locked []lock.Package
	for _, name := range tools {
		if len(ix.byName[name]) == 0 {
			return nil, fmt.Errorf("the archives have no package %s, which images are built with; add the suite and component that has it", name)
		}
		out, err := a.run(ctx, "apt-get", "-qq", "download", "--print-uris", name)
		if err != nil {
			return nil, fmt.Errorf("package %s: %w", name, err)
		}
		ps, err := ix.printed(out)
		if err != nil {
			return nil, err
		}
		if len(ps) != 1 {
			return nil, fmt.Errorf("package %s: apt names %d files", name, len(ps))
		}
		locked = append(locked, ps[0].locked(false))
	}
	return locked, nil
}

// oneKernel refuses a second kernel that some package depends on.
func oneKernel(r *recipe.Recipe, kernel string, chosen []*stanza) error {
	for _, s := range chosen {
		if !strings.HasPrefix(s.name, "linux-image-") || s.name == kernel {
			continue
		}
		by := "another package"
		for _, d := range chosen {
			if slices.ContainsFunc(d.needs(), func(alts []string) bool { return slices.Contains(alts, s.name) }) {
				by = d.name
			}
		}
		return r.Errorf(fieldOf(r, by), "an image has one kernel; take out the package that depends on the other",
			"two kernels: %s (kernel.package) and %s, which %s depends on", kernel, s.name, by)
	}
	return nil
}

// families turns a mismatch of driver versions into an error at the recipe's line.
func families(r *recipe.Recipe, f *lock.File) error {
	err := lock.CheckFamilies(slices.Concat(f.Packages, f.Build))
	var fe *lock.FamilyError
	if !errors.As(err, &fe) {
		return err
	}
	field := fieldOf(r, fe.A.Name)
	if f := fieldOf(r, fe.B.Name); f != "packages" {
		field = f
	}
	return r.Errorf(field, fmt.Sprintf("pin both: %q and %q, or the other way round if the archive has it", fe.A.Name+"="+fe.A.Version, fe.B.Name+"="+lock.Upstream(fe.A.Version)+"*"), "%v", fe)
}

// fieldOf returns the field of r that asks for the package name.
func fieldOf(r *recipe.Recipe, name string) string {
	if lock.MatchName(r.Kernel.Package, name) {
		return "kernel.package"
	}
	for _, l := range []struct {
		field string
		names []string
	}{{"packages", r.Packages}, {"driver.packages", r.Driver.Packages}, {"firmware.packages", r.Firmware.Packages}} {
		for i, p := range l.names {
			if n, _, _ := strings.Cut(p, "="); n == name {
				return fmt.Sprintf("%s[%d]", l.field, i)
			}
		}
	}
	return "packages"
}
