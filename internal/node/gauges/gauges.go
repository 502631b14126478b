//go:build linux

// Package gauges takes the numbers of a node that its pool is compared by, the
// versions of what runs on it, and who has its GPUs: from sysfs, procfs and
// nvidia-smi. What cannot be read is left out. It changes nothing, and holds
// no context on a GPU.
package gauges

import (
	"context"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/gpu/probe"
)

// Most of each kind that is reported.
const (
	maxNICs  = 32
	maxZones = 64
)

// Sample is what a node measures of itself.
type Sample struct {
	Metrics  map[string]float64 // see fleet.Report
	Uses     []fleet.Use        // nil if not known
	Versions map[string]string  // "driver", "firmware.vbios", "firmware.nic"
}

// Reader reads the machine. The zero value is the one that the program runs
// on; one Reader serves for the life of the agent, because it remembers
// whether nvidia-smi hangs.
type Reader struct {
	Machine probe.Machine
}

// Read takes a sample. It returns soon after ctx ends, with what it has. The
// error is of the GPUs: everything else is left out quietly.
func (r *Reader) Read(ctx context.Context) (Sample, error) {
	s := r.Quick()
	r.nics(s.Metrics)
	r.memory(s.Metrics)
	r.heat(s.Metrics)
	if !r.Machine.HasGPU() {
		return s, nil
	}
	metrics, uses, versions, err := r.Machine.Report(ctx)
	maps.Copy(s.Metrics, metrics)
	maps.Copy(s.Versions, versions)
	s.Uses = uses
	return s, err
}

// Quick is what files of the kernel say at once: the versions.
func (r *Reader) Quick() Sample {
	s := Sample{Metrics: map[string]float64{}, Versions: map[string]string{}}
	if v := r.Machine.ModuleVersion(); v != "" {
		s.Versions["driver"] = v
	}
	var nics []string
	for _, name := range r.glob("/sys/class/infiniband/*/fw_ver", maxNICs) {
		if v := text(name); v != "" {
			nics = append(nics, v)
		}
	}
	slices.Sort(nics)
	if nics = slices.Compact(nics); len(nics) > 0 {
		s.Versions["firmware.nic"] = strings.Join(nics, " ")
	}
	return s
}

// nics adds the errors and speeds of physical network interfaces, and of the
// ports of InfiniBand.
func (r *Reader) nics(m map[string]float64) {
	for _, dir := range r.glob("/sys/class/net/*/device", maxNICs) {
		dir = filepath.Dir(dir)
		name := "nic." + filepath.Base(dir) + "."
		put(m, name+"rx_errors_total", filepath.Join(dir, "statistics/rx_errors"))
		put(m, name+"tx_errors_total", filepath.Join(dir, "statistics/tx_errors"))
		put(m, name+"carrier_changes_total", filepath.Join(dir, "carrier_changes"))
		if text(filepath.Join(dir, "operstate")) == "up" {
			put(m, name+"speed_megabits", filepath.Join(dir, "speed"))
		}
	}
	for _, dir := range r.glob("/sys/class/infiniband/*/ports/*", maxNICs) {
		name := "nic." + filepath.Base(filepath.Dir(filepath.Dir(dir))) + "_" + filepath.Base(dir) + "."
		for _, counter := range []string{"symbol_error", "link_downed", "port_rcv_errors"} {
			put(m, name+counter+"_total", filepath.Join(dir, "counters", counter))
		}
	}
}

// memory adds the errors that memory controllers counted.
func (r *Reader) memory(m map[string]float64) {
	for kind, name := range map[string]string{"ce_count": "memory.corrected_total", "ue_count": "memory.uncorrected_total"} {
		for _, f := range r.glob("/sys/devices/system/edac/mc/mc*/"+kind, maxZones) {
			if v, ok := number(f); ok {
				m[name] += v
			}
		}
	}
}

// heat adds the hottest sensor of the CPUs, and how often they slowed
// themselves down.
func (r *Reader) heat(m map[string]float64) {
	for _, f := range r.glob("/sys/class/hwmon/hwmon*/name", maxZones) {
		if !slices.Contains([]string{"coretemp", "k10temp"}, text(f)) {
			continue
		}
		for _, f := range r.glob(strings.TrimPrefix(filepath.Dir(f), filepath.Clean(r.Machine.Root))+"/temp*_input", maxZones) {
			if v, ok := number(f); ok {
				m["cpu.temperature_celsius"] = max(m["cpu.temperature_celsius"], v/1000)
			}
		}
	}
	for _, f := range r.glob("/sys/devices/system/cpu/cpu*/thermal_throttle/package_throttle_count", math.MaxInt) {
		if v, ok := number(f); ok { // every CPU of a package shows the count of the package
			m["cpu.throttles_total"] = max(m["cpu.throttles_total"], v)
		}
	}
}

// glob returns at most so many files, in order of their names.
func (r *Reader) glob(pattern string, most int) []string {
	names, err := filepath.Glob(filepath.Join("/", r.Machine.Root, pattern))
	if err != nil {
		return nil
	}
	return names[:min(len(names), most)]
}

func text(path string) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// number reads a file of one number; what is below zero is the kernel's way
// to say that it does not know.
func number(path string) (float64, bool) {
	v, err := strconv.ParseFloat(text(path), 64)
	return v, err == nil && v >= 0 && !math.IsInf(v, 0) && !math.IsNaN(v)
}

func put(m map[string]float64, name, path string) {
	if v, ok := number(path); ok {
		m[name] = v
	}
}
