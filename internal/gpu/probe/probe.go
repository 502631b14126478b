// Package probe holds a node's GPUs against what its image says of them, and
// brings about at boot what the driver does not keep: MIG layouts, limits,
// modes. It asks nvidia-smi, sysfs and procfs, and decides nothing else; what
// follows from a failed check is the agent's business.
//
// A value that nvidia-smi does not know ("[N/A]", "[Not Supported]", …) is
// unknown, never zero and never healthy.
package probe

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync/atomic"
)

// ConfigPath is where an image says what its GPUs must be like.
const ConfigPath = "/etc/turnout/gpu.json"

// ErrUnknown is wrapped by the error of a check that cannot tell.
var ErrUnknown = errors.New("cannot tell")

// Config is what an image says of a node's GPUs. Empty fields are not looked
// at.
type Config struct {
	Driver      string            `json:"driver,omitempty"` // "535.261.03"
	GSP         bool              `json:"gsp,omitempty"`    // the GPUs run firmware of the driver's version
	Count       int               `json:"count,omitempty"`
	Boards      []Board           `json:"boards,omitempty"`
	MIG         *MIG              `json:"mig,omitempty"`
	Fabric      bool              `json:"fabric,omitempty"` // NVSwitches connect the GPUs
	Persistence bool              `json:"persistence,omitempty"`
	ECC         string            `json:"ecc,omitempty"` // "on", "off"
	Clocks      Clocks            `json:"clocks,omitzero"`
	Params      map[string]string `json:"params,omitempty"` // of /proc/driver/nvidia/params
	Firmware    []Firmware        `json:"firmware,omitempty"`
	// Watch has the state of the GPUs looked at, whatever the recipe says of
	// them: Xids, recovery, links, remapped rows, throttling.
	Watch bool `json:"watch,omitempty"`
}

// Board is a kind of GPU that a node may have.
type Board struct {
	Name string   `json:"name"`
	PCI  []string `json:"pci"` // device ids, four hexadecimal digits, upper case
}

// MIG is what the GPUs are cut into. The entries cover every GPU once.
type MIG struct {
	Tool    string  `json:"tool"` // "mig-parted" or "nvidia-smi" applies it
	Layout  string  `json:"layout"`
	Entries []Entry `json:"entries"`
}

// Entry is what some GPUs are cut into.
type Entry struct {
	PCI      []string       `json:"pci,omitempty"`     // nil is any
	Devices  []int          `json:"devices,omitempty"` // nil is all
	Profiles map[string]int `json:"profiles,omitempty"`
}

// Clocks are limits; "" and 0 leave a value as it is.
type Clocks struct {
	GPU    string `json:"gpu,omitempty"`    // "1410", "210-1410", MHz
	Memory string `json:"memory,omitempty"` // likewise
	Power  int    `json:"power,omitempty"`  // watts
}

// Firmware bounds a firmware version of the machine.
type Firmware struct {
	Component string `json:"component"` // "bios", "vbios", "nic"
	Min       string `json:"min,omitempty"`
	Max       string `json:"max,omitempty"`
}

// Read reads the configuration of an image below root.
func Read(root string) (*Config, error) {
	b, err := os.ReadFile(filepath.Join(root, ConfigPath))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	var c Config
	if err := json.Unmarshal(b, &c); err != nil {
		return nil, fmt.Errorf("%w: %s: %w", ErrUnknown, ConfigPath, err)
	}
	return &c, nil
}

// Machine is the node. The zero value is the machine the program runs on. It
// asks nvidia-smi one thing at a time, and must not be copied once it has.
type Machine struct {
	Root string   // prefix of /sys and /proc; "" is none
	SMI  []string // command; nil means nvidia-smi

	hangs atomic.Bool // a call is under way, or hangs
}

// check is one of the checks: it returns what it saw.
type check struct {
	name string
	asks func(*Config) bool // whether the configuration says anything of it
	run  func(*Machine, context.Context, *Config) (string, error)
}

// checks are in the order in which a person would look: what the kernel said,
// what later ones depend on, what is cheap, before the rest.
var checks = []check{
	{"xid", func(c *Config) bool { return c.Watch }, (*Machine).xid},
	{"xid-driver", func(c *Config) bool { return c.Watch }, (*Machine).xidDriver},
	{"driver", func(c *Config) bool { return c.Driver != "" }, (*Machine).driver},
	{"gsp", func(c *Config) bool { return c.Driver != "" && c.GSP }, (*Machine).gsp},
	{"gpus", func(c *Config) bool { return c.Count > 0 || len(c.Boards) > 0 }, (*Machine).gpus},
	{"recovery", func(c *Config) bool { return c.Watch }, (*Machine).recovery},
	{"params", func(c *Config) bool { return len(c.Params) > 0 }, (*Machine).params},
	{"fabric", func(c *Config) bool { return c.Fabric }, (*Machine).fabric},
	{"mig", func(c *Config) bool { return c.MIG != nil }, (*Machine).mig},
	{"link", func(c *Config) bool { return c.Watch }, (*Machine).link},
	{"nvlink", func(c *Config) bool { return c.Watch && c.Fabric }, (*Machine).nvlink},
	{"remap", func(c *Config) bool { return c.Watch }, (*Machine).remap},
	{"persistence", func(c *Config) bool { return c.Persistence }, (*Machine).persistence},
	{"ecc", func(c *Config) bool { return c.ECC != "" }, (*Machine).ecc},
	{"power", func(c *Config) bool { return c.Clocks.Power > 0 }, (*Machine).power},
	{"throttle", func(c *Config) bool { return c.Watch }, (*Machine).throttle},
	{"clocks", func(c *Config) bool { return c.Watch && c.Clocks.GPU != "" }, (*Machine).clocks},
	{"firmware", func(c *Config) bool { return len(c.Firmware) > 0 }, (*Machine).firmware},
}

// Names returns the checks that a configuration asks for, in order.
func Names(c *Config) []string {
	var names []string
	for _, k := range checks {
		if k.asks(c) {
			names = append(names, k.name)
		}
	}
	return names
}

// Check runs one check. It returns what it saw on one line; an error that
// wraps ErrUnknown if it could not tell, another if the node is not what the
// image says.
func (m *Machine) Check(ctx context.Context, c *Config, name string) (string, error) {
	i := slices.IndexFunc(checks, func(k check) bool { return k.name == name })
	if i < 0 {
		var names []string
		for _, k := range checks {
			names = append(names, k.name)
		}
		return "", fmt.Errorf("%w: there is no check %q; there are %s", ErrUnknown, name, strings.Join(names, ", "))
	}
	if !checks[i].asks(c) {
		return "the image says nothing of it", nil
	}
	seen, err := checks[i].run(m, ctx, c)
	var smi *smiError
	if errors.As(err, &smi) && (name != "driver" && name != "gpus" || name == "gpus" && smi.blamesDriver()) {
		// That nvidia-smi fails is told by the check that it says most about.
		err = fmt.Errorf("%w: %w", ErrUnknown, err)
	}
	return seen, err
}

func (m *Machine) path(name string) string { return filepath.Join(m.Root, name) }

// readLine returns a small file of the kernel without white space around it.
func (m *Machine) readLine(name string) (string, error) {
	b, err := os.ReadFile(m.path(name))
	if err != nil {
		return "", err
	}
	return strings.TrimSpace(string(b)), nil
}
