//go:build linux

// Package inventory reads what a machine is made of from sysfs and procfs.
// It runs no programs. What cannot be read is left out.
package inventory

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/efivar"
	"github.com/turnout-project/turnout/internal/fleet"
)

// Read takes stock. root is put before /sys and /proc; "" means "/". The
// firmware fields of the TPM are left to whoever has it open.
func Read(root string) *fleet.Inventory {
	r := reader{filepath.Join("/", root)}
	i := &fleet.Inventory{
		Vendor: r.dmi("sys_vendor"), Product: r.dmi("product_name"), Serial: r.dmi("product_serial"),
		UUID: strings.ToLower(r.dmi("product_uuid")), BIOSVersion: r.dmi("bios_version"),
		MemoryBytes: r.memory(), NICs: r.nics(), PCI: r.pci(),
		SecureBoot: efivar.SecureBoot(r.path(efivar.Dir)),
	}
	i.CPU, i.CPUs = r.cpu()
	if disks, err := (disk.Host{Sys: r.path("/sys")}).List(); err == nil {
		for _, d := range disks {
			i.Disks = append(i.Disks, d.Disk)
		}
	}
	return i
}

// MACs returns the addresses of the physical network interfaces.
func MACs() []fleet.MAC {
	var out []fleet.MAC
	for _, n := range (reader{"/"}).nics() {
		out = append(out, n.MAC)
	}
	return out
}

type reader struct{ root string }

func (r reader) path(p string) string { return filepath.Join(r.root, p) }

func (r reader) text(p string) string {
	b, err := os.ReadFile(r.path(p))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// placeholders are what vendors leave in fields they did not fill in.
var placeholders = []string{"to be filled by o.e.m.", "default string", "not specified", "none", "n/a", "system serial number", "0"}

func (r reader) dmi(field string) string {
	v := r.text("/sys/class/dmi/id/" + field)
	if slices.Contains(placeholders, strings.ToLower(v)) {
		return ""
	}
	return v
}

// cpu returns the model and the number of logical CPUs.
func (r reader) cpu() (model string, n int) {
	for line := range strings.Lines(r.text("/proc/cpuinfo")) {
		key, value, _ := strings.Cut(line, ":")
		switch strings.TrimSpace(key) {
		case "processor":
			n++
		case "model name":
			model = strings.TrimSpace(value)
		}
	}
	return model, n
}

func (r reader) memory() uint64 {
	for line := range strings.Lines(r.text("/proc/meminfo")) {
		if f := strings.Fields(line); len(f) == 3 && f[0] == "MemTotal:" {
			kib, _ := strconv.ParseUint(f[1], 10, 64)
			return kib << 10
		}
	}
	return 0
}

// nics lists interfaces that have a device behind them, in order of name.
func (r reader) nics() []fleet.NIC {
	const dir = "/sys/class/net"
	entries, err := os.ReadDir(r.path(dir))
	if err != nil {
		return nil
	}
	var out []fleet.NIC
	for _, e := range entries {
		p := dir + "/" + e.Name()
		if _, err := os.Stat(r.path(p + "/device")); err != nil {
			continue
		}
		mac, err := fleet.ParseMAC(r.text(p + "/address"))
		if err != nil {
			continue
		}
		driver, _ := os.Readlink(r.path(p + "/device/driver"))
		n := fleet.NIC{Name: e.Name(), MAC: mac, Up: r.text(p+"/operstate") == "up"}
		if driver != "" {
			n.Driver = filepath.Base(driver)
		}
		out = append(out, n)
	}
	return out
}

// pci lists "address vendor:device class", in order of address.
func (r reader) pci() []string {
	const dir = "/sys/bus/pci/devices"
	entries, err := os.ReadDir(r.path(dir))
	if err != nil {
		return nil
	}
	hex := func(p string) string { return strings.TrimPrefix(r.text(p), "0x") }
	var out []string
	for _, e := range entries {
		p := dir + "/" + e.Name()
		class := hex(p + "/class")
		if len(class) == 6 {
			class = class[:4] // without the programming interface
		}
		out = append(out, fmt.Sprintf("%s %s:%s %s", e.Name(), hex(p+"/vendor"), hex(p+"/device"), class))
	}
	return out
}
