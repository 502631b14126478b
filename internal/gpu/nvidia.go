package gpu

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"gopkg.in/yaml.v3"

	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/gpu/probe"
	"github.com/turnout-project/turnout/internal/recipe"
)

const vendor = "10DE"

// allDisabled is a layout that every file of mig-parted has.
const allDisabled = "all-disabled"

// migFile is the configuration of mig-parted (NVIDIA/mig-parted,
// api/spec/v1/spec.go); it refuses keys it does not know.
type migFile struct {
	Version string                `yaml:"version"`
	Configs map[string][]migEntry `yaml:"mig-configs"`
}

type migEntry struct {
	Filter  []string       `yaml:"device-filter,omitempty,flow"`
	Devices any            `yaml:"devices,flow"` // "all" or indexes
	Enabled bool           `yaml:"mig-enabled"`
	Profile map[string]int `yaml:"mig-devices"`
}

// migConfig renders all layouts.
func migConfig(t *compat.Tables, r *recipe.Recipe) (string, error) {
	f := migFile{Version: "v1", Configs: map[string][]migEntry{allDisabled: {migOf(probe.Entry{})}}}
	for _, layout := range r.GPU.MIG.Layouts {
		entries, err := expand(t, r, layout)
		if err != nil {
			return "", fmt.Errorf("MIG layout %s: %w", layout.Name, err)
		}
		var out []migEntry
		for _, e := range entries {
			out = append(out, migOf(e))
		}
		f.Configs[layout.Name] = out
	}
	return encode(f)
}

func migOf(e probe.Entry) migEntry {
	m := migEntry{Devices: "all", Enabled: len(e.Profiles) > 0, Profile: map[string]int{}}
	for _, id := range e.PCI {
		m.Filter = append(m.Filter, "0x"+id+vendor)
	}
	if e.Devices != nil {
		m.Devices = e.Devices
	}
	if m.Enabled {
		m.Profile = e.Profiles
	}
	return m
}

// migDropIn selects a layout. NVIDIA's script rewrites override.conf beside
// it when a layout is changed at run time; in an image that file cannot
// change, and the one setting is here.
func migDropIn(layout string) string {
	return fmt.Sprintf(`[Service]
Environment="MIG_PARTED_SELECTED_CONFIG=%s"
Environment="MIG_PARTED_CONFIG_FILE=%s"
StateDirectory=nvidia-mig-manager
TimeoutStartSec=480
`, layout, migConfigPath)
}

// pluginFile is the configuration of the device plugin (NVIDIA/
// k8s-device-plugin README v0.17.1).
type pluginFile struct {
	Version string         `yaml:"version"`
	Flags   pluginFlags    `yaml:"flags"`
	Sharing *pluginSharing `yaml:"sharing,omitempty"`
	IMEX    *pluginIMEX    `yaml:"imex,omitempty"`
}

type pluginFlags struct {
	Strategy    string `yaml:"migStrategy"`
	FailOnError bool   `yaml:"failOnInitError"`
	DriverRoot  string `yaml:"nvidiaDriverRoot"`
	Plugin      struct {
		PassSpecs bool   `yaml:"passDeviceSpecs"`
		List      string `yaml:"deviceListStrategy"`
		ID        string `yaml:"deviceIDStrategy"`
	} `yaml:"plugin"`
}

type pluginSharing struct {
	TimeSlicing *pluginReplicas `yaml:"timeSlicing,omitempty"`
	MPS         *pluginReplicas `yaml:"mps,omitempty"`
}

type pluginReplicas struct {
	Rename    bool             `yaml:"renameByDefault"`
	OneEach   *bool            `yaml:"failRequestsGreaterThanOne,omitempty"`
	Resources []pluginResource `yaml:"resources"`
}

type pluginResource struct {
	Name     string `yaml:"name"`
	Replicas int    `yaml:"replicas"`
}

type pluginIMEX struct {
	Channels []int `yaml:"channelIDs,flow"`
	Required bool  `yaml:"required"`
}

// devicePlugin renders the device plugin's configuration, "" without one.
func devicePlugin(t *compat.Tables, r *recipe.Recipe) string {
	p := r.GPU.DevicePlugin
	if p.Strategy == "" {
		return ""
	}
	f := pluginFile{Version: "v1", Flags: pluginFlags{Strategy: p.Strategy, FailOnError: !p.TolerateFail, DriverRoot: "/"}}
	f.Flags.Plugin.List, f.Flags.Plugin.ID = p.DeviceList, p.DeviceID
	f.Sharing = sharingOf(t, r)
	if x := r.GPU.IMEX; x.Channel0 || x.Required {
		f.IMEX = &pluginIMEX{Channels: []int{0}, Required: x.Required}
	}
	text, err := encode(f)
	if err != nil {
		panic(err) // only text, numbers and truths
	}
	return text
}

func sharingOf(t *compat.Tables, r *recipe.Recipe) *pluginSharing {
	s := r.GPU.Sharing
	if s.Mode == "" {
		return nil
	}
	rep := &pluginReplicas{Rename: s.Rename}
	for _, d := range s.Resources {
		rep.Resources = append(rep.Resources, pluginResource(d))
	}
	if len(s.Resources) == 0 {
		for _, name := range slices.Sorted(maps.Keys(devices(t, r))) {
			rep.Resources = append(rep.Resources, pluginResource{name, s.Replicas})
		}
	}
	if s.Mode == "mps" {
		return &pluginSharing{MPS: rep}
	}
	rep.OneEach = &s.OneEach
	return &pluginSharing{TimeSlicing: rep}
}

func encode(v any) (string, error) {
	var b strings.Builder
	e := yaml.NewEncoder(&b)
	e.SetIndent(2)
	if err := e.Encode(v); err != nil {
		return "", err
	}
	return b.String(), e.Close()
}
