package apt

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/compat"
	dpkg "github.com/turnout-project/turnout/internal/deb"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/recipe"
)

// Update answers r with the packages of old, except for those in names, which
// move to the newest version that the archives have, and for what their
// dependencies then force. Where r asks for something else than old has, that
// moves too. why tells for each package that came, went or moved the reason,
// by name.
//
// To apt, the packages of old are installed; it leaves alone what it need not
// move. A name that old does not have, nor r asks for, is no error.
func Update(ctx context.Context, r *recipe.Recipe, old *lock.File, names []string, o Options) (f *lock.File, why map[string]string, err error) {
	if old.Architecture != r.Architecture || old.Name != r.Name {
		return nil, nil, fmt.Errorf("lock of %s for %s cannot be moved to %s for %s: make it anew with `imgbuild lock --update`",
			old.Name, old.Architecture, r.Name, r.Architecture)
	}
	a, ix, f, err := prepare(ctx, r, o)
	if err != nil {
		return nil, nil, err
	}
	defer a.close()
	f.Accounts = old.Accounts
	m := &mover{root: a, ix: ix, r: r, old: old, new: f, names: names, bring: o.Package, why: map[string]string{}}
	if err := m.run(ctx); err != nil {
		return nil, nil, err
	}
	return f, m.why, f.Validate()
}

// mover is one run of Update.
type mover struct {
	*root
	ix    *index
	r     *recipe.Recipe
	old   *lock.File
	new   *lock.File
	names []string
	bring func(context.Context, lock.Package) (string, error)
	why   map[string]string

	kernel string // the new one
	driver *driver
	moves  bool // the driver does
}

func (m *mover) named(name string) bool { return slices.Contains(m.names, name) }

func (m *mover) run(ctx context.Context) error {
	pins := map[string]string{}
	if err := m.chooseKernel(pins); err != nil {
		return err
	}
	if err := m.chooseDriver(pins); err != nil {
		return err
	}
	image, manual, err := m.wanted(pins)
	if err != nil {
		return err
	}
	if err := m.pin(pins); err != nil {
		return err
	}
	chosen, err := m.move(ctx, m.old.Packages, image, manual)
	if err != nil {
		return err
	}
	m.new.Kernel = m.kernel
	m.new.Packages = m.locked(chosen)
	if err := m.tools(ctx); err != nil {
		return err
	}
	if err := m.build(ctx); err != nil {
		return err
	}
	return finish(m.r, m.new, chosen)
}

// locked turns stanzas into packages of the lock.
func (m *mover) locked(chosen []*stanza) []lock.Package {
	essential := closure(m.ix.essential, chosen)
	var out []lock.Package
	for _, s := range chosen {
		p := s.locked(essential[s.name])
		for _, o := range slices.Concat(m.old.Packages, m.old.Build) {
			if o.SHA256 == p.SHA256 { // as it was, its address too
				p.URI, p.Source, p.SourceVersion = o.URI, o.Source, o.SourceVersion
				break
			}
		}
		out = append(out, p)
	}
	return out
}

// chooseKernel keeps the kernel, unless it is named or the recipe wants
// another.
func (m *mover) chooseKernel(pins map[string]string) error {
	m.kernel = m.old.Kernel
	have, _ := lock.Find(m.old.Packages, m.old.Kernel)
	fits := lock.MatchName(m.r.Kernel.Package, m.old.Kernel) && (m.r.Kernel.Version == "" || m.r.Kernel.Version == have.Version)
	named := slices.ContainsFunc(m.names, func(n string) bool {
		return n == m.r.Kernel.Package || n == headers(m.old.Kernel) || lock.MatchName(m.r.Kernel.Package, n)
	})
	if fits && !named {
		return nil
	}
	s, err := m.ix.kernel(m.r)
	if err != nil {
		return err
	}
	if c := lock.CompareVersions(s.name, have.Name); fits && (c < 0 || c == 0 && lock.CompareVersions(s.version, have.Version) <= 0) {
		return nil // the archives have nothing newer
	}
	m.kernel, pins[s.name] = s.name, s.version
	reason := "asked for"
	if !fits {
		reason = "the recipe asks for it"
	}
	m.why[s.name], m.why[headers(s.name)] = reason, "the headers of the kernel"
	if s.name != m.old.Kernel {
		m.why[m.old.Kernel] = "an image has one kernel: " + s.name
		m.why[headers(m.old.Kernel)] = "the headers of the kernel before"
	}
	if len(m.ix.byName[headers(s.name)]) > 0 {
		pins[headers(s.name)] = s.version
	}
	return nil
}

// chooseDriver keeps the driver, unless a part of it is named or the recipe
// wants another: its parts work at equal versions only.
func (m *mover) chooseDriver(pins map[string]string) error {
	d := m.r.Driver
	if d.Family == "" {
		return nil
	}
	t := compat.Default()
	set, ok := t.DriverSet(m.r.Base.Distribution, d.Flavour)
	if ok {
		m.driver = &driver{image: slices.Concat(set.Image, d.Packages), sources: set.Build}
		m.moves = slices.ContainsFunc(m.ix.parts(t, m.driver), m.named)
		for _, name := range set.Build {
			p, found := lock.Find(m.old.Build, name)
			v := lock.Upstream(p.Version)
			if !found || d.Version != "" && v != d.Version || d.Version == "" && compat.BranchOf(v) != d.Branch {
				m.moves = true
			}
			m.driver.version = v
		}
		if !m.moves {
			return nil
		}
	}
	var err error
	if m.driver, err = m.ix.driver(t, m.r); err != nil {
		return err
	}
	for name, v := range m.driver.pins(t, m.ix) {
		pins[name] = v
		if !m.named(name) {
			m.why[name] = "a part of driver " + m.driver.version
		}
	}
	return nil
}

// wanted returns what apt is asked to install on top of the lock, and all
// that is asked for in any case: the rest goes when nothing needs it.
func (m *mover) wanted(pins map[string]string) (args, manual []string, err error) {
	for _, p := range m.old.Packages {
		if m.named(p.Name) && p.Name != m.old.Kernel {
			args = append(args, p.Name)
			m.why[p.Name] = "asked for"
		}
	}
	manual = slices.Concat(m.ix.essential, []string{merged, m.kernel})
	if m.kernel != m.old.Kernel {
		args = append(args, m.old.Kernel+"-")
	}
	if pins[m.kernel] != "" {
		args = append(args, m.kernel)
	}
	q := &request{pins: pins}
	for _, l := range []struct {
		field string
		names []string
	}{{"packages", m.r.Packages}, {"firmware.packages", m.r.Firmware.Packages}} {
		for i, p := range l.names {
			name, pin, pinned := strings.Cut(p, "=")
			manual = append(manual, name)
			have, ok := lock.Find(m.old.Packages, name)
			if ok && !m.named(name) && (!pinned || lock.MatchVersion(pin, have.Version)) {
				continue
			}
			if !m.named(name) || !ok {
				m.why[name] = "the recipe asks for it"
			}
			if err := q.addOne(m.ix, m.r, fmt.Sprintf("%s[%d]", l.field, i), p); err != nil {
				return nil, nil, err
			}
		}
	}
	args = append(args, q.names...)
	if m.driver != nil {
		manual = append(manual, m.driver.image...)
		for _, name := range m.driver.image {
			if _, ok := lock.Find(m.old.Packages, name); !ok || m.moves {
				args = append(args, name)
			}
		}
	}
	return args, manual, nil
}

// move asks apt for args with the packages of have installed, and returns
// what is installed afterwards.
func (m *mover) move(ctx context.Context, have []lock.Package, args, manual []string) ([]*stanza, error) {
	installed := map[string]*stanza{}
	lost := map[string]error{}
	for _, p := range have {
		s, err := m.stanza(ctx, p)
		switch {
		case err == nil:
		case m.why[p.Name] != "" && ctx.Err() == nil:
			// It moves: what it needed does not matter any more.
			lost[p.Name] = err
			s = m.standIn(p)
		default:
			return nil, err
		}
		installed[p.Name] = s
	}
	if err := m.pretend(installed, manual); err != nil {
		return nil, err
	}
	// Without names apt still drops what the recipe no longer asks for.
	args = slices.Concat([]string{"--autoremove", "--allow-downgrades"}, args)
	loaded, err := m.install(ctx, m.ix, m.r, args)
	if err != nil {
		return nil, err
	}
	out, err := m.root.run(ctx, "apt-get", slices.Concat([]string{"-q", "-y", "-s", "install"}, args)...)
	if err != nil {
		return nil, err
	}
	after := map[string]*stanza{}
	for name, s := range installed {
		after[name] = s
	}
	var gone []string
	for line := range strings.Lines(out) { // "Remv gawk [5]", "Inst libsystemd [252.38-1] (252.39-1 Debian:12/stable [amd64])"
		if f := strings.Fields(line); len(f) > 1 && f[0] == "Remv" {
			name, _, _ := strings.Cut(f[1], ":")
			delete(after, name)
			gone = append(gone, name)
		}
	}
	for _, s := range loaded {
		after[s.name] = s
	}
	for name, err := range lost {
		if s := after[name]; s != nil && s.uri == "" { // nothing newer to move to
			return nil, err
		}
	}
	for _, name := range gone {
		if slices.Contains(manual, name) {
			return nil, m.r.Errorf(fieldOf(m.r, name), "move "+name+" too, or less at once",
				"what was asked for goes with %s no longer: %s", name, m.because(name, installed, loaded))
		}
	}
	m.explain(installed, after, loaded)
	var all []*stanza
	for _, s := range after {
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b *stanza) int { return strings.Compare(a.name, b.name) })
	return all, nil
}

// stanza is what the archives say of a package of the lock, or the package
// itself when they have dropped it.
func (m *mover) stanza(ctx context.Context, p lock.Package) (*stanza, error) {
	for _, s := range m.ix.byName[p.Name] {
		if s.sha256 == p.SHA256 {
			return s, nil
		}
	}
	if m.bring == nil {
		return nil, fmt.Errorf("package %s %s is in no index", p.Name, p.Version)
	}
	path, err := m.bring(ctx, p)
	if err != nil {
		return nil, err
	}
	d, err := dpkg.Open(path, dpkg.Options{})
	if err != nil {
		return nil, err
	}
	c, err := d.Control()
	if err = errors.Join(err, d.Close()); err != nil {
		return nil, err
	}
	text := c.Paragraph.String() + fmt.Sprintf("Filename: %s\nSize: %d\nSHA256: %s\n", p.FileName(), p.SizeBytes, p.SHA256)
	s, err := parseStanza(text, "")
	if err != nil {
		return nil, fmt.Errorf("package %s %s: %w", p.Name, p.Version, err)
	}
	if s.name != p.Name || s.version != p.Version {
		return nil, fmt.Errorf("package %s %s of the lock is %s %s by its own account", p.Name, p.Version, s.name, s.version)
	}
	s.uri = p.URI
	return s, nil
}

// standIn takes the place of a package that is gone: it needs nothing, and
// provides what another version of it does.
func (m *mover) standIn(p lock.Package) *stanza {
	s := &stanza{name: p.Name, version: p.Version, arch: p.Architecture, sha256: p.SHA256,
		text: fmt.Sprintf("Package: %s\nVersion: %s\nArchitecture: %s\nMaintainer: unknown\nDescription: gone\n", p.Name, p.Version, p.Architecture)}
	if all := m.ix.byName[p.Name]; len(all) > 0 && all[0].provides != "" {
		s.text += "Provides: " + all[0].provides + "\n"
	}
	return s
}

// pretend makes apt take packages for installed, all but those of manual on
// behalf of others.
func (m *mover) pretend(installed map[string]*stanza, manual []string) error {
	var status, states strings.Builder
	for _, s := range installed {
		status.WriteString("Status: install ok installed\n" + strings.TrimSpace(s.text) + "\n\n")
		if !slices.Contains(manual, s.name) {
			fmt.Fprintf(&states, "Package: %s\nArchitecture: %s\nAuto-Installed: 1\n\n", s.name, m.arch)
		}
	}
	for name, text := range map[string]string{"var/lib/dpkg/status": status.String(), "var/lib/apt/extended_states": states.String()} {
		if err := os.WriteFile(filepath.Join(m.dir, name), []byte(text), 0o644); err != nil {
			return fmt.Errorf("apt cache: %w", err)
		}
	}
	return nil
}
