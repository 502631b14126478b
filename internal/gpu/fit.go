package gpu

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/compat"
)

// Fit says why instances of these profiles do not go on a board of table m
// together, or "". The instances must find places that do not overlap in the
// board's memory slices, and their compute slices must not be more than it
// has. Where a table has no placements, the slices alone are counted.
func Fit(m compat.MIGTable, profiles map[string]int) string {
	var instances []compat.MIGProfile
	compute, memory, engines, placed := 0, 0, 0, true
	for _, name := range slices.Sorted(maps.Keys(profiles)) {
		p, ok := m.Profile(name)
		n := profiles[name]
		switch {
		case !ok:
			return fmt.Sprintf("it has no profile %s", name)
		case n > p.Max:
			return fmt.Sprintf("it holds %d × %s at most, not %d", p.Max, name, n)
		}
		if strings.Contains(name, "+me") {
			engines += n
		}
		compute += n * p.Compute
		memory += n * p.Memory
		placed = placed && len(p.Starts) > 0
		for range n {
			instances = append(instances, p)
		}
	}
	switch {
	case engines > 1:
		return "only one instance can have the media engines (+me)"
	case compute > m.Compute:
		return fmt.Sprintf("the instances need %d compute slices, it has %d", compute, m.Compute)
	case !placed && memory > m.Memory:
		return fmt.Sprintf("the instances need %d memory slices, it has %d", memory, m.Memory)
	case placed && !place(m.Memory, instances):
		return fmt.Sprintf("there is no place for all of them in its %d memory slices: %s", m.Memory, starts(instances))
	}
	return ""
}

// place tries the largest instances first, each at every start.
func place(slots int, instances []compat.MIGProfile) bool {
	slices.SortStableFunc(instances, func(a, b compat.MIGProfile) int { return b.Size - a.Size })
	taken := make([]bool, slots)
	var try func(i int) bool
	try = func(i int) bool {
		if i == len(instances) {
			return true
		}
		p := instances[i]
		for _, s := range p.Starts {
			at := taken[s : s+p.Size]
			if slices.Contains(at, true) {
				continue
			}
			mark(at, true)
			if try(i + 1) {
				return true
			}
			mark(at, false)
		}
		return false
	}
	return try(0)
}

func mark(at []bool, taken bool) {
	for i := range at {
		at[i] = taken
	}
}

// starts says where the profiles can begin.
func starts(instances []compat.MIGProfile) string {
	var out []string
	for _, p := range instances {
		text := fmt.Sprintf("%s covers %d from %s", p.Name, p.Size, strings.Trim(fmt.Sprint(p.Starts), "[]"))
		if !slices.Contains(out, text) {
			out = append(out, text)
		}
	}
	return strings.Join(out, "; ")
}

// profileNames lists the profiles of a table for a person.
func profileNames(m compat.MIGTable) string {
	var out []string
	for _, p := range m.Profiles {
		out = append(out, fmt.Sprintf("%s (up to %d)", p.Name, p.Max))
	}
	return strings.Join(out, ", ")
}
