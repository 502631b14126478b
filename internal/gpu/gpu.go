// Package gpu turns the GPU section of a recipe into what an image needs: it
// judges MIG layouts and sharing, and renders the files that NVIDIA's own
// tools read, the units that apply them at boot, and the health checks that
// keep a node from drifting away from them. It looks at no machine; the
// node's half is internal/gpu/probe.
package gpu

import (
	"fmt"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/recipe"
)

// Where the files lie in an image.
const (
	migConfigPath    = "/etc/nvidia-mig-manager/config.yaml"
	migDropInPath    = "/etc/systemd/system/nvidia-mig-manager.service.d/50-turnout.conf"
	devicePluginPath = "/etc/nvidia-device-plugin/config.yaml"
	modprobePath     = "/etc/modprobe.d/50-turnout-gpu.conf"
	modulesLoadPath  = "/etc/modules-load.d/50-turnout-gpu.conf"
	unitPath         = "/usr/lib/systemd/system/" + applyUnit
)

// Units that images with GPUs start.
const (
	applyUnit      = "turnout-gpu.service"
	migManagerUnit = "nvidia-mig-manager.service"
	fabricUnit     = "nvidia-fabricmanager.service"
	imexUnit       = "nvidia-imex.service"
)

const agentPath = "/usr/lib/turnout/nodeagent"

// has tells whether the image has anything to do with GPUs.
func has(r *recipe.Recipe) bool { return r.Driver.Family != "" || r.HasGPU() }

// boards returns the rows of the recipe's boards that the tables know.
func boards(t *compat.Tables, r *recipe.Recipe) []compat.Board {
	var out []compat.Board
	for _, name := range r.GPU.Boards {
		if b, ok := t.Board(name); ok {
			out = append(out, b)
		}
	}
	return out
}

// platform returns the recipe's platform.
func platform(t *compat.Tables, r *recipe.Recipe) (compat.Platform, bool) {
	return t.PlatformFor(r.GPU.Platform, r.GPU.Boards, r.GPU.Count)
}

// migBoards are the boards that can be cut.
func migBoards(t *compat.Tables, r *recipe.Recipe) []compat.Board {
	return slices.DeleteFunc(boards(t, r), func(b compat.Board) bool { _, ok := t.MIGTable(b); return !ok })
}

// asksFor tells whether the recipe names a package itself.
func asksFor(r *recipe.Recipe, name string) bool {
	is := func(p string) bool { n, _, _ := strings.Cut(p, "="); return n == name }
	return slices.ContainsFunc(r.Packages, is) || slices.Contains(r.Driver.Packages, name)
}

// asksForRole is asksFor for all packages of a role.
func asksForRole(t *compat.Tables, r *recipe.Recipe, role string) bool {
	is := func(p string) bool {
		n, _, _ := strings.Cut(p, "=")
		row, ok := t.Package(n)
		return ok && row.Role == role
	}
	return slices.ContainsFunc(r.Packages, is) || slices.ContainsFunc(r.Driver.Packages, is)
}

func entryField(layout, entry int) string {
	return fmt.Sprintf("gpu.mig.layouts[%d].gpus[%d]", layout, entry)
}

// Pinned returns r with the driver's version that the lock has, for recipes
// that pin a branch only.
func Pinned(t *compat.Tables, r *recipe.Recipe, f *lock.File) *recipe.Recipe {
	if r.Driver.Family == "" || r.Driver.Version != "" || f == nil {
		return r
	}
	c := *r
	for _, p := range slices.Concat(f.Build, f.Packages) {
		if row, ok := t.Package(p.Name); ok && row.Family && strings.HasPrefix(row.Role, "module-") {
			c.Driver.Version = lock.Upstream(p.Version)
			break
		}
	}
	return &c
}
