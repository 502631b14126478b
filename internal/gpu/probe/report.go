package probe

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/turnout-project/turnout/internal/fleet"
)

// maxGPUs bounds what a node reports of itself.
const maxGPUs = 64

// gauges are the numbers of a GPU by field of nvidia-smi. What an idle GPU
// has of those that are marked says nothing about it.
var gauges = []struct {
	field, name string
	isOfWork    bool
}{
	{"temperature.gpu", "temperature_celsius", false},
	{"clocks.sm", "sm_clock_megahertz", true},
	{"power.draw", "power_watts", true},
	{"ecc.errors.corrected.volatile.total", "ecc_corrected_total", false},
	{"ecc.errors.uncorrected.volatile.total", "ecc_uncorrected_total", false},
	{"pcie.link.width.current", "pcie_width_lanes", true},
	{"pcie.link.gen.current", "pcie_generation", true},
}

// HasGPU reports whether a GPU of NVIDIA is on the PCI bus.
func (m *Machine) HasGPU() bool {
	fs, err := m.onBus()
	return err == nil && len(fs) > 0
}

// ModuleVersion returns the version of the loaded driver, "" for none.
func (m *Machine) ModuleVersion() string {
	v, err := m.readLine("/sys/module/nvidia/version")
	if err != nil {
		return ""
	}
	return v
}

// Report asks nvidia-smi what the GPUs measure ("gpu.0.power_watts"), which
// of them, or of their MIG instances, are occupied and by whom, and for the
// version of their firmware. What is not known is left out: an idle GPU has no
// clock that could be compared, one in MIG mode no load. Uses are nil, too,
// when processes could not be listed. It holds no context on a GPU.
func (m *Machine) Report(ctx context.Context) (metrics map[string]float64, uses []fleet.Use, versions map[string]string, err error) {
	fields := []string{"index", "pci.bus_id", "vbios_version", "utilization.gpu"}
	for _, g := range gauges {
		fields = append(fields, g.field)
	}
	rows, err := m.query(ctx, fields...)
	if err != nil {
		return nil, nil, nil, err
	}
	rows = rows[:min(len(rows), maxGPUs)]
	details := map[string]detail{}
	text, detailErr := m.smi(ctx, "-q")
	if detailErr == nil {
		details = parseDetails(text)
	}
	metrics, versions = map[string]float64{}, map[string]string{}
	for _, r := range rows {
		d := details[busAddress(r["pci.bus_id"])]
		number := func(name, v string) {
			if x, err := strconv.ParseFloat(v, 64); err == nil {
				metrics["gpu."+r["index"]+"."+name] = x
			}
		}
		for _, g := range gauges {
			if !g.isOfWork || !d.isIdle {
				number(g.name, r[g.field])
			}
		}
		number("temperature_margin_celsius", d.margin)
		number("remapped_rows_total", d.remapped)
		if v := r["vbios_version"]; v != "" {
			versions["firmware.vbios"] = merge(versions["firmware.vbios"], v)
		}
	}
	if detailErr == nil {
		uses, err = m.uses(ctx, rows, details)
	}
	return metrics, uses, versions, err
}

// merge adds a version to those of other boards: "96.00.9F 96.00.A5".
func merge(all, v string) string {
	if all == "" {
		return v
	}
	for _, have := range strings.Fields(all) {
		if have == v {
			return all
		}
	}
	return all + " " + v
}

// uses tells which devices there are, and who has them.
func (m *Machine) uses(ctx context.Context, rows []row, details map[string]detail) ([]fleet.Use, error) {
	var uses []fleet.Use
	var cut []gpu
	for i, r := range rows {
		d, ok := details[busAddress(r["pci.bus_id"])]
		if !ok {
			return nil, fmt.Errorf("%w: nvidia-smi -q says nothing of GPU %s", ErrUnknown, r["index"])
		}
		if !d.isCut {
			u := fleet.Use{Device: r["index"]}
			if load, err := strconv.ParseFloat(r["utilization.gpu"], 64); err == nil {
				u.Load = min(max(load/100, 0), 1)
			}
			uses = append(uses, m.occupied(u, d.processes, func(process) bool { return true }))
			continue
		}
		if cut == nil {
			var err error
			if cut, err = m.list(ctx); err != nil {
				return nil, err
			}
		}
		if i >= len(cut) {
			return nil, fmt.Errorf("%w: nvidia-smi -L lists %d GPUs", ErrUnknown, len(cut))
		}
		uses = append(uses, m.instances(r["index"], d, cut[i].instances)...)
	}
	return uses, nil
}

// instances are the MIG devices of a GPU: "0/2", and "0/2/1" where a GPU
// instance is cut further into compute instances.
func (m *Machine) instances(index string, d detail, profiles []string) []fleet.Use {
	parts := map[string]int{}
	for _, i := range d.instances {
		parts[i.gi]++
	}
	var uses []fleet.Use
	for _, i := range d.instances {
		u := fleet.Use{Device: index + "/" + i.gi}
		if parts[i.gi] > 1 {
			u.Device += "/" + i.ci
		}
		if n, err := strconv.Atoi(i.index); err == nil && n >= 0 && n < len(profiles) {
			u.Profile = profiles[n]
		}
		uses = append(uses, m.occupied(u, d.processes, func(p process) bool { return p.gi == i.gi && p.ci == i.ci }))
	}
	return uses
}

// occupied fills in who has a device.
func (m *Machine) occupied(u fleet.Use, ps []process, has func(process) bool) fleet.Use {
	for _, p := range ps {
		if has(p) {
			u.Occupied = true
			if u.Tenant == "" {
				u.Tenant = m.tenant(p.pid)
			}
		}
	}
	return u
}

var (
	podOf = regexp.MustCompile(`pod([0-9a-f]{8}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{4}[-_][0-9a-f]{12})`)
	jobOf = regexp.MustCompile(`/job_([0-9]+)(?:/|\n|$)`)
)

// tenant names who a process works for, by its control group: the pod of
// Kubernetes, the job of Slurm; else the user it runs as, "" for root.
func (m *Machine) tenant(pid string) string {
	if _, err := strconv.ParseUint(pid, 10, 32); err != nil {
		return ""
	}
	groups, err := os.ReadFile(m.path("/proc/" + pid + "/cgroup"))
	if err != nil {
		return "" // it has ended
	}
	if f := podOf.FindSubmatch(groups); f != nil {
		return "pod:" + strings.ReplaceAll(string(f[1]), "_", "-")
	}
	if f := jobOf.FindSubmatch(groups); f != nil {
		return "job:" + string(f[1])
	}
	status, err := os.ReadFile(m.path(filepath.Join("/proc", pid, "status")))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(status)) {
		if f := strings.Fields(line); len(f) > 1 && f[0] == "Uid:" && f[1] != "0" {
			return "uid:" + f[1]
		}
	}
	return ""
}
