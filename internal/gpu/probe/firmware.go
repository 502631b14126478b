package probe

import (
	"cmp"
	"context"
	"fmt"
	"path/filepath"
	"strconv"
	"strings"
)

// firmware compares the machine's firmware with the bounds of the image.
func (m *Machine) firmware(ctx context.Context, c *Config) (string, error) {
	var seen []string
	for _, f := range c.Firmware {
		versions, err := m.versions(ctx, f.Component)
		if err != nil {
			return "", fmt.Errorf("%w: firmware of %s: %w", ErrUnknown, f.Component, err)
		}
		for what, v := range versions {
			if f.Min != "" && compareVersions(v, f.Min) < 0 || f.Max != "" && compareVersions(v, f.Max) > 0 {
				return "", fmt.Errorf("firmware of %s: expected %s, seen %s", what, f.bounds(), v)
			}
		}
		seen = append(seen, fmt.Sprintf("%s in %s", f.Component, f.bounds()))
	}
	return strings.Join(seen, ", "), nil
}

func (f Firmware) bounds() string {
	switch {
	case f.Max == "":
		return f.Min + " or later"
	case f.Min == "":
		return f.Max + " or earlier"
	}
	return f.Min + " to " + f.Max
}

// versions returns the firmware versions of a component by what they are of;
// at least one.
func (m *Machine) versions(ctx context.Context, component string) (map[string]string, error) {
	out := map[string]string{}
	switch component {
	case "bios":
		v, err := m.readLine("/sys/class/dmi/id/bios_version")
		if err != nil {
			return nil, err
		}
		out["bios"] = v
	case "vbios":
		rows, err := m.query(ctx, "vbios_version")
		if err != nil {
			return nil, err
		}
		for i, g := range rows {
			v, ok := g["vbios_version"]
			if !ok {
				return nil, fmt.Errorf("GPU %d does not say its VBIOS", i)
			}
			out[fmt.Sprintf("GPU %d", i)] = v
		}
	case "nic":
		files, err := filepath.Glob(m.path("/sys/class/infiniband/*/fw_ver"))
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("no adapter with RDMA is there")
		}
		for _, name := range files {
			v, err := m.readLine(strings.TrimPrefix(name, m.Root))
			if err != nil {
				return nil, err
			}
			out[filepath.Base(filepath.Dir(name))] = v
		}
	default:
		return nil, fmt.Errorf("nobody knows how to read it")
	}
	return out, nil
}

// compareVersions compares field by field: numbers as numbers (hexadecimal
// digits count, as VBIOS versions have them), words as words.
func compareVersions(a, b string) int {
	split := func(s string) []string {
		return strings.FieldsFunc(s, func(r rune) bool { return strings.ContainsRune(".-_ ", r) })
	}
	x, y := split(a), split(b)
	for i := range min(len(x), len(y)) {
		if c := compareFields(x[i], y[i]); c != 0 {
			return c
		}
	}
	return cmp.Compare(len(x), len(y))
}

func compareFields(a, b string) int {
	for _, base := range []int{10, 16} {
		n, errA := strconv.ParseUint(a, base, 64)
		m, errB := strconv.ParseUint(b, base, 64)
		if errA == nil && errB == nil {
			return cmp.Compare(n, m)
		}
	}
	return strings.Compare(a, b)
}
