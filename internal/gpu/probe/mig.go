package probe

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// entry returns what GPU number index, of PCI id device, is cut into.
func (g *MIG) entry(index int, device string) (Entry, bool) {
	for _, e := range g.Entries {
		if (e.PCI == nil || slices.Contains(e.PCI, device)) && (e.Devices == nil || slices.Contains(e.Devices, index)) {
			return e, true
		}
	}
	return Entry{}, false
}

// cut is a GPU with its MIG mode and instances.
type cut struct {
	gpu
	device  string // PCI id
	mode    string // "Enabled", "Disabled", "" without MIG
	pending string // mode after the next reset
}

// cuts returns how the GPUs are cut.
func (m *Machine) cuts(ctx context.Context) ([]cut, error) {
	rows, err := m.query(ctx, "pci.device_id", "mig.mode.current", "mig.mode.pending")
	if err != nil {
		return nil, err
	}
	gpus, err := m.list(ctx)
	if err != nil {
		return nil, err
	}
	if len(rows) != len(gpus) {
		return nil, fmt.Errorf("%w: nvidia-smi lists %d GPUs and then %d", ErrUnknown, len(rows), len(gpus))
	}
	var out []cut
	for i, g := range gpus {
		out = append(out, cut{gpu: g, device: deviceID(rows[i]["pci.device_id"]), mode: rows[i]["mig.mode.current"], pending: rows[i]["mig.mode.pending"]})
	}
	return out, nil
}

// deviceID returns "2330" of nvidia-smi's "0x233010DE".
func deviceID(s string) string {
	s = strings.TrimPrefix(strings.ToUpper(s), "0X")
	if len(s) == 8 {
		return s[:4]
	}
	return s
}

// mig compares the instances of each GPU with the layout.
func (m *Machine) mig(ctx context.Context, c *Config) (string, error) {
	cuts, err := m.cuts(ctx)
	if err != nil {
		return "", err
	}
	for _, g := range cuts {
		if why := g.differs(c.MIG); why != "" {
			return "", fmt.Errorf("MIG layout %s: GPU %d: %s", c.MIG.Layout, g.index, why)
		}
	}
	return fmt.Sprintf("%d GPUs are cut as layout %s says", len(cuts), c.MIG.Layout), nil
}

// differs says in what a GPU is not as the layout says, or "".
func (g cut) differs(want *MIG) string {
	e, ok := want.entry(g.index, g.device)
	switch {
	case !ok:
		return fmt.Sprintf("the layout has nothing for a board of PCI id %s", g.device)
	case len(e.Profiles) == 0 && g.mode == "Enabled":
		return "expected MIG off, seen on"
	case len(e.Profiles) > 0 && g.mode != "Enabled":
		return fmt.Sprintf("expected MIG on, seen %q", g.mode)
	case g.pending != g.mode:
		return fmt.Sprintf("MIG mode is %q, after the next reset %q", g.mode, g.pending)
	}
	seen := map[string]int{}
	for _, p := range g.instances {
		seen[p]++
	}
	if len(e.Profiles) == 0 && len(seen) == 0 || maps.Equal(seen, e.Profiles) {
		return ""
	}
	return fmt.Sprintf("expected %s, seen %s", counts(e.Profiles), counts(seen))
}

// counts writes profiles for a person: "1 × 3g.40gb, 4 × 1g.10gb".
func counts(m map[string]int) string {
	if len(m) == 0 {
		return "no instances"
	}
	var out []string
	for _, p := range biggestFirst(m) {
		out = append(out, fmt.Sprintf("%d × %s", m[p], p))
	}
	return strings.Join(out, ", ")
}

// biggestFirst orders profiles so that they can be created one after the
// other: 3g before 1g, or the driver finds no room (MIG user guide).
func biggestFirst(m map[string]int) []string {
	return slices.SortedFunc(maps.Keys(m), func(a, b string) int {
		if c := strings.Compare(b[:1], a[:1]); c != 0 {
			return c
		}
		return strings.Compare(a, b)
	})
}

// instances returns the list that nvidia-smi mig -cgi takes.
func instances(m map[string]int) string {
	var out []string
	for _, p := range biggestFirst(m) {
		for range m[p] {
			out = append(out, p)
		}
	}
	return strings.Join(out, ",")
}
