package gpu

import (
	"maps"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/recipe"
)

// Resource is what the device plugin offers on a node.
type Resource struct {
	Name  string // "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"
	Count int    // per node; 0 when gpu.count is not known

	base string // Name before sharing renamed it
}

const wholeGPU = "nvidia.com/gpu"

// Resources returns what Kubernetes is offered on a node of the recipe,
// sorted by name; nil without a device plugin.
func Resources(t *compat.Tables, r *recipe.Recipe) []Resource {
	if r.GPU.DevicePlugin.Strategy == "" {
		return nil
	}
	counts := devices(t, r)
	var out []Resource
	for _, name := range slices.Sorted(maps.Keys(counts)) {
		res := Resource{Name: name, base: name, Count: counts[name]}
		if n, shared := replicas(r.GPU.Sharing, name); shared {
			res.Count *= n
			if r.GPU.Sharing.Rename {
				res.Name += ".shared"
			}
		}
		out = append(out, res)
	}
	return out
}

// replicas returns how many containers share a device of that resource.
func replicas(s recipe.Sharing, name string) (int, bool) {
	if s.Mode == "" {
		return 1, false
	}
	for _, d := range s.Resources {
		if d.Name == name {
			return d.Replicas, true
		}
	}
	return s.Replicas, len(s.Resources) == 0
}

// devices counts the devices of a node by resource.
func devices(t *compat.Tables, r *recipe.Recipe) map[string]int {
	layout, ok := r.GPU.MIG.Layout()
	entries, err := expand(t, r, layout)
	if !ok || err != nil || r.GPU.DevicePlugin.Strategy == "none" {
		return map[string]int{wholeGPU: r.GPU.Count}
	}
	out := map[string]int{}
	for _, e := range entries {
		n := len(e.Devices)
		if e.Devices == nil && len(entries) == 1 {
			n = r.GPU.Count
		}
		if len(e.Profiles) == 0 {
			out[wholeGPU] += n
		}
		for p, k := range e.Profiles {
			out[migResource(r.GPU.DevicePlugin.Strategy, p)] += n * k
		}
	}
	return out
}

// migResource is the resource of a MIG profile.
func migResource(strategy, profile string) string {
	if strategy == "single" {
		return wholeGPU
	}
	return "nvidia.com/mig-" + strings.ReplaceAll(profile, "+", ".")
}

func resourceNames(rs []Resource) string {
	var out []string
	for _, r := range rs {
		out = append(out, r.base)
	}
	return strings.Join(out, ", ")
}
