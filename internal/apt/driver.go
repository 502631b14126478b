package apt

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/recipe"
)

// driver is what a recipe's driver section asks of the archives.
type driver struct {
	version string // NVIDIA's, one for all parts
	image   []string
	sources []string // of the kernel modules
}

// builders are what modules are compiled with, beside the kernel's headers
// and the compiler that those depend on.
var builders = []string{"dkms", "gcc", "make", "patch", "kmod", "xz-utils"}

// driver finds the version of r's driver; nil if it has none.
func (ix *index) driver(t *compat.Tables, r *recipe.Recipe) (*driver, error) {
	if r.Driver.Family == "" {
		return nil, nil
	}
	set, ok := t.DriverSet(r.Base.Distribution, r.Driver.Flavour)
	if !ok {
		return nil, r.Errorf("driver.flavour", "", "it is not known of which packages of %s the %s driver consists", r.Base.Distribution, r.Driver.Flavour)
	}
	d := &driver{image: slices.Concat(set.Image, r.Driver.Packages), sources: set.Build}
	for i, p := range r.Driver.Packages {
		if err := ix.exists(r, fmt.Sprintf("driver.packages[%d]", i), p); err != nil {
			return nil, err
		}
	}
	parts := ix.parts(t, d)
	for _, p := range parts {
		if err := ix.exists(r, "driver", p); err != nil {
			return nil, err
		}
	}
	var err error
	d.version, err = ix.wholeVersion(r, parts)
	return d, err
}

// parts are the packages of d that must be of one version.
func (ix *index) parts(t *compat.Tables, d *driver) []string {
	return slices.DeleteFunc(slices.Concat(d.image, d.sources), func(name string) bool {
		row, ok := t.Package(name)
		return !ok || !row.Family
	})
}

// whole returns the versions in which the archives have all of parts, the
// newest first.
func (ix *index) whole(parts []string) []string {
	var out []string
	for _, s := range ix.byName[parts[0]] {
		v := lock.Upstream(s.version)
		all := !slices.Contains(out, v)
		for _, p := range parts {
			all = all && ix.upstream(p, v) != nil
		}
		if all {
			out = append(out, v)
		}
	}
	return out
}

// upstream returns the newest package of that name with NVIDIA's version v.
func (ix *index) upstream(name, v string) *stanza {
	for _, s := range ix.byName[name] {
		if lock.Upstream(s.version) == v {
			return s
		}
	}
	return nil
}

// wholeVersion picks the version that r asks for among those the archives
// have in whole, or names these.
func (ix *index) wholeVersion(r *recipe.Recipe, parts []string) (string, error) {
	whole := ix.whole(parts)
	want := r.Driver.Version
	for _, v := range whole {
		if v == want || want == "" && compat.BranchOf(v) == r.Driver.Branch {
			return v, nil
		}
	}
	hint := "the archives have no version of this driver in whole; a suite or component may be missing from base.sources (contrib, non-free, non-free-firmware)"
	if len(whole) > 0 {
		hint = "the pin that works: version: " + whole[0]
		if len(whole) > 1 {
			hint += ", or " + strings.Join(whole[1:], ", ")
		}
	}
	if want == "" {
		return "", r.Errorf("driver.branch", hint, "the archives have no driver of branch %d in whole", r.Driver.Branch)
	}
	return "", r.Errorf("driver.version", hint, "the archives do not have driver %s in whole: %s", want, ix.lacking(parts, want))
}

// lacking says which parts are of another version than v, and what those with
// it are, in a sentence about one of each.
func (ix *index) lacking(parts []string, v string) string {
	var without, with string
	for _, p := range parts {
		if s := ix.upstream(p, v); s != nil && with == "" {
			with = fmt.Sprintf("; %s is %s", p, s.version)
		} else if s == nil && without == "" {
			without = fmt.Sprintf("%s is %s", p, strings.Join(ix.versions(p), ", "))
		}
	}
	return without + with
}

// pins makes apt take every part of the driver at its version, those too that
// only a dependency asks for.
func (d *driver) pins(t *compat.Tables, ix *index) map[string]string {
	pins := map[string]string{}
	for name := range ix.byName {
		s := ix.upstream(name, d.version)
		if s == nil {
			continue
		}
		if row, ok := t.Package(name); ok && row.Family || strings.HasPrefix(s.source, "nvidia-") {
			pins[name] = s.version
		}
	}
	return pins
}

// headers is the package of a kernel's headers.
func headers(kernel string) string {
	return "linux-headers-" + strings.TrimPrefix(kernel, "linux-image-")
}

// build chooses the root in which d's modules are compiled for the kernel:
// what Debian calls essential, the compiler, and the sources themselves,
// whose dependencies are of the image's concern.
func (a *root) build(ctx context.Context, ix *index, r *recipe.Recipe, kernel string, d *driver) ([]lock.Package, error) {
	h := headers(kernel)
	if err := ix.exists(r, "kernel.package", h); err != nil {
		return nil, err
	}
	names := slices.Concat(ix.essential, builders, []string{h})
	if len(ix.byName[merged]) > 0 {
		names = append(names, merged)
	}
	chosen, err := a.install(ctx, ix, r, names)
	if err != nil {
		return nil, fmt.Errorf("root to compile the driver in: %w", err)
	}
	for _, name := range d.sources {
		s := ix.upstream(name, d.version)
		if !slices.ContainsFunc(chosen, func(c *stanza) bool { return c.name == name }) {
			chosen = append(chosen, s)
		}
	}
	essential := closure(ix.essential, chosen)
	var out []lock.Package
	for _, s := range chosen {
		out = append(out, s.locked(essential[s.name]))
	}
	return out, nil
}

// driverPin returns the pin that works for a package of a driver that apt
// cannot install, "" if it is of no driver or none works.
func (ix *index) driverPin(pkg string) string {
	pkg, _, _ = strings.Cut(pkg, ":")
	t := compat.Default()
	row, ok := t.Package(pkg)
	if !ok || row.Flavour == "" {
		return ""
	}
	for _, set := range t.DriverSets {
		parts := slices.Concat(set.Image, set.Build)
		if set.Flavour != row.Flavour || !slices.Contains(parts, pkg) {
			continue
		}
		if whole := ix.whole(parts); len(whole) > 0 {
			return fmt.Sprintf("all parts of the driver must be of one version; the archives have %s in whole: pin it with driver: {family: nvidia, flavour: %s, version: %s} in place of its packages",
				strings.Join(whole, ", "), set.Flavour, whole[0])
		}
	}
	return ""
}
