package lock

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/recipe"
)

// StaleError tells that a lock does not answer a recipe, and why.
type StaleError struct {
	Recipe  string   // path
	Reasons []string // at least one
}

func (e *StaleError) Error() string {
	return fmt.Sprintf("the lock does not answer %s: %s; run `imgbuild lock`", e.Recipe, strings.Join(e.Reasons, "; "))
}

// Check tells whether f answers what r asks of the archive; if not it returns
// a *StaleError. What a recipe asks of the image alone (files, services,
// health) does not age a lock.
func Check(r *recipe.Recipe, f *File) error {
	if f.Recipe == r.Request {
		return nil
	}
	e := &StaleError{Recipe: r.Path}
	if f.Name != r.Name {
		e.add("it is the lock of recipe %s", f.Name)
	}
	if f.Architecture != r.Architecture {
		e.add("it is for %s, the recipe for %s", f.Architecture, r.Architecture)
	}
	e.kernel(r, f)
	for _, want := range slices.Concat(r.Packages, r.Firmware.Packages) {
		e.wanted(want, f)
	}
	e.driver(r, f)
	e.sources(r, f)
	if len(e.Reasons) == 0 {
		e.add("the recipe asks for other packages or sources than when it was locked")
	}
	return e
}

func (e *StaleError) add(format string, args ...any) {
	e.Reasons = append(e.Reasons, fmt.Sprintf(format, args...))
}

func (e *StaleError) kernel(r *recipe.Recipe, f *File) {
	if !MatchName(r.Kernel.Package, f.Kernel) {
		e.add("kernel is %s, the recipe wants %s", f.Kernel, r.Kernel.Package)
		return
	}
	if p, _ := Find(f.Packages, f.Kernel); r.Kernel.Version != "" && p.Version != r.Kernel.Version {
		e.add("kernel %s is %s, the recipe wants %s", f.Kernel, p.Version, r.Kernel.Version)
	}
}

// driver compares the driver's pin with the sources of its modules.
func (e *StaleError) driver(r *recipe.Recipe, f *File) {
	d := r.Driver
	if d.Family == "" {
		if len(f.Build) > 0 {
			e.add("it has a driver, the recipe none")
		}
		return
	}
	var sources *Package
	for i, p := range f.Build {
		if families[0].has(p) {
			sources = &f.Build[i]
		}
	}
	switch {
	case sources == nil:
		e.add("it has no driver")
		return
	case d.Version != "" && Upstream(sources.Version) != d.Version, d.Version == "" && !strings.HasPrefix(sources.Version, fmt.Sprintf("%d.", d.Branch)):
		e.add("driver is %s, the recipe wants %s", Upstream(sources.Version), wantedDriver(d))
	}
	for _, want := range d.Packages {
		e.wanted(want, f)
	}
}

func wantedDriver(d recipe.Driver) string {
	if d.Version != "" {
		return d.Version
	}
	return fmt.Sprintf("branch %d", d.Branch)
}

func (e *StaleError) wanted(want string, f *File) {
	name, version, pinned := strings.Cut(want, "=")
	p, ok := Find(f.Packages, name)
	switch {
	case !ok:
		e.add("package %s is not in it", name)
	case pinned && !MatchVersion(version, p.Version):
		e.add("package %s is %s, the recipe wants %s", name, p.Version, version)
	}
}

func (e *StaleError) sources(r *recipe.Recipe, f *File) {
	have := map[string]bool{}
	for _, x := range f.Indexes {
		have[strings.TrimSuffix(x.URI, "/")+" "+x.Suite] = true
	}
	for _, s := range r.Base.Sources {
		for _, suite := range s.Suites {
			if !have[strings.TrimSuffix(s.URI, "/")+" "+suite] {
				e.add("source %s %s is not in it", s.URI, suite)
			}
		}
	}
}

// MatchVersion tells whether version is what a recipe's pin asks for: equal
// to it, or, when the pin ends in "*", in its series.
func MatchVersion(pin, version string) bool {
	if series, ok := strings.CutSuffix(pin, "*"); ok {
		return strings.HasPrefix(version, series)
	}
	return pin == version
}

// MatchName tells whether name is what a recipe's kernel.package asks for,
// where "*" stands for the digits of the ABI number.
func MatchName(pattern, name string) bool {
	re := strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, `[0-9]+`)
	ok, err := regexp.MatchString("^"+re+"$", name)
	return ok && err == nil
}
