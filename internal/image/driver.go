package image

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/egress"
	"github.com/turnout-project/turnout/internal/gpu"
	"github.com/turnout-project/turnout/internal/kmod"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/progress"
	"github.com/turnout-project/turnout/internal/recipe"
)

// equip returns r with the files, units and health checks that its sections
// on GPUs and egress stand for. What r says itself takes precedence.
func equip(r *recipe.Recipe, f *lock.File) (*recipe.Recipe, error) {
	t := compat.Default()
	pinned := gpu.Pinned(t, r, f)
	files, err := gpu.Files(t, pinned)
	if err != nil {
		return nil, err
	}
	units, err := gpu.Units(t, pinned)
	if err != nil {
		return nil, err
	}
	checks, err := gpu.Checks(t, pinned)
	if err != nil {
		return nil, err
	}
	files = append(files, egress.Files(r)...)
	units = append(units, egress.Units(r)...)
	checks = append(checks, egress.Checks(r)...)
	if len(files)+len(units)+len(checks) == 0 {
		return r, nil
	}
	c := *pinned
	// The last file of a path wins, and the recipe's are behind.
	c.Files = slices.Concat(files, r.Files)
	c.Services.Enable = slices.Clone(r.Services.Enable)
	for _, u := range units {
		if !slices.Contains(c.Services.Enable, u) && !slices.Contains(r.Services.Mask, u) {
			c.Services.Enable = append(c.Services.Enable, u)
		}
	}
	c.Health.Checks = slices.Clone(r.Health.Checks)
	for _, k := range checks {
		if !slices.ContainsFunc(r.Health.Checks, func(own manifest.Check) bool { return own.Name == k.Name }) {
			c.Health.Checks = append(c.Health.Checks, k)
		}
	}
	return &c, nil
}

// packages are the packages of a root and where they are.
type packages struct {
	list []lock.Package
	path func(sha256 string) string
}

// withModules returns the packages of the lock and, for a recipe with a
// driver, one with its kernel modules, which are compiled unless the store
// has them.
func (b *build) withModules(ctx context.Context, release string) (packages, error) {
	ps := packages{b.Lock.Packages, b.Store.Path}
	if b.Recipe.Driver.Family == "" {
		return ps, nil
	}
	st := &stages{reporter: b.Progress, prefix: "modules: "}
	spec := kmod.Spec{
		Packages: b.Lock.Build, Sources: moduleSources(b.Lock), DebPath: b.Store.Path, Kernel: release, Architecture: b.Lock.Architecture,
		Driver: b.Recipe.Driver.Version, Modules: b.Recipe.Driver.Modules, SourceDateEpoch: b.Lock.SourceDateEpoch,
		WorkDir: b.work.path("kmod"), LogPath: filepath.Join(b.Store.Dir(), b.Recipe.Name+"-modules.log"), Log: b.Log,
		Progress: st.update,
	}
	if b.Boot != nil {
		spec.Sign = b.Boot.SignModule
	}
	key := "imgbuild modules " + spec.Key()
	modules, hit := b.lookup(key)
	if hit {
		b.Progress.Note("%-24s from the store: driver, kernel and compiler are unchanged", "kernel modules")
	} else {
		if err := os.MkdirAll(spec.WorkDir, 0o755); err != nil {
			return ps, err
		}
		var err error
		modules, err = b.keep(key, "modules", func(path string) error { return kmod.Compile(ctx, spec, path) })
		st.end()
		if err != nil {
			return ps, err
		}
	}
	deb := b.work.path("modules.deb")
	if err := kmod.Pack(spec, modules, deb); err != nil {
		return ps, err
	}
	extra, err := spec.Describe(deb)
	if err != nil {
		return ps, err
	}
	ps.list = append(slices.Clone(ps.list), extra)
	slices.SortFunc(ps.list, func(x, y lock.Package) int { return strings.Compare(x.Name, y.Name) })
	ps.path = func(sum string) string {
		if sum == extra.SHA256 {
			return deb
		}
		return b.Store.Path(sum)
	}
	return ps, nil
}

// moduleSources are the packages of a lock with sources of kernel modules.
func moduleSources(f *lock.File) []string {
	t := compat.Default()
	var names []string
	for _, p := range f.Build {
		if row, ok := t.Package(p.Name); ok && row.Role == "module-source" {
			names = append(names, p.Name)
		}
	}
	return names
}

// checkModules refuses an image whose driver nobody could load.
func (b *build) checkModules(modulesDir string) error {
	if b.Recipe.Driver.Family == "" {
		return nil
	}
	err := kmod.CheckDepends(modulesDir)
	var missing *kmod.MissingError
	if errors.As(err, &missing) {
		return b.Recipe.Errorf("kernel.exclude_modules", "keep it: an entry that begins with \"!\", such as \"!drivers/gpu/drm/drm.ko\", overrules the prefixes", "%v", missing)
	}
	return err
}

// pruneGSP removes the GSP firmware that no board of the recipe loads, and
// says what that was.
func (b *build) pruneGSP(root string) error {
	r := b.Recipe
	needed, known := compat.Default().GSPImages(r.GPU.Boards)
	if r.Driver.Family == "" || r.Firmware.GSP != "needed" || !known {
		return nil
	}
	files, err := filepath.Glob(filepath.Join(root, "usr/lib/firmware/nvidia/*/gsp_*.bin"))
	if err != nil {
		return err
	}
	var dropped []string
	var size int64
	for _, name := range files {
		image := strings.TrimSuffix(filepath.Base(name), ".bin")
		version := filepath.Base(filepath.Dir(name))
		if slices.Contains(needed, image) && version == r.Driver.Version {
			needed = slices.DeleteFunc(needed, func(n string) bool { return n == image })
			continue
		}
		st, err := os.Stat(name)
		if err == nil {
			err = os.Remove(name)
		}
		if err != nil {
			return fmt.Errorf("GSP firmware: %w", err)
		}
		size += st.Size()
		dropped = append(dropped, version+"/"+image)
	}
	if len(needed) > 0 && r.Driver.Flavour == "open" {
		return errors.New("GSP firmware: the image has no " + strings.Join(needed, ", ") + " of driver " + r.Driver.Version + ", which the boards of gpu.boards load")
	}
	if len(dropped) > 0 {
		b.Progress.Note("%-24s left out %s (%s): no board of gpu.boards loads it", "GSP firmware", strings.Join(dropped, ", "), progress.Size(size))
	}
	return nil
}
