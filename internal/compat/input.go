package compat

import (
	"fmt"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/recipe"
)

// FromRecipe makes an Input of a recipe and, if there is one, its lock.
// Without a lock (nil) the parts of the driver are known by name only.
func FromRecipe(t *Tables, r *recipe.Recipe, f *lock.File, now time.Time) Input {
	d := r.Driver
	in := Input{
		Now: now, Architecture: r.Architecture,
		Kernel: Kernel{Release: strings.TrimPrefix(r.Kernel.Package, "linux-image-"), Version: sourceVersion(r.Kernel.Version)},
		Boards: r.GPU.Boards, Platform: r.GPU.Platform, Count: r.GPU.Count, CUDA: r.GPU.CUDA,
		CDMM: r.GPU.CDMM, NVReg: r.GPU.NVReg,
		ModulesLoad: modulesLoad(t, r), InitrdModules: r.Boot.Modules,
		Kubernetes: r.GPU.DevicePlugin.Strategy != "",
		VGPU:       VGPU{Role: r.GPU.VGPU.Role, Peers: r.GPU.VGPU.Peers},
	}
	if d.Family != "" {
		in.Driver = Driver{Flavour: d.Flavour, Branch: d.BranchNumber(), Version: d.Version}
	}
	fields := askedFor(r)
	if f == nil {
		for name, field := range fields {
			in.Components = append(in.Components, Component{Package: name, Field: field})
		}
		sortComponents(in.Components)
		return in
	}
	in.Locked = true
	if k, ok := lock.Find(f.Packages, f.Kernel); ok {
		in.Kernel = Kernel{Release: strings.TrimPrefix(k.Name, "linux-image-"), Version: sourceVersion(k.Version)}
	}
	in.Components = append(components(f.Packages, fields, false), components(f.Build, fields, true)...)
	return in
}

// askedFor maps the names of packages that a recipe names to its fields.
func askedFor(r *recipe.Recipe) map[string]string {
	fields := map[string]string{}
	for _, l := range []struct {
		field string
		names []string
	}{{"packages", r.Packages}, {"driver.packages", r.Driver.Packages}, {"firmware.packages", r.Firmware.Packages}} {
		for i, p := range l.names {
			name, _, _ := strings.Cut(p, "=")
			fields[name] = fmt.Sprintf("%s[%d]", l.field, i)
		}
	}
	return fields
}

func components(ps []lock.Package, fields map[string]string, build bool) []Component {
	var out []Component
	for _, p := range ps {
		out = append(out, Component{Package: p.Name, Version: lock.Upstream(p.Version), Full: p.Version, Field: fields[p.Name], Build: build})
	}
	return out
}

// sourceVersion returns the version of the kernel's sources, "6.1.176" of the
// package version "6.1.176-1".
func sourceVersion(version string) string {
	v := lock.Upstream(version)
	if i := strings.IndexAny(v, "~+"); i >= 0 {
		v = v[:i]
	}
	return v
}

// modulesLoad returns the modules that the recipe's files name for
// systemd-modules-load, and those that internal/gpu adds for the platform.
func modulesLoad(t *Tables, r *recipe.Recipe) []string {
	var names []string
	if p, ok := t.PlatformFor(r.GPU.Platform, r.GPU.Boards, r.GPU.Count); ok && slices.Contains(p.Needs, "ib_umad") {
		names = append(names, "ib_umad")
	}
	for _, f := range r.Files {
		if path.Dir(f.Path) != "/etc/modules-load.d" {
			continue
		}
		for line := range strings.Lines(f.Content) {
			if m := strings.TrimSpace(line); m != "" && !strings.HasPrefix(m, "#") {
				names = append(names, m)
			}
		}
	}
	return names
}
