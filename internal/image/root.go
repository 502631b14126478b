package image

import (
	"context"
	_ "embed"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/initrd"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/progress"
	"github.com/turnout-project/turnout/internal/recipe"
	"github.com/turnout-project/turnout/internal/rootfs"
)

// Where the agent lies in the root, and its unit.
const (
	agentPath = "/usr/lib/turnout/nodeagent"
	agentUnit = "turnout-nodeagent.service"
	guardUnit = "turnout-guard.service"
)

//go:embed turnout-nodeagent.service
var agentUnitText []byte

//go:embed turnout-guard.service
var guardUnitText []byte

// tmpUnit gives the read-only root a /tmp that can be written. Services with
// PrivateTmp= do not start without.
const tmpUnit = "tmp.mount"

//go:embed tmp.mount
var tmpUnitText []byte

// Files of a cached root.
const (
	rootFile    = "root.squashfs"
	kernelFile  = "vmlinuz"
	modulesDir  = "modules" // a subset of /lib/modules/<release>, for the initrds
	releaseFile = "release"
	digestFile  = "root.digest"
	listFile    = "packages.json" // the lock's packages and that of the driver's modules
)

// root is a packed root file system with what the boot files need of it.
type root struct {
	squashfs string // path
	kernel   string // path
	modules  string // path
	release  string // uname -r
	digest   string // of squashfs, as it was packed
	packages []lock.Package
}

// root returns the root file system, from the store if it is there.
func (b *build) root(ctx context.Context) (root, error) {
	key := b.key("root", b.in.root)
	dir, hit := b.lookup(key)
	if hit {
		b.Progress.Note("%-24s from the store: packages, files, node agent and keys are unchanged", "root file system")
	} else {
		b.Progress.Note("%-24s is made: %s", "root file system", b.why(nil))
		var err error
		if dir, err = b.keep(key, "root-result", func(path string) error { return b.makeRoot(ctx, path) }); err != nil {
			return root{}, err
		}
	}
	release, err := os.ReadFile(filepath.Join(dir, releaseFile))
	if err != nil {
		return root{}, fmt.Errorf("root file system in the store: %w; build with --no-cache", err)
	}
	digest, err := os.ReadFile(filepath.Join(dir, digestFile))
	if err != nil {
		return root{}, fmt.Errorf("root file system in the store: %w; build with --no-cache", err)
	}
	var list []lock.Package
	raw, err := os.ReadFile(filepath.Join(dir, listFile))
	if err == nil {
		err = json.Unmarshal(raw, &list)
	}
	if err != nil {
		return root{}, fmt.Errorf("root file system in the store: %w; build with --no-cache", err)
	}
	return root{
		packages: list,
		squashfs: filepath.Join(dir, rootFile), kernel: filepath.Join(dir, kernelFile),
		modules: filepath.Join(dir, modulesDir), release: string(release), digest: string(digest),
	}, nil
}

// makeRoot builds and packs the root into the folder dir.
func (b *build) makeRoot(ctx context.Context, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("root file system: %w", err)
	}
	kernel, _ := lock.Find(b.Lock.Packages, b.Lock.Kernel) // lock.Read saw to it
	release, err := kernelRelease(ctx, b.Store.Path(kernel.SHA256))
	if err != nil {
		return err
	}
	files, err := b.rootFiles(manifest.Kernel{Release: release, Package: kernel.Name, Version: kernel.Version})
	if err != nil {
		return err
	}
	packages, err := b.withModules(ctx, release)
	if err != nil {
		return err
	}
	res, err := b.tree(ctx, packages, files)
	if err != nil {
		return b.keepLogs(err)
	}
	defer res.Close()
	if err := b.pruneGSP(res.Dir); err != nil {
		return err
	}
	if err := b.checkModules(res.ModulesDir); err != nil {
		return err
	}
	if res.KernelRelease != release {
		return fmt.Errorf("root file system: kernel %s, but package %s holds %s", res.KernelRelease, kernel.Name, release)
	}
	if faults := rootfs.Policy(os.DirFS(res.Dir)); len(faults) > 0 {
		return &PolicyError{faults}
	}
	if err := initrd.Subset(filepath.Join(dir, modulesDir), res.ModulesDir, b.installerModules()); err != nil {
		return err
	}
	if err := copyTo(filepath.Join(dir, kernelFile), res.KernelImage); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, releaseFile), []byte(release), 0o644); err != nil {
		return err
	}
	list, err := json.Marshal(packages.list)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, listFile), list, 0o644); err != nil {
		return err
	}
	task := b.Progress.Start("pack root", progress.Bytes)
	packed, err := b.pack(ctx, res.Dir, filepath.Join(dir, rootFile), packages, task.Update)
	if err != nil {
		return err
	}
	task.End(fmt.Sprintf("%s by %s, %d of %d blocks from the store", progress.Size(packed.SizeBytes), packed.Tool, packed.Reused, packed.Blocks))
	return os.WriteFile(filepath.Join(dir, digestFile), []byte("sha256:"+packed.SHA256), 0o644)
}

// Files of packed blocks that are kept for later builds.
const (
	blocksFile = "blocks"
	blocksList = "blocks.index"
)

// pack packs a tree. What it has in common with the first root that was made
// of these packages is not compressed again.
func (b *build) pack(ctx context.Context, tree, out string, ps packages, update func(done, total int64)) (rootfs.Packed, error) {
	o := rootfs.PackOptions{SourceDateEpoch: b.Lock.SourceDateEpoch, Scratch: b.work.path(""), Progress: update}
	list, err := jsonDigest(ps.list, b.Recipe.Kernel.ExcludeModules)
	if err != nil {
		return rootfs.Packed{}, err
	}
	key := b.key("blocks", list)
	earlier, hit := b.lookup(key)
	if hit {
		o.Reuse, o.ReuseIndex = filepath.Join(earlier, blocksFile), filepath.Join(earlier, blocksList)
	}
	o.Index = b.work.path(blocksList)
	packed, err := rootfs.Pack(ctx, tree, out, o)
	if err != nil || b.NoCache || hit && packed.Reused > 0 {
		return packed, err
	}
	if hit { // damaged, or made by another mksquashfs: of no more use
		if err := os.RemoveAll(earlier); err != nil {
			return packed, fmt.Errorf("store: %w", err)
		}
	}
	_, err = b.Store.PutKey(key, func(path string) error {
		return errors.Join(os.Mkdir(path, 0o755), os.Link(out, filepath.Join(path, blocksFile)),
			os.Rename(o.Index, filepath.Join(path, blocksList)))
	})
	return packed, err
}

// tree makes the tree of the root, from a base in the store if there is one.
func (b *build) tree(ctx context.Context, ps packages, files []rootfs.File) (*rootfs.Result, error) {
	st := &stages{reporter: b.Progress, prefix: "root: "}
	spec := rootfs.Spec{
		Packages: ps.list, DebPath: ps.path, Recipe: absoluteSources(b.Recipe), ExtraFiles: files,
		EnableUnits: []string{agentUnit, guardUnit, tmpUnit}, SourceDateEpoch: b.Lock.SourceDateEpoch, Accounts: b.Lock.Accounts,
		WorkDir: b.work.path("rootfs"), Log: b.Log, Progress: st.update,
	}
	run := func() (*rootfs.Result, error) {
		defer st.end()
		return rootfs.Build(ctx, spec)
	}
	digest, err := spec.BaseDigest()
	if err != nil {
		return nil, err
	}
	key := "imgbuild base " + digest + " by " + programDigest()
	base, hit := b.lookup(key)
	if hit {
		b.Progress.Note("%-24s from the store: the same packages were configured by an earlier build", "configured packages")
		spec.Base = base
		res, err := run()
		if !errors.Is(err, rootfs.ErrBase) {
			return res, err
		}
		b.Progress.Note("making it anew: %v", err)
		if err := rootfs.RemoveBase(base); err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
		spec.Base = ""
	} else {
		b.Progress.Note("%-24s are made: %s", "configured packages", b.why(baseFacts))
	}
	if !b.NoCache {
		spec.SaveBase = func(write func(string) error) (string, error) { return b.Store.PutKey(key, write) }
	}
	return run()
}

// absoluteSources returns r with the sources of its files as absolute paths,
// which is what rootfs opens.
func absoluteSources(r *recipe.Recipe) *recipe.Recipe {
	dir, err := filepath.Abs(filepath.Dir(r.Path))
	if err != nil {
		dir = filepath.Dir(r.Path) // no working directory: opening the file will say so
	}
	c := *r
	c.Path = "/"
	c.Files = slices.Clone(r.Files)
	for i, f := range c.Files {
		if f.Source != "" {
			c.Files[i].Source = filepath.Join(dir, f.Source)
		}
	}
	return &c
}

// rootFiles are the files that every image's root has.
func (b *build) rootFiles(kernel manifest.Kernel) ([]rootfs.File, error) {
	identity, err := json.MarshalIndent(manifest.Identity{
		Name: b.Recipe.Name, Version: b.Recipe.Version, Kernel: kernel,
		Health: b.Recipe.Health, Boot: b.Recipe.Boot, Update: b.Recipe.Update, Inputs: b.in.root,
	}, "", " ")
	if err != nil {
		return nil, fmt.Errorf("image identity: %w", err)
	}
	return []rootfs.File{
		{Path: agentPath, Source: b.Agent, Mode: 0o755},
		{Path: "/usr/lib/systemd/system/" + agentUnit, Content: agentUnitText},
		{Path: "/usr/lib/systemd/system/" + guardUnit, Content: guardUnitText},
		{Path: "/usr/lib/systemd/system/" + tmpUnit, Content: tmpUnitText},
		{Path: manifest.TrustPath, Content: b.trust},
		{Path: manifest.ImagePath, Content: append(identity, '\n')},
	}, nil
}

// keepLogs moves the log of the packages' scripts out of the work folder and
// names it in the error.
func (b *build) keepLogs(err error) error {
	from := b.work.path("rootfs/configure.log")
	if _, statErr := os.Stat(from); statErr != nil {
		return err
	}
	to := filepath.Join(b.Store.Dir(), b.Recipe.Name+"-configure.log")
	if mvErr := os.Rename(from, to); mvErr != nil {
		return errors.Join(err, mvErr)
	}
	return fmt.Errorf("%w; what the packages' scripts said is in %s", err, to)
}

// stages turns the stages of rootfs into tasks.
type stages struct {
	reporter *progress.Reporter
	prefix   string // before the name of each stage
	name     string
	task     *progress.Task
}

func (s *stages) update(stage string, done, total int64) {
	if stage != s.name {
		s.end()
		unit := progress.Items
		if strings.HasSuffix(stage, "unpack") || stage == "restore packages" {
			unit = progress.Bytes
		}
		s.name, s.task = stage, s.reporter.Start(s.prefix+stage, unit)
	}
	if done > 0 || total > 0 {
		s.task.Update(done, total)
	}
}

func (s *stages) end() {
	s.task.End("")
	s.name, s.task = "", nil
}

func copyTo(dst, src string) error {
	in, err := os.Open(src)
	if err != nil {
		return err
	}
	defer func() { _ = in.Close() }() // read only
	out, err := os.Create(dst)
	if err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return errors.Join(err, out.Close())
}
