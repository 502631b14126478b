package compat

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
)

func find[R any](rows []R, is func(R) bool) (R, bool) {
	if i := slices.IndexFunc(rows, is); i >= 0 {
		return rows[i], true
	}
	var none R
	return none, false
}

// Board returns the board of that name.
func (t *Tables) Board(id string) (Board, bool) {
	return find(t.Boards, func(b Board) bool { return b.ID == id })
}

// Arch returns the architecture of that name.
func (t *Tables) Arch(id string) (Architecture, bool) {
	return find(t.Architectures, func(a Architecture) bool { return a.ID == id })
}

// PlatformOf returns the platform of that name.
func (t *Tables) PlatformOf(id string) (Platform, bool) {
	return find(t.Platforms, func(p Platform) bool { return p.ID == id })
}

// PlatformFor returns the platform of a node: the one of that name, or else
// the one that its boards and their number (0 is unknown) amount to.
func (t *Tables) PlatformFor(name string, boards []string, count int) (Platform, bool) {
	if name != "" {
		return t.PlatformOf(name)
	}
	for _, id := range boards {
		if b, ok := t.Board(id); ok && b.NVSwitchAt != 0 && count >= b.NVSwitchAt {
			return find(t.Platforms, func(p Platform) bool { return slices.Contains(p.Boards, id) })
		}
	}
	return Platform{}, false
}

// Branch returns the row of a driver branch.
func (t *Tables) Branch(n int) (Branch, bool) {
	return find(t.Branches, func(b Branch) bool { return b.Branch == n })
}

// MIGTable returns the profiles of a board; boards without MIG have none.
func (t *Tables) MIGTable(b Board) (MIGTable, bool) {
	return find(t.MIG, func(m MIGTable) bool {
		return slices.ContainsFunc(b.PCI, func(id string) bool { return slices.Contains(m.PCI, id) })
	})
}

// Profile returns the profile of that name.
func (m MIGTable) Profile(name string) (MIGProfile, bool) {
	return find(m.Profiles, func(p MIGProfile) bool { return p.Name == name })
}

// Package says what the package of that name is; ok is false for one that has
// nothing to do with GPUs.
func (t *Tables) Package(name string) (row PackageRow, ok bool) {
	return find(t.Packages, func(r PackageRow) bool { return r.re.MatchString(name) })
}

// DriverSet returns the packages of a driver in a distribution.
func (t *Tables) DriverSet(distribution, flavour string) (DriverSet, bool) {
	return find(t.DriverSets, func(s DriverSet) bool { return s.Distribution == distribution && s.Flavour == flavour })
}

// BoardNames returns the names of all boards.
func (t *Tables) BoardNames() []string {
	var names []string
	for _, b := range t.Boards {
		names = append(names, b.ID)
	}
	return names
}

// PlatformNames returns the names of all platforms.
func (t *Tables) PlatformNames() []string {
	var names []string
	for _, p := range t.Platforms {
		names = append(names, p.ID)
	}
	return names
}

// GSPImages returns the firmware images that the boards load, without
// repetition; known is false when a board is in no table, so that any image
// may be needed.
func (t *Tables) GSPImages(boards []string) (images []string, known bool) {
	known = len(boards) > 0
	for _, id := range boards {
		b, ok := t.Board(id)
		if !ok {
			known = false
			continue
		}
		if a, _ := t.Arch(b.Arch); a.GSP != "" && !slices.Contains(images, a.GSP) {
			images = append(images, a.GSP)
		}
	}
	slices.Sort(images)
	return images, known
}

// validate refuses rows that the rules could not use.
func (t *Tables) validate() error {
	for i := range t.Packages {
		r := &t.Packages[i]
		if r.re != nil {
			continue
		}
		var err error
		if r.re, err = regexp.Compile("^(?:" + r.Match + ")$"); err != nil {
			return fmt.Errorf("package %q: %w", r.Match, err)
		}
	}
	for _, b := range t.Branches {
		for _, e := range b.EOL {
			if _, err := e.Time(); err != nil {
				return fmt.Errorf("branch %d: %w", b.Branch, err)
			}
		}
		if !slices.Contains([]string{"", "yes", "assumed"}, b.Ended) {
			return fmt.Errorf("branch %d: ended %q is not yes or assumed", b.Branch, b.Ended)
		}
	}
	for _, r := range t.KnownBad {
		if r.Severity != Error && r.Severity != Warning {
			return fmt.Errorf("known-bad row %s: severity %q is not error or warning", r.ID, r.Severity)
		}
		if r.Branch == 0 && r.Version == "" {
			return fmt.Errorf("known-bad row %s names neither a branch nor a version", r.ID)
		}
	}
	for _, v := range t.versions() {
		if _, err := ParseVersion(v); v != "" && err != nil {
			return err
		}
	}
	return t.validateMIG()
}

// versions returns every driver and kernel version that the rows compare.
func (t *Tables) versions() []string {
	var all []string
	for _, b := range t.Boards {
		all = append(all, b.MinDriver, b.MIGMinDriver)
	}
	for _, r := range t.KnownBad {
		all = append(all, r.From, r.Before, r.Version, r.KernelFrom, r.KernelBefore)
	}
	for _, k := range t.Toolkits {
		all = append(all, k.CUDA, k.Driver)
	}
	for _, f := range t.Families {
		all = append(all, f.MinDriver)
	}
	for _, m := range t.MIG {
		all = append(all, m.MinDriver)
	}
	for _, k := range t.KernelFloors {
		all = append(all, k.Kernel)
	}
	return all
}

func (t *Tables) validateMIG() error {
	for _, m := range t.MIG {
		for _, p := range m.Profiles {
			if p.Compute < 1 || p.Compute > m.Compute || p.Memory < 1 || p.Memory > m.Memory || p.Max < 1 {
				return fmt.Errorf("MIG table %s: profile %s has slices that the board has not", m.ID, p.Name)
			}
			for _, s := range p.Starts {
				if s < 0 || p.Size < 1 || s+p.Size > m.Memory {
					return fmt.Errorf("MIG table %s: profile %s at %d ends behind the board", m.ID, p.Name, s)
				}
			}
		}
	}
	return nil
}

// list joins names for a person.
func list(names []string) string { return strings.Join(names, ", ") }

func sortComponents(cs []Component) {
	slices.SortFunc(cs, func(a, b Component) int { return strings.Compare(a.Package, b.Package) })
}
