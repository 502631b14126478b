package probe

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
)

// watch runs a test on what nvidia-smi -q says of each GPU. A test returns
// what is wrong, or "", and whether the driver showed what it looks at.
func (m *Machine) watch(ctx context.Context, what string, test func(detail) (wrong string, shown bool)) (string, error) {
	out, err := m.smi(ctx, "-q")
	if err != nil {
		return "", err
	}
	all := parseDetails(out)
	if len(all) == 0 {
		return "", fmt.Errorf("%w: nvidia-smi -q shows no GPU: %s", ErrUnknown, firstLine(out))
	}
	var wrong []string
	shown := 0
	for _, address := range slices.Sorted(maps.Keys(all)) {
		why, is := test(all[address])
		if is {
			shown++
		}
		if why != "" {
			wrong = append(wrong, "GPU "+address+": "+why)
		}
	}
	if len(wrong) > 0 {
		return "", errors.New(strings.Join(wrong, ", "))
	}
	if shown < len(all) {
		return fmt.Sprintf("%s: not evaluated on %d of %d GPUs, their driver or mode does not show it", what, len(all)-shown, len(all)), nil
	}
	return fmt.Sprintf("%s: nothing on %d GPUs", what, len(all)), nil
}

// recovery looks at what the driver itself asks for.
func (m *Machine) recovery(ctx context.Context, _ *Config) (string, error) {
	return m.watch(ctx, "recovery action", func(d detail) (string, bool) {
		if d.recovery == "" || d.recovery == "None" {
			return "", d.recovery != ""
		}
		return "the driver asks for recovery: " + d.recovery, true
	})
}

// remap looks at rows of memory that could not be replaced, or that wait for
// a reset to be.
func (m *Machine) remap(ctx context.Context, _ *Config) (string, error) {
	return m.watch(ctx, "row remapping", func(d detail) (string, bool) {
		switch {
		case d.remapFailed == "Yes":
			return "a row of memory could not be remapped: the board is to be replaced", true
		case d.remapPending == "Yes":
			return "a row of memory waits for a reset to be remapped", true
		}
		return "", d.remapFailed == "No" && d.remapPending == "No"
	})
}

// throttle looks for cooling and power. That a GPU is idle, at its power cap or
// at a clock that was set is no trouble, and a slowdown alone may be a change
// of its state. The margin counts down: below the slowdown's it is too hot.
func (m *Machine) throttle(ctx context.Context, _ *Config) (string, error) {
	return m.watch(ctx, "throttling", func(d detail) (string, bool) {
		var why []string
		if d.reasons["HW Thermal Slowdown"] || d.reasons["SW Thermal Slowdown"] {
			why = append(why, "it slows down for heat")
		}
		if d.reasons["HW Power Brake Slowdown"] {
			why = append(why, "it slows down because the power brake is on: power supply or rack")
		}
		margin, err1 := strconv.ParseFloat(d.margin, 64)
		floor, err2 := strconv.ParseFloat(d.marginFloor, 64)
		if err1 == nil && err2 == nil && margin < floor {
			why = append(why, fmt.Sprintf("its temperature margin is %g degrees, it slows down below %g", margin, floor))
		}
		return strings.Join(why, " and "), len(d.reasons) > 0
	})
}

// slack is how far a clock may be beside what was set, in MHz: clocks come in
// steps of 15.
const slack = 30

// clocks holds GPUs at work to the recipe. One that is idle, or slowed down for
// a reason that it gives, is not looked at.
func (m *Machine) clocks(ctx context.Context, c *Config) (string, error) {
	low, high, isRange := strings.Cut(c.Clocks.GPU, "-")
	if !isRange {
		high = low
	}
	least, err1 := strconv.Atoi(low)
	most, err2 := strconv.Atoi(high)
	if err := errors.Join(err1, err2); err != nil {
		return "", fmt.Errorf("%w: clocks %q: %w", ErrUnknown, c.Clocks.GPU, err)
	}
	return m.watch(ctx, "clocks", func(d detail) (string, bool) {
		mhz, err := strconv.Atoi(d.smClock)
		switch {
		case err != nil:
			return "", false
		case mhz > most+slack:
			return fmt.Sprintf("expected at most %d MHz, seen %d", most, mhz), true
		case mhz < least-slack && !d.isIdle && !d.hasReason():
			return fmt.Sprintf("expected at least %d MHz at work, seen %d, and it gives no reason", least, mhz), true
		}
		return "", true
	})
}

// hasReason reports whether a GPU says why it is not at its highest clock.
func (d detail) hasReason() bool {
	for name, is := range d.reasons {
		if is && name != "Applications Clocks Setting" {
			return true
		}
	}
	return false
}

// link compares the width of the PCIe link with what GPU and slot can do, and
// its speed unless the GPU is idle: it is lowered then to save power.
func (m *Machine) link(ctx context.Context, _ *Config) (string, error) {
	rows, err := m.query(ctx, "pci.bus_id", "pstate", "pcie.link.width.current", "pcie.link.width.max", "pcie.link.gen.current", "pcie.link.gen.max", "utilization.gpu")
	if err != nil {
		return "", err
	}
	for _, r := range rows {
		if a, b := r["pcie.link.width.current"], r["pcie.link.width.max"]; a != "" && b != "" && a != b {
			return "", fmt.Errorf("GPU %s: expected a PCIe link of %s lanes, seen %s", busAddress(r["pci.bus_id"]), b, a)
		}
		isAtWork := r["pstate"] == "P0" && r["utilization.gpu"] != "" && r["utilization.gpu"] != "0"
		if a, b := r["pcie.link.gen.current"], r["pcie.link.gen.max"]; isAtWork && a != "" && b != "" && a != b {
			return "", fmt.Errorf("GPU %s: expected a PCIe link of generation %s, seen %s", busAddress(r["pci.bus_id"]), b, a)
		}
	}
	return fmt.Sprintf("PCIe links of %d GPUs are whole", len(rows)), nil
}

// nvlink looks for links that are down. GPUs in MIG mode do not show theirs.
func (m *Machine) nvlink(ctx context.Context, _ *Config) (string, error) {
	out, err := m.smi(ctx, "nvlink", "-s")
	if err != nil {
		return "", err
	}
	gpu, up := "", 0
	var down []string
	for line := range strings.Lines(out) {
		line = strings.TrimSpace(line)
		if f := gpuLine.FindStringSubmatch(line); f != nil {
			gpu = f[1]
		}
		link, state, ok := strings.Cut(line, ": ")
		switch {
		case !ok || !strings.HasPrefix(link, "Link "):
		case strings.HasSuffix(state, "GB/s"):
			up++
		default:
			down = append(down, fmt.Sprintf("GPU %s %s %s", gpu, link, state))
		}
	}
	switch {
	case len(down) > 0:
		return "", fmt.Errorf("NVLink: expected all up, seen %s", strings.Join(down, ", "))
	case up == 0 && strings.Contains(out, "MIG mode"):
		return "NVLink: not evaluated, GPUs in MIG mode do not show it", nil
	case up == 0:
		return "", fmt.Errorf("NVLink: expected links, seen %q", firstLine(out))
	}
	return fmt.Sprintf("%d NVLinks are up", up), nil
}
