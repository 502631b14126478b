package gpu

import (
	"fmt"
	"slices"

	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/gpu/probe"
	"github.com/turnout-project/turnout/internal/recipe"
)

// expand turns a layout into entries that cover every GPU of a node exactly
// once; those the layout does not name have MIG off.
func expand(t *compat.Tables, r *recipe.Recipe, layout recipe.MIGLayout) ([]probe.Entry, error) {
	var out []probe.Entry
	all := boards(t, r)
	several := len(all) > 1
	for _, b := range all {
		entries, err := entriesOf(r, layout, b)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if several {
				e.PCI = b.PCI
			}
			out = append(out, e)
		}
	}
	return merge(out), nil
}

// entriesOf returns what the layout says of GPUs of kind b, and the rest.
func entriesOf(r *recipe.Recipe, layout recipe.MIGLayout, b compat.Board) ([]probe.Entry, error) {
	var out []probe.Entry
	taken := map[int]bool{}
	whole := false
	for _, e := range layout.GPUs {
		if e.Board != "" && e.Board != b.ID {
			continue
		}
		switch {
		case whole, e.Devices == nil && len(out) > 0:
			return nil, fmt.Errorf("two entries are about all GPUs of kind %s", b.ID)
		case e.Devices == nil:
			whole = true
		}
		for _, d := range e.Devices {
			if taken[d] {
				return nil, fmt.Errorf("two entries are about GPU %d", d)
			}
			taken[d] = true
		}
		out = append(out, probe.Entry{Devices: e.Devices, Profiles: e.Profiles})
	}
	if whole {
		return out, nil
	}
	if len(out) == 0 {
		return []probe.Entry{{}}, nil
	}
	if r.GPU.Count == 0 {
		return nil, fmt.Errorf("it names GPUs by index; set gpu.count, so that the others can be turned off")
	}
	var rest []int
	for i := range r.GPU.Count {
		if !taken[i] {
			rest = append(rest, i)
		}
	}
	if len(rest) > 0 {
		out = append(out, probe.Entry{Devices: rest})
	}
	return out, nil
}

// merge joins entries of boards that say the same.
func merge(entries []probe.Entry) []probe.Entry {
	var out []probe.Entry
	for _, e := range entries {
		i := slices.IndexFunc(out, func(o probe.Entry) bool {
			return o.PCI != nil && e.PCI != nil && slices.Equal(o.Devices, e.Devices) && fmt.Sprint(o.Profiles) == fmt.Sprint(e.Profiles)
		})
		if i < 0 {
			out = append(out, e)
			continue
		}
		out[i].PCI = slices.Concat(out[i].PCI, e.PCI)
	}
	return out
}
