package recipe

import (
	"fmt"
	"strings"
)

var (
	cudaRule     = newRule(`[0-9]+\.[0-9]+`, `the version of a CUDA toolkit such as "12.4"`)
	profileRule  = newRule(`[1-9]g\.[0-9]+gb([+-][a-z.]+)?`, `a MIG profile such as "1g.10gb"`)
	resourceRule = newRule(`nvidia\.com/[a-z0-9][a-z0-9.-]*`, `a resource such as "nvidia.com/gpu"`)
	nvregRule    = newRule(`NVreg_[A-Za-z0-9]+`, `an option of the nvidia module such as "NVreg_EnableStreamMemOPs"`)
	uvmRule      = newRule(`uvm_[a-z0-9_]+`, `an option of the nvidia-uvm module such as "uvm_disable_hmm"`)
	optionRule   = newRule(`[!-~]+`, `a value without spaces`)
	switchRule   = newRule(`on|off`, `on or off`)
	clockRule    = newRule(`[0-9]{2,5}(-[0-9]{2,5})?`, `MHz such as "1410" or "210-1410"`)
)

// gpuDefaults fills in what gpu may leave out.
func (r *Recipe) gpuDefaults() {
	g := &r.GPU
	if len(g.MIG.Layouts) > 0 && g.MIG.Tool == "" {
		g.MIG.Tool = "mig-parted"
	}
	if g.Sharing.Mode == "time-slicing" && !r.has("gpu.sharing.one_each") {
		g.Sharing.OneEach = true
	}
	if p := &g.DevicePlugin; p.Strategy != "" {
		if p.DeviceList == "" {
			p.DeviceList = "envvar"
		}
		if p.DeviceID == "" {
			p.DeviceID = "uuid"
		}
	}
}

func (r *Recipe) validateGPU() error {
	g := r.GPU
	if g.Count < 0 || g.Count > 64 {
		return r.Errorf("gpu.count", "0 accepts any number", "gpu.count %d is not a number of GPUs in one machine", g.Count)
	}
	return first(
		r.optional("gpu.platform", g.Platform, nameRule), r.optional("gpu.cdmm", g.CDMM, switchRule), r.optional("gpu.ecc", g.ECC, switchRule),
		r.unique("gpu.boards", g.Boards), r.matchAll("gpu.boards", g.Boards, nameRule), r.matchAll("gpu.cuda", g.CUDA, cudaRule),
		r.validateOptions(), r.validateMIG(), r.validateDevicePlugin(), r.validateSharing(), r.validateVGPU(), r.validateClocks(),
	)
}

// optional is match for a field that may be left out.
func (r *Recipe) optional(field, value string, want rule) error {
	if value == "" && !r.has(field) {
		return nil
	}
	return r.match(field, value, want)
}

func (r *Recipe) unique(field string, values []string) error {
	seen := map[string]bool{}
	for i, v := range values {
		if seen[v] {
			return r.Errorf(fmt.Sprintf("%s[%d]", field, i), "", "%s names %s twice", field, v)
		}
		seen[v] = true
	}
	return nil
}

const coherentOption = "NVreg_CoherentGPUMemoryMode"

func (r *Recipe) validateOptions() error {
	for _, group := range []struct {
		field  string
		values map[string]string
		key    rule
	}{{"gpu.nvreg", r.GPU.NVReg, nvregRule}, {"gpu.uvm", r.GPU.UVM, uvmRule}} {
		for _, key := range sortedKeys(group.values) {
			field := group.field + "." + key
			if err := first(r.match(field, key, group.key), r.match(field, group.values[key], optionRule)); err != nil {
				return err
			}
		}
	}
	if _, both := r.GPU.NVReg[coherentOption]; both && r.GPU.CDMM != "" {
		return r.Errorf("gpu.nvreg."+coherentOption, "keep gpu.cdmm", "gpu.cdmm sets %s already", coherentOption)
	}
	return nil
}

func (r *Recipe) validateMIG() error {
	m := r.GPU.MIG
	if !r.has("gpu.mig") {
		return nil
	}
	if len(m.Layouts) == 0 {
		return r.Errorf("gpu.mig", "name what the GPUs are cut into", "gpu.mig has no layouts")
	}
	if !oneOf(m.Tool, "mig-parted", "nvidia-smi") {
		return r.Errorf("gpu.mig.tool", "", "gpu.mig.tool %q is not mig-parted or nvidia-smi", m.Tool)
	}
	var names []string
	for i, l := range m.Layouts {
		field := fmt.Sprintf("gpu.mig.layouts[%d]", i)
		if err := r.validateLayout(field, l); err != nil {
			return err
		}
		if oneOf(l.Name, names...) {
			return r.Errorf(field+".name", "", "layout %s is listed twice", l.Name)
		}
		names = append(names, l.Name)
	}
	if _, ok := m.Layout(); !ok {
		if m.Select == "" {
			return r.Errorf("gpu.mig", "select: one of "+strings.Join(names, ", "), "gpu.mig has several layouts and no select")
		}
		return r.Errorf("gpu.mig.select", "the layouts are "+strings.Join(names, ", "), "gpu.mig.select: no layout is called %q", m.Select)
	}
	return nil
}

func (r *Recipe) validateLayout(field string, l MIGLayout) error {
	if err := first(r.required(field+".name", l.Name, "name: serving"), r.match(field+".name", l.Name, nameRule)); err != nil {
		return err
	}
	if len(l.GPUs) == 0 {
		return r.Errorf(field, "for example gpus: [{profiles: {1g.10gb: 7}}]", "layout %s says nothing of any GPU", l.Name)
	}
	for i, e := range l.GPUs {
		if err := r.validateEntry(fmt.Sprintf("%s.gpus[%d]", field, i), e); err != nil {
			return err
		}
	}
	return nil
}

func (r *Recipe) validateEntry(field string, e MIGEntry) error {
	if e.Board != "" && !oneOf(e.Board, r.GPU.Boards...) {
		return r.Errorf(field+".board", "gpu.boards has "+strings.Join(r.GPU.Boards, ", "), "%s.board: gpu.boards does not name %q", field, e.Board)
	}
	if r.has(field+".devices") && len(e.Devices) == 0 {
		return r.Errorf(field+".devices", "leave it out for all of them", "%s.devices is empty", field)
	}
	seen := map[int]bool{}
	for i, d := range e.Devices {
		switch at := fmt.Sprintf("%s.devices[%d]", field, i); {
		case d < 0 || r.GPU.Count > 0 && d >= r.GPU.Count:
			return r.Errorf(at, "they are numbered from 0", "%s: no GPU has the index %d", at, d)
		case seen[d]:
			return r.Errorf(at, "", "%s: GPU %d is listed twice", at, d)
		}
		seen[d] = true
	}
	for _, p := range sortedKeys(e.Profiles) {
		at := field + ".profiles." + p
		if err := r.match(at, p, profileRule); err != nil {
			return err
		}
		if e.Profiles[p] < 1 {
			return r.Errorf(at, "take it out", "%s: %d instances", at, e.Profiles[p])
		}
	}
	return nil
}

func (r *Recipe) validateDevicePlugin() error {
	p := r.GPU.DevicePlugin
	if !r.has("gpu.device_plugin") {
		return nil
	}
	const field = "gpu.device_plugin"
	if err := r.required(field+".strategy", p.Strategy, "strategy: mixed"); err != nil {
		return err
	}
	switch {
	case !oneOf(p.Strategy, "none", "single", "mixed"):
		return r.Errorf(field+".strategy", "", "%s.strategy %q is not none, single or mixed", field, p.Strategy)
	case !oneOf(p.DeviceList, "envvar", "volume-mounts", "cdi-annotations", "cdi-cri"):
		return r.Errorf(field+".device_list", "", "%s.device_list %q is not envvar, volume-mounts, cdi-annotations or cdi-cri", field, p.DeviceList)
	case !oneOf(p.DeviceID, "uuid", "index"):
		return r.Errorf(field+".device_id", "", "%s.device_id %q is not uuid or index", field, p.DeviceID)
	}
	return nil
}

func (r *Recipe) validateSharing() error {
	s := r.GPU.Sharing
	if !r.has("gpu.sharing") {
		return nil
	}
	switch {
	case !oneOf(s.Mode, "time-slicing", "mps"):
		return r.Errorf("gpu.sharing", "", "gpu.sharing.mode %q is not time-slicing or mps", s.Mode)
	case r.GPU.DevicePlugin.Strategy == "":
		return r.Errorf("gpu.sharing", "add device_plugin: {strategy: none}", "gpu.sharing is done by the device plugin, and there is no gpu.device_plugin")
	case s.Replicas != 0 && len(s.Resources) > 0:
		return r.Errorf("gpu.sharing.replicas", "", "gpu.sharing has both replicas and resources")
	case s.Mode == "mps" && s.OneEach:
		return r.Errorf("gpu.sharing.one_each", "", "gpu.sharing.one_each is for time-slicing only")
	case len(s.Resources) == 0:
		return r.replicas("gpu.sharing", s.Replicas)
	}
	seen := map[string]bool{}
	for i, d := range s.Resources {
		field := fmt.Sprintf("gpu.sharing.resources[%d]", i)
		if err := first(r.required(field+".name", d.Name, "name: nvidia.com/gpu"), r.match(field+".name", d.Name, resourceRule), r.replicas(field, d.Replicas)); err != nil {
			return err
		}
		if seen[d.Name] {
			return r.Errorf(field+".name", "", "resource %s is listed twice", d.Name)
		}
		seen[d.Name] = true
	}
	return nil
}

func (r *Recipe) replicas(field string, n int) error {
	if n >= 2 && n <= 256 {
		return nil
	}
	return r.Errorf(field+".replicas", "for example replicas: 4", "%s.replicas %d is not from 2 to 256", field, n)
}

func (r *Recipe) validateVGPU() error {
	v := r.GPU.VGPU
	if !r.has("gpu.vgpu") {
		return nil
	}
	if !oneOf(v.Role, "host", "guest") {
		return r.Errorf("gpu.vgpu", "", "gpu.vgpu.role %q is not host or guest", v.Role)
	}
	if len(v.Peers) == 0 {
		return r.Errorf("gpu.vgpu", "the driver versions at the other end", "gpu.vgpu.peers is missing")
	}
	return r.matchAll("gpu.vgpu.peers", v.Peers, driverVersionRule)
}

func (r *Recipe) validateClocks() error {
	c := r.GPU.Clocks
	if err := first(r.optional("gpu.clocks.gpu", c.GPU, clockRule), r.optional("gpu.clocks.memory", c.Memory, clockRule)); err != nil {
		return err
	}
	if c.Power < 0 || c.Power > 5000 {
		return r.Errorf("gpu.clocks.power", "", "gpu.clocks.power %d is not a number of watts", c.Power)
	}
	if n := r.GPU.IMEX.Channels; n < 0 || n > 1<<20 {
		return r.Errorf("gpu.imex.channels", "", "gpu.imex.channels %d is not from 0 to 1048576", n)
	}
	return nil
}
