package gpu

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/recipe"
)

func init() {
	compat.Register(
		compat.RuleInfo{Name: "mig-board", Text: "a MIG layout for a board that cannot be cut"},
		compat.RuleInfo{Name: "mig-fit", Text: "a MIG layout that does not fit a board"},
		compat.RuleInfo{Name: "mig-cover", Text: "a MIG layout that says two things of one GPU, or nothing that can be rendered"},
		compat.RuleInfo{Name: "mig-driver", Text: "a driver that is too old for MIG or a profile on a board"},
		compat.RuleInfo{Name: "mig-tool", Text: "no tool in the image that applies the layout"},
		compat.RuleInfo{Name: "mig-mode", Text: "GPUs that remember MIG mode, and nothing in the image that turns it off"},
		compat.RuleInfo{Name: "plugin-strategy", Text: "a device-plugin strategy that the layout does not go with"},
		compat.RuleInfo{Name: "sharing", Text: "sharing that the device plugin refuses, or that shares nothing"},
		compat.RuleInfo{Name: "gpu-driver", Text: "settings of GPUs in an image without a driver or without nvidia-smi"},
	)
}

// Lint judges the GPU section of r. What drivers, boards and kernels have to
// do with each other is compat.Check's to judge.
func Lint(t *compat.Tables, r *recipe.Recipe) []compat.Finding {
	l := &linter{t: t, r: r}
	if !has(r) {
		return nil
	}
	l.layouts()
	l.tool()
	l.mode()
	l.strategy()
	l.sharing()
	l.driver()
	return l.found
}

type linter struct {
	t     *compat.Tables
	r     *recipe.Recipe
	found []compat.Finding
}

func (l *linter) add(rule string, s compat.Severity, field, source, hint, format string, args ...any) {
	l.found = append(l.found, compat.Finding{Rule: rule, Severity: s, Field: field, Source: source, Hint: hint, Message: fmt.Sprintf(format, args...)})
}

// layouts holds every layout against the profiles of every board it is for.
func (l *linter) layouts() {
	for i, layout := range l.r.GPU.MIG.Layouts {
		for j, e := range layout.GPUs {
			l.entry(entryField(i, j), layout.Name, e)
		}
		if _, err := expand(l.t, l.r, layout); err != nil {
			l.add("mig-cover", compat.Error, fmt.Sprintf("gpu.mig.layouts[%d]", i), "", "", "MIG layout %s: %v", layout.Name, err)
		}
	}
	if l.r.HasGPU() && len(l.r.GPU.MIG.Layouts) > 0 && len(l.r.GPU.Boards) == 0 {
		l.add("mig-board", compat.Error, "gpu", "", "name the boards of the nodes in gpu.boards", "gpu.mig cuts GPUs, and gpu.boards does not say which")
	}
}

func (l *linter) entry(field, layout string, e recipe.MIGEntry) {
	if len(e.Profiles) == 0 {
		return
	}
	for _, b := range boards(l.t, l.r) {
		if e.Board != "" && e.Board != b.ID {
			continue
		}
		m, ok := l.t.MIGTable(b)
		if !ok {
			l.add("mig-board", compat.Error, field, "nvidia.github.io/k8s-test-infra/mig; NVIDIA MIG user guide, Supported MIG Profiles",
				"set board: for the entry, so that it is for those that can", "MIG layout %s: %s (%s) cannot be cut", layout, b.ID, b.Product)
			continue
		}
		if why := Fit(m, e.Profiles); why != "" {
			l.add("mig-fit", compat.Error, field, m.Source, "profiles of this board: "+profileNames(m), "MIG layout %s does not fit %s: %s", layout, b.ID, why)
			continue
		}
		if m.Status != "official" && !strings.HasPrefix(m.Status, "KTI (") {
			l.add("mig-fit", compat.Info, field, m.Source, "see what `nvidia-smi mig -lgipp` says on such a node", "MIG layout %s: the placements of %s are not from NVIDIA's own listing (%s)", layout, b.ID, m.Status)
		}
		l.migDriver(field, b, m, e)
	}
}

func (l *linter) migDriver(field string, b compat.Board, m compat.MIGTable, e recipe.MIGEntry) {
	d := l.r.Driver
	n := d.BranchNumber()
	if n == 0 {
		return
	}
	min := m.MinDriver
	if b.MIGMinDriver != "" {
		min = b.MIGMinDriver
	}
	if d.Version != "" && compat.Less(d.Version, min) || n < compat.BranchOf(min) {
		l.add("mig-driver", compat.Error, field, m.Source, "take "+min+" or later", "MIG on %s needs driver %s", b.ID, min)
	}
	for _, name := range slices.Sorted(maps.Keys(e.Profiles)) {
		if p, _ := m.Profile(name); p.Since > n {
			l.add("mig-driver", compat.Error, field, p.Source, fmt.Sprintf("take a driver of R%d or later", p.Since), "profile %s of %s came with R%d", name, b.ID, p.Since)
		}
	}
}

// tool looks for the program that applies a layout.
func (l *linter) tool() {
	m := l.r.GPU.MIG
	if len(m.Layouts) == 0 {
		return
	}
	switch {
	case m.Tool == "mig-parted" && !asksForRole(l.t, l.r, "mig-manager"):
		l.add("mig-tool", compat.Error, "gpu.mig", "", "add it from NVIDIA's repository, or set gpu.mig.tool: nvidia-smi", "gpu.mig is applied by mig-parted, and the image has no package nvidia-mig-manager")
	case m.Tool == "mig-parted":
		l.add("mig-tool", compat.Info, "gpu.mig", "NVIDIA/mig-parted deployments/systemd", "", "mig-parted reboots a node once by itself when a GPU cannot be reset")
	}
}

// mode: Ampere keeps MIG mode in its InfoROM, so that an image which says
// nothing finds what the last one left.
func (l *linter) mode() {
	if len(l.r.GPU.MIG.Layouts) > 0 || l.r.Driver.Family == "" || asksForRole(l.t, l.r, "smi") {
		return
	}
	for _, b := range migBoards(l.t, l.r) {
		if a, _ := l.t.Arch(b.Arch); a.MIGInInforom {
			l.add("mig-mode", compat.Warning, "driver.packages", "NVIDIA MIG user guide, Getting Started", "add nvidia-smi to driver.packages",
				"%s keeps MIG mode over a reboot: after an image with MIG it would stay on, and without nvidia-smi nothing turns it off", b.ID)
		}
	}
}

// strategy compares the device plugin's strategy with the layout nodes boot
// with.
func (l *linter) strategy() {
	layout, ok := l.r.GPU.MIG.Layout()
	strategy := l.r.GPU.DevicePlugin.Strategy
	if strategy == "" {
		return
	}
	on, first, same := false, layout, true
	for _, e := range layout.GPUs {
		on = on || len(e.Profiles) > 0
		same = same && maps.Equal(e.Profiles, first.GPUs[0].Profiles) && len(e.Profiles) == 1
	}
	const field, source = "gpu.device_plugin.strategy", "NVIDIA/gpu-operator #460; NVIDIA/k8s-device-plugin README"
	switch {
	case strategy == "none" && ok && on:
		l.add("plugin-strategy", compat.Error, field, source, "take mixed, or single if all GPUs are cut into one kind of instance", "strategy none offers whole GPUs only, and layout %s cuts them", layout.Name)
	case strategy == "single" && ok && on && (!same || !covers(layout)):
		l.add("plugin-strategy", compat.Error, field, source, "take mixed", "strategy single wants all GPUs of a node cut alike, into one kind of instance; layout %s does not, and the device plugin would panic", layout.Name)
	case strategy != "none" && !on:
		l.add("plugin-strategy", compat.Info, field, source, "", "strategy %s without a MIG layout works like none", strategy)
	}
}

// covers tells whether a layout has an entry for every GPU.
func covers(layout recipe.MIGLayout) bool {
	return slices.ContainsFunc(layout.GPUs, func(e recipe.MIGEntry) bool { return e.Devices == nil && e.Board == "" })
}

func (l *linter) sharing() {
	s := l.r.GPU.Sharing
	if s.Mode == "" {
		return
	}
	const source = "NVIDIA/k8s-device-plugin README, Shared Access to GPUs"
	offered := Resources(l.t, l.r)
	layout, _ := l.r.GPU.MIG.Layout()
	cut := slices.ContainsFunc(layout.GPUs, func(e recipe.MIGEntry) bool { return len(e.Profiles) > 0 })
	if s.Mode == "mps" && cut {
		l.add("sharing", compat.Error, "gpu.sharing.mode", source, "share by time-slicing, or cut without sharing", "MPS does not work on GPUs that are cut by MIG")
	}
	for i, d := range s.Resources {
		if !slices.ContainsFunc(offered, func(o Resource) bool { return o.base == d.Name }) {
			l.add("sharing", compat.Error, fmt.Sprintf("gpu.sharing.resources[%d].name", i), source, "the node offers "+resourceNames(offered), "no device of the node is a %s", d.Name)
		}
	}
	if s.Mode == "time-slicing" {
		l.add("sharing", compat.Info, "gpu.sharing", "a survey of GPU sharing; "+source, "", "time-slicing isolates neither memory nor faults of the containers that share a GPU")
	}
}

// driver looks for what the settings need in the image.
func (l *linter) driver() {
	g := l.r.GPU
	needs := ""
	switch {
	case g.MIG.Tool == "nvidia-smi":
		needs = "gpu.mig.tool"
	case g.ECC != "":
		needs = "gpu.ecc"
	case g.Clocks != (recipe.Clocks{}):
		needs = "gpu.clocks"
	case g.Persistence:
		needs = "gpu.persistence"
	case g.Count > 0:
		needs = "gpu.count"
	}
	switch {
	case l.r.Driver.Family == "" && needs != "":
		l.add("gpu-driver", compat.Error, needs, "", "add the section driver", "%s needs a driver, and the recipe has none", needs)
	case l.r.Driver.Family == "":
		l.add("gpu-driver", compat.Info, "gpu", "", "", "the recipe has no driver: nothing of it is checked")
	case needs != "" && !asksForRole(l.t, l.r, "smi"):
		l.add("gpu-driver", compat.Error, needs, "", "add nvidia-smi to driver.packages", "%s is set and checked with nvidia-smi, which the image does not have", needs)
	}
}
