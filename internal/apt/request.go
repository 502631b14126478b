package apt

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/recipe"
)

// merged says that / has its bin, lib and sbin in /usr, which is how images
// are laid out before the first package is unpacked. Without it apt would
// choose the package that converts a system, and all of Perl with it.
const merged = "usr-is-merged"

// request is what apt is asked for.
type request struct {
	kernel string            // name of its package
	names  []string          // of packages
	pins   map[string]string // name to exact version
}

// request makes names and versions of the recipe exact, or says what there is.
func (ix *index) request(r *recipe.Recipe) (*request, error) {
	q := &request{names: slices.Clone(ix.essential), pins: map[string]string{}}
	if len(ix.byName[merged]) > 0 {
		q.names = append(q.names, merged)
	}
	kernel, err := ix.kernel(r)
	if err != nil {
		return nil, err
	}
	q.kernel = kernel.name
	q.pins[kernel.name] = kernel.version
	if len(ix.byName[headers(kernel.name)]) > 0 {
		q.pins[headers(kernel.name)] = kernel.version
	}
	q.names = append(q.names, kernel.name)
	if err := q.add(ix, r, "packages", r.Packages); err != nil {
		return nil, err
	}
	return q, q.add(ix, r, "firmware.packages", r.Firmware.Packages)
}

// add asks for the packages of one list of the recipe.
func (q *request) add(ix *index, r *recipe.Recipe, list string, packages []string) error {
	for i, p := range packages {
		if err := q.addOne(ix, r, fmt.Sprintf("%s[%d]", list, i), p); err != nil {
			return err
		}
	}
	return nil
}

// addOne asks for a package, "name" or "name=version".
func (q *request) addOne(ix *index, r *recipe.Recipe, field, p string) error {
	name, pin, pinned := strings.Cut(p, "=")
	if err := ix.exists(r, field, name); err != nil {
		return err
	}
	if pinned {
		s, err := ix.version(r, field, name, pin)
		if err != nil {
			return err
		}
		q.pins[name] = s.version
	}
	q.names = append(q.names, name)
	return nil
}

// version returns the newest version of name that is what pin asks for.
func (ix *index) version(r *recipe.Recipe, field, name, pin string) (*stanza, error) {
	for _, s := range ix.byName[name] {
		if lock.MatchVersion(pin, s.version) {
			return s, nil
		}
	}
	newest := ix.byName[name][0].version
	return nil, r.Errorf(field, fmt.Sprintf("pin one of them, or a series such as %q", name+"="+series(newest)),
		"package %s has no version %s; the archive has %s", name, pin, strings.Join(ix.versions(name), ", "))
}

// series returns a version pattern that the next update of v will match too.
func series(v string) string {
	if i := strings.IndexAny(v, "-~+"); i > 0 {
		v = v[:i]
	}
	return v + "*"
}

// versions lists the versions of name, the newest first.
func (ix *index) versions(name string) []string {
	var all []string
	for _, s := range ix.byName[name] {
		if !slices.Contains(all, s.version) {
			all = append(all, s.version)
		}
	}
	return all
}

// kernel returns the one kernel r asks for.
func (ix *index) kernel(r *recipe.Recipe) (*stanza, error) {
	var best *stanza
	for name, all := range ix.byName {
		if !lock.MatchName(r.Kernel.Package, name) {
			continue
		}
		for _, s := range all {
			if r.Kernel.Version != "" && s.version != r.Kernel.Version {
				continue
			}
			if best == nil || lock.CompareVersions(s.name, best.name) > 0 || s.name == best.name && lock.CompareVersions(s.version, best.version) > 0 {
				best = s
			}
		}
	}
	if best != nil {
		return best, nil
	}
	if len(ix.byName[r.Kernel.Package]) > 0 {
		_, err := ix.version(r, "kernel.version", r.Kernel.Package, r.Kernel.Version)
		return nil, err
	}
	series := ""
	if s := seriesOf(r.Kernel.Package); s != r.Kernel.Package {
		series = ", a series such as " + s
	}
	return nil, r.Errorf("kernel.package", "an archive drops old kernels: name one it has"+series+", or keep building from the lock and its stored packages",
		"kernel %s is not in the archive%s", r.Kernel.Package, ix.kernels(r.Kernel.Package))
}

var aKernel = regexp.MustCompile(`^linux-image-[0-9]+\.[0-9]`)

var abi = regexp.MustCompile(`^(linux-image-[0-9]+\.[0-9]+\.[0-9]+-)[0-9*]+`)

// seriesOf returns "linux-image-6.1.0-*-amd64" for "linux-image-6.1.0-50-amd64".
func seriesOf(kernel string) string { return abi.ReplaceAllString(kernel, "${1}*") }

// kernels names the kernels of the same flavour, for a person.
func (ix *index) kernels(wanted string) string {
	flavour := abi.ReplaceAllString(wanted, "")
	var names []string
	for name := range ix.byName {
		if m := abi.FindString(name); m != "" && strings.TrimPrefix(name, m) == flavour {
			names = append(names, name)
		}
	}
	if len(names) == 0 { // named in another way: Debian 13 has linux-image-6.12.48+deb13-amd64
		last := wanted[strings.LastIndexByte(wanted, '-')+1:]
		for name := range ix.byName {
			if aKernel.MatchString(name) && strings.HasSuffix(name, "-"+last) {
				names = append(names, name)
			}
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.SortFunc(names, func(a, b string) int { return lock.CompareVersions(b, a) })
	more := ""
	if len(names) > 5 {
		names, more = names[:5], ", …"
	}
	return ", which has " + strings.Join(names, ", ") + more
}

// exists refuses a package that is in no index.
func (ix *index) exists(r *recipe.Recipe, field, name string) error {
	if len(ix.byName[name]) > 0 {
		return nil
	}
	var providers []string
	for _, s := range ix.stanzas {
		for p := range strings.SplitSeq(s.provides, ",") {
			if relationName(p) == name && !slices.Contains(providers, s.name) {
				providers = append(providers, s.name)
			}
		}
	}
	if len(providers) > 0 {
		slices.Sort(providers)
		return r.Errorf(field, "name one of these", "%s is a virtual package, provided by %s", name, strings.Join(providers[:min(5, len(providers))], ", "))
	}
	names := make([]string, 0, len(ix.byName))
	for n := range ix.byName {
		names = append(names, n)
	}
	slices.Sort(names)
	hint := "it may be in a suite or component (contrib, non-free, non-free-firmware) that base.sources does not name"
	if near := recipe.Nearest(name, names); near != "" {
		hint = fmt.Sprintf("did you mean %q? Or %s", near, hint)
	}
	return r.Errorf(field, hint, "package %s is not in the archive", name)
}

// install asks apt's solver for the packages and all they depend on.
// It returns what would be downloaded.
func (a *root) install(ctx context.Context, ix *index, r *recipe.Recipe, names []string) ([]*stanza, error) {
	out, err := a.run(ctx, "apt-get", slices.Concat([]string{"-qq", "-y", "--print-uris", "install"}, names)...)
	var ce *commandError
	if !errors.As(err, &ce) {
		if err != nil {
			return nil, err
		}
		return ix.printed(out)
	}
	// Quiet, apt does not say why; ask again.
	if _, err = a.run(ctx, "apt-get", slices.Concat([]string{"-q", "-y", "-s", "install"}, names)...); errors.As(err, &ce) {
		return nil, ix.explainInstall(r, ce)
	}
	return nil, ce
}

// unmet matches apt's words for a dependency that cannot be had.
var unmet = regexp.MustCompile(`^\s*(?:(\S+) : )?\s*((?:Pre)?Depends|Conflicts|Breaks): (\S+)(?: \(([<=>]+) ([^)]+)\))?(?: (.*))?$`)

// explainInstall puts the solver's first complaint at the recipe's line.
func (ix *index) explainInstall(r *recipe.Recipe, ce *commandError) error {
	var lines []string
	culprit, hint := "", ""
	family := ""
	for line := range strings.Lines(ce.output) {
		m := unmet.FindStringSubmatch(strings.TrimRight(line, "\n"))
		if m == nil {
			continue
		}
		if m[1] != "" && culprit == "" {
			culprit, _, _ = strings.Cut(m[1], ":")
		}
		lines = append(lines, strings.Join(strings.Fields(line), " "))
		if family == "" {
			family = ix.driverPin(m[1])
		}
		if m[4] == "=" && hint == "" {
			hint = fmt.Sprintf("they must be of one version: pin %q beside it", m[3]+"="+m[5])
		}
	}
	if len(lines) == 0 {
		return fmt.Errorf("apt finds no solution: %w", ce)
	}
	if hint == "" {
		hint = "a suite or component may be missing from base.sources, or two packages exclude each other"
	}
	if family != "" {
		hint = family
	}
	more := ""
	if len(lines) > 3 {
		more = fmt.Sprintf(" (and %d more)", len(lines)-3)
		lines = lines[:3]
	}
	return r.Errorf(fieldOf(r, culprit), hint, "packages do not fit together: %s%s", strings.Join(lines, "; "), more)
}
