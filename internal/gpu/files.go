package gpu

import (
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/gpu/probe"
	"github.com/turnout-project/turnout/internal/recipe"
)

const head = "# Written by imgbuild from the recipe.\n"

// Files returns what an image of r needs below / beside the packages of its
// driver: the files that NVIDIA's tools read, a unit that applies settings at
// boot, and what the agent compares the GPUs with. nil for a recipe without
// GPUs. The same recipe gives the same bytes.
func Files(t *compat.Tables, r *recipe.Recipe) ([]recipe.File, error) {
	if !has(r) {
		return nil, nil
	}
	c, err := nodeConfig(t, r)
	if err != nil {
		return nil, err
	}
	text, err := json.MarshalIndent(c, "", "  ")
	if err != nil {
		return nil, err
	}
	files := []recipe.File{{Path: probe.ConfigPath, Content: string(text) + "\n"}}
	add := func(path, content string) {
		if content != "" {
			files = append(files, recipe.File{Path: path, Content: head + content})
		}
	}
	if r.Driver.Family != "" {
		add(modprobePath, modprobe(r))
		add(modulesLoadPath, modulesLoad(t, r))
		add(unitPath, unit(c))
	}
	if c.MIG != nil && c.MIG.Tool == "mig-parted" {
		config, err := migConfig(t, r)
		if err != nil {
			return nil, err
		}
		add(migConfigPath, config)
		add(migDropInPath, migDropIn(c.MIG.Layout))
	}
	add(devicePluginPath, devicePlugin(t, r))
	for i := range files {
		files[i].Mode, files[i].Owner = "0644", "root:root"
	}
	return files, nil
}

// Units returns the units that an image of r enables.
func Units(t *compat.Tables, r *recipe.Recipe) ([]string, error) {
	if r.Driver.Family == "" {
		return nil, nil
	}
	c, err := nodeConfig(t, r)
	if err != nil {
		return nil, err
	}
	var units []string
	if unit(c) != "" {
		units = append(units, applyUnit)
	}
	if c.MIG != nil && c.MIG.Tool == "mig-parted" {
		units = append(units, migManagerUnit)
	}
	if asksForRole(t, r, "fabric-manager") {
		units = append(units, fabricUnit)
	}
	if asksForRole(t, r, "imex") {
		units = append(units, imexUnit)
	}
	return units, nil
}

// nodeConfig is what the node's agent compares its GPUs with.
func nodeConfig(t *compat.Tables, r *recipe.Recipe) (*probe.Config, error) {
	g := r.GPU
	c := &probe.Config{
		Driver: r.Driver.Version, GSP: runsGSP(t, r), Count: g.Count,
		Persistence: g.Persistence, ECC: g.ECC, Params: params(r),
		Clocks: probe.Clocks{GPU: g.Clocks.GPU, Memory: g.Clocks.Memory, Power: g.Clocks.Power},
		Watch:  r.Driver.Family != "" && asksForRole(t, r, "smi"),
	}
	for _, b := range boards(t, r) {
		c.Boards = append(c.Boards, probe.Board{Name: b.ID, PCI: b.PCI})
	}
	if p, ok := platform(t, r); ok {
		c.Fabric = slices.Contains(p.Needs, "fabric-manager") || slices.Contains(p.Needs, "imex")
	}
	for _, q := range r.Firmware.Require {
		c.Firmware = append(c.Firmware, probe.Firmware{Component: q.Component, Min: q.Min, Max: q.Max})
	}
	var err error
	c.MIG, err = nodeMIG(t, r)
	return c, err
}

// nodeMIG is the layout nodes boot with. Without one, boards that could be
// cut must not be: an earlier image may have left MIG on.
func nodeMIG(t *compat.Tables, r *recipe.Recipe) (*probe.MIG, error) {
	layout, ok := r.GPU.MIG.Layout()
	if !ok {
		if len(migBoards(t, r)) == 0 || !asksForRole(t, r, "smi") {
			return nil, nil
		}
		return &probe.MIG{Tool: "nvidia-smi", Layout: "all-disabled", Entries: []probe.Entry{{}}}, nil
	}
	entries, err := expand(t, r, layout)
	if err != nil {
		return nil, fmt.Errorf("MIG layout %s: %w", layout.Name, err)
	}
	return &probe.MIG{Tool: r.GPU.MIG.Tool, Layout: layout.Name, Entries: entries}, nil
}

// runsGSP tells whether all GPUs of a node run firmware of the driver's
// version: open modules always do, with others it is the driver's choice.
func runsGSP(t *compat.Tables, r *recipe.Recipe) bool {
	if r.Driver.Flavour != "open" {
		return false
	}
	images, known := t.GSPImages(r.GPU.Boards)
	return known && len(images) > 0
}

// params are the options of the nvidia module that a node can read back.
func params(r *recipe.Recipe) map[string]string {
	out := map[string]string{}
	for k, v := range options(r) {
		out[strings.TrimPrefix(k, "NVreg_")] = strings.Trim(v, `"`)
	}
	return out
}

// options are all options of the nvidia module.
func options(r *recipe.Recipe) map[string]string {
	out := maps.Clone(r.GPU.NVReg)
	if out == nil {
		out = map[string]string{}
	}
	switch r.GPU.CDMM {
	case "on":
		out["NVreg_CoherentGPUMemoryMode"] = "driver"
	case "off":
		out["NVreg_CoherentGPUMemoryMode"] = "numa"
	}
	if n := r.GPU.IMEX.Channels; n > 0 {
		out["NVreg_ImexChannelCount"] = fmt.Sprint(n)
	}
	if r.GPU.IMEX.Channel0 {
		out["NVreg_CreateImexChannel0"] = "1"
	}
	return out
}

// modprobe renders the options. Debian loads the modules by other names, to
// which options must be given as well; two lines of one module would not add
// up where an option is a list, so there is one for each name.
func modprobe(r *recipe.Recipe) string {
	names, uvm := []string{"nvidia"}, []string{"nvidia-uvm"}
	if r.Base.Distribution == "debian" {
		debian := "nvidia-current"
		if r.Driver.Flavour == "open" {
			debian += "-open"
		}
		names, uvm = append(names, debian), append(uvm, debian+"-uvm")
	}
	var b strings.Builder
	b.WriteString("blacklist nouveau\n# Nothing on a server draws, and nvidia-drm keeps GPUs from being reset.\nblacklist nvidia-drm\n")
	line := func(module string, values map[string]string) {
		if len(values) == 0 {
			return
		}
		b.WriteString("options " + module)
		for _, k := range slices.Sorted(maps.Keys(values)) {
			fmt.Fprintf(&b, " %s=%s", k, values[k])
		}
		b.WriteString("\n")
	}
	for _, n := range names {
		line(n, options(r))
	}
	for _, n := range uvm {
		line(n, r.GPU.UVM)
	}
	return b.String()
}

// modulesLoad names the modules that nothing else loads.
func modulesLoad(t *compat.Tables, r *recipe.Recipe) string {
	var b strings.Builder
	if p, ok := platform(t, r); ok && slices.Contains(p.Needs, "ib_umad") {
		b.WriteString("# The NVSwitches of this platform are managed through it.\nib_umad\n")
	}
	b.WriteString("nvidia-uvm\n")
	return b.String()
}

// unit applies at boot what GPUs forget; "" if that is nothing.
func unit(c *probe.Config) string {
	if !c.Persistence && c.ECC == "" && c.Clocks == (probe.Clocks{}) && (c.MIG == nil || c.MIG.Tool != "nvidia-smi") {
		return ""
	}
	return `[Unit]
Description=Bring the GPUs into the state the image asks for
After=systemd-modules-load.service systemd-udev-settle.service nvidia-persistenced.service nvidia-fabricmanager.service
Before=kubelet.service containerd.service docker.service slurmd.service

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=` + agentPath + ` gpu apply
TimeoutStartSec=480

[Install]
WantedBy=multi-user.target
`
}
