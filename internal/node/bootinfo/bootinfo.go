// Package bootinfo is what the initrd tells the service of the booted system:
// the file /run/turnout/boot.json.
package bootinfo

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"github.com/google/renameio/v2"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Path is where the initrd leaves the Info. /run is a tmpfs, so it is of this
// boot or absent.
const Path = "/run/turnout/boot.json"

// Info is what the initrd found and did.
type Info struct {
	BootID    string     `json:"bootID"`
	Slot      fleet.Slot `json:"slot"`                // whose partitions back the root
	RootHash  string     `json:"rootHash"`            // hex, of the kernel command line
	BootPath  string     `json:"bootPath"`            // "disk" or "network"
	Entry     string     `json:"entry,omitempty"`     // LoaderEntrySelected
	CountPath string     `json:"countPath,omitempty"` // LoaderBootCountPath
	Disk      string     `json:"disk"`                // "/dev/nvme0n1"
	ESP       string     `json:"esp"`                 // partition device
	State     string     `json:"state"`
	Roots     [2]string  `json:"roots"` // partition devices, A then B
	Verities  [2]string  `json:"verities"`
	Watchdog  Watchdog   `json:"watchdog,omitzero"`
	Starts    int        `json:"starts"` // starts of this image in a row, this one included, without local health
}

// Watchdog is the watchdog that the initrd armed.
type Watchdog struct {
	Device  string `json:"device"`
	Seconds int    `json:"seconds"`
}

// Write stores i at path.
func Write(path string, i *Info) error {
	b, err := json.MarshalIndent(i, "", " ")
	if err != nil {
		return err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return renameio.WriteFile(path, b, 0o644)
}

// Read loads what Write stored. A boot id other than the running kernel's is
// refused.
func Read(path string) (*Info, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("boot record: %w; was this system started by Turnout's initrd?", err)
	}
	var i Info
	if err := json.Unmarshal(b, &i); err != nil {
		return nil, fmt.Errorf("boot record %s: %w", path, err)
	}
	if id, err := BootID(); err == nil && id != i.BootID {
		return nil, fmt.Errorf("boot record %s is of boot %s, this is boot %s", path, i.BootID, id)
	}
	return &i, nil
}

// BootID returns the kernel's random id of this boot.
func BootID() (string, error) {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	return strings.TrimSpace(string(b)), err
}
