package probe

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// driver compares the loaded kernel module and the libraries with the pin: a
// module that was replaced under running libraries is the most common way in
// which a node dies.
func (m *Machine) driver(ctx context.Context, c *Config) (string, error) {
	module, err := m.readLine("/sys/module/nvidia/version")
	if errors.Is(err, fs.ErrNotExist) {
		return "", fmt.Errorf("kernel module nvidia: expected %s, seen none loaded", c.Driver)
	}
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	if module != c.Driver {
		return "", fmt.Errorf("kernel module nvidia: expected %s, seen %s", c.Driver, module)
	}
	rows, err := m.query(ctx, "driver_version")
	if err != nil {
		return "", err
	}
	if v := rows[0]["driver_version"]; v != c.Driver {
		return "", fmt.Errorf("libraries of the driver: expected %s, seen %q", c.Driver, v)
	}
	return "module and libraries are " + c.Driver, nil
}

// gsp compares the firmware that the GPUs' own processors run.
func (m *Machine) gsp(_ context.Context, c *Config) (string, error) {
	files, err := filepath.Glob(m.path("/proc/driver/nvidia/gpus/*/information"))
	if err != nil || len(files) == 0 {
		return "", fmt.Errorf("%w: the driver shows no GPU in /proc/driver/nvidia", ErrUnknown)
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err != nil {
			return "", fmt.Errorf("%w: %w", ErrUnknown, err)
		}
		address := filepath.Base(filepath.Dir(name))
		v := ""
		for line := range strings.Lines(string(b)) {
			if k, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "GPU Firmware" {
				v = known(value)
			}
		}
		if v != c.Driver {
			if v == "" {
				v = "none: it runs without GSP"
			}
			return "", fmt.Errorf("firmware of GPU %s: expected %s, seen %s", address, c.Driver, v)
		}
	}
	return fmt.Sprintf("%d GPUs run firmware %s", len(files), c.Driver), nil
}

// function is a GPU on the PCI bus.
type function struct{ address, device string }

// onBus finds the GPUs on the PCI bus, whether or not the driver has them.
func (m *Machine) onBus() ([]function, error) {
	dirs, err := filepath.Glob(m.path("/sys/bus/pci/devices/*"))
	if err != nil {
		return nil, err
	}
	var all []function
	for _, d := range dirs {
		read := func(name string) string {
			b, _ := os.ReadFile(filepath.Join(d, name)) // a function without it is no GPU
			return strings.TrimSpace(string(b))
		}
		class := read("class")
		if read("vendor") != "0x10de" || !strings.HasPrefix(class, "0x0300") && !strings.HasPrefix(class, "0x0302") {
			continue
		}
		all = append(all, function{filepath.Base(d), strings.ToUpper(strings.TrimPrefix(read("device"), "0x"))})
	}
	return all, nil
}

// gpus counts the GPUs that nvidia-smi has, names those on the bus that it
// has not, and refuses boards the image is not for.
func (m *Machine) gpus(ctx context.Context, c *Config) (string, error) {
	bus, err := m.onBus()
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	for _, f := range bus {
		if len(c.Boards) > 0 && !slices.ContainsFunc(c.Boards, func(b Board) bool { return slices.Contains(b.PCI, f.device) }) {
			return "", fmt.Errorf("GPU %s is a board of PCI id %s, which the image is not for", f.address, f.device)
		}
	}
	rows, smiErr := m.query(ctx, "pci.bus_id")
	if errors.Is(smiErr, ErrUnknown) {
		return "", smiErr
	}
	seen := map[string]bool{}
	for _, g := range rows {
		seen[busAddress(g["pci.bus_id"])] = true
	}
	var lost []string
	for _, f := range bus {
		if !seen[f.address] {
			lost = append(lost, f.address)
		}
	}
	switch {
	case smiErr != nil:
		return "", fmt.Errorf("expected %d GPUs, on the bus %d: %w", c.Count, len(bus), smiErr)
	case len(lost) > 0:
		return "", fmt.Errorf("the driver has lost GPU %s: on the bus %d, in nvidia-smi %d", strings.Join(lost, ", "), len(bus), len(rows))
	case c.Count > 0 && len(rows) != c.Count:
		return "", fmt.Errorf("expected %d GPUs, seen %d", c.Count, len(rows))
	}
	return fmt.Sprintf("%d GPUs", len(rows)), nil
}

// busAddress turns nvidia-smi's "00000000:0B:00.0" into sysfs's "0000:0b:00.0".
func busAddress(s string) string {
	s = strings.ToLower(s)
	if domain, rest, ok := strings.Cut(s, ":"); ok && len(domain) == 8 {
		s = domain[4:] + ":" + rest
	}
	return s
}

// params compares options with what the loaded module shows of them. Options
// that it does not show cannot be compared.
func (m *Machine) params(_ context.Context, c *Config) (string, error) {
	b, err := os.ReadFile(m.path("/proc/driver/nvidia/params"))
	if err != nil {
		return "", fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	seen := map[string]string{}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok {
			seen[strings.TrimSpace(k)] = strings.Trim(strings.TrimSpace(v), `"`)
		}
	}
	shown := 0
	for _, k := range slices.Sorted(maps.Keys(c.Params)) {
		switch v, ok := seen[k]; {
		case ok && v != c.Params[k]:
			return "", fmt.Errorf("option %s of the nvidia module: expected %s, seen %s", k, c.Params[k], v)
		case ok:
			shown++
		case k == "CoherentGPUMemoryMode":
			return "", fmt.Errorf("option %s of the nvidia module: expected %s, but this driver does not know it", k, c.Params[k])
		}
	}
	return fmt.Sprintf("%d of %d options are as asked for, the others are not shown", shown, len(c.Params)), nil
}

const (
	fabricLimit = 4 * time.Minute // the fabric manager takes two to three
	fabricEvery = 5 * time.Second
)

// fabric waits for the NVLink fabric: without it nvidia-smi looks healthy and
// every CUDA program fails with error 802.
func (m *Machine) fabric(ctx context.Context, _ *Config) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, fabricLimit)
	defer cancel()
	tick := time.NewTicker(fabricEvery)
	defer tick.Stop()
	for {
		seen, err := m.each(ctx, "fabric.state", "Completed", func(v string) bool { return v == "Completed" })
		if err == nil {
			return seen, nil
		}
		if !strings.Contains(err.Error(), "In Progress") && !strings.Contains(err.Error(), "Not Started") {
			return "", err
		}
		select {
		case <-ctx.Done():
			return "", err
		case <-tick.C:
		}
	}
}

func (m *Machine) persistence(ctx context.Context, _ *Config) (string, error) {
	return m.each(ctx, "persistence_mode", "Enabled", func(v string) bool { return v == "Enabled" })
}

func (m *Machine) ecc(ctx context.Context, c *Config) (string, error) {
	want := enabled(c.ECC)
	return m.each(ctx, "ecc.mode.current", want, func(v string) bool { return v == want })
}

func enabled(on string) string {
	if on == "on" {
		return "Enabled"
	}
	return "Disabled"
}

func (m *Machine) power(ctx context.Context, c *Config) (string, error) {
	return m.each(ctx, "power.limit", fmt.Sprintf("%d W", c.Clocks.Power), func(v string) bool {
		w, err := strconv.ParseFloat(v, 64)
		return err == nil && int(w+0.5) == c.Clocks.Power
	})
}
