package lock

import (
	"fmt"
	"slices"
	"strings"
)

// Change is one package that differs between two locks.
type Change struct {
	Name string `json:"name"`
	Old  string `json:"old,omitempty"` // version; "" for a package that was added
	New  string `json:"new,omitempty"` // version; "" for one that was removed
	// Rebuilt tells that the bytes moved though the version did not.
	Rebuilt bool   `json:"rebuilt,omitempty"`
	Tool    bool   `json:"tool,omitempty"` // of Tools or Build, not of Packages
	Why     string `json:"why,omitempty"`  // the reason, if whoever compared knows it; Diff does not
}

// String returns one line for a person, such as
// "linux-image-6.1.0-50-amd64 6.1.176-1 → 6.1.192-3".
func (c Change) String() string {
	if c.Why != "" {
		why := c.Why
		c.Why = ""
		return c.String() + " (" + why + ")"
	}
	name := c.Name
	if c.Tool {
		name += " (build tool)"
	}
	switch {
	case c.Old == "":
		return fmt.Sprintf("+ %s %s", name, c.New)
	case c.New == "":
		return fmt.Sprintf("- %s %s", name, c.Old)
	case c.Rebuilt:
		return fmt.Sprintf("! %s %s has other bytes under the same version", name, c.New)
	case CompareVersions(c.Old, c.New) > 0:
		return fmt.Sprintf("↓ %s %s → %s", name, c.Old, c.New)
	}
	return fmt.Sprintf("↑ %s %s → %s", name, c.Old, c.New)
}

// Diff returns what moved from old to new, sorted by name, packages before
// tools and what modules are built with. A nil old is an empty lock.
func Diff(old, new *File) []Change {
	if old == nil {
		old = &File{}
	}
	changes := diffList(old.Packages, new.Packages, false)
	for _, c := range append(diffList(old.Tools, new.Tools, true), diffList(old.Build, new.Build, true)...) {
		// The build root shares most packages with the image; say it once.
		if !slices.ContainsFunc(changes, func(d Change) bool { return d.Name == c.Name && d.Old == c.Old && d.New == c.New }) {
			changes = append(changes, c)
		}
	}
	return changes
}

func diffList(old, new []Package, tool bool) []Change {
	var changes []Change
	for _, p := range new {
		o, ok := Find(old, p.Name)
		if ok && o.SHA256 == p.SHA256 {
			continue
		}
		changes = append(changes, Change{Name: p.Name, Old: o.Version, New: p.Version, Rebuilt: ok && o.Version == p.Version, Tool: tool})
	}
	for _, o := range old {
		if _, ok := Find(new, o.Name); !ok {
			changes = append(changes, Change{Name: o.Name, Old: o.Version, Tool: tool})
		}
	}
	slices.SortStableFunc(changes, func(a, b Change) int { return strings.Compare(a.Name, b.Name) })
	return changes
}
