package rootfs

import (
	"archive/tar"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/deb"
	"github.com/turnout-project/turnout/internal/deb/debtest"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/recipe"
)

// store is a set of real packages.
type store struct {
	packages []lock.Package
	paths    map[string]string
}

func (s *store) path(sum string) string { return s.paths[sum] }

func (s *store) add(t *testing.T, file string) {
	t.Helper()
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	p, err := deb.Open(file, deb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	c, err := p.Control()
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(raw)
	l := lock.Package{Name: c.Get("Package"), Version: c.Get("Version"), Architecture: c.Get("Architecture"),
		SizeBytes: int64(len(raw)), SHA256: hex.EncodeToString(sum[:])}
	s.packages = append(s.packages, l)
	s.paths[l.SHA256] = file
}

// without returns the set without packages whose names begin with prefix.
func (s *store) without(prefix string) *store {
	return &store{slices.DeleteFunc(slices.Clone(s.packages), func(p lock.Package) bool { return strings.HasPrefix(p.Name, prefix) }), s.paths}
}

// with returns the set and more packages, made by a test.
func (s *store) with(t *testing.T, ps ...debtest.Package) *store {
	t.Helper()
	more := &store{slices.Clone(s.packages), map[string]string{}}
	for sum, file := range s.paths {
		more.paths[sum] = file
	}
	for _, p := range ps {
		more.add(t, p.Write(t))
	}
	return more
}

// debian fetches a small Debian system with the machine's apt, from the
// machine's sources, into a cache that later runs use again.
func debian(t *testing.T) *store {
	t.Helper()
	needRoot(t)
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = t.TempDir()
	}
	dir := filepath.Join(cache, "turnout-test", "debian")
	s := &store{paths: map[string]string{}}
	if err := fetchDebian(dir); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skipf("no packages: %v", err)
	}
	files, err := filepath.Glob(filepath.Join(dir, "archives", "*.deb"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no packages in %q: %v", dir, err)
	}
	for _, f := range files {
		s.add(t, f)
	}
	return s
}

func fetchDebian(dir string) error {
	if _, err := os.Stat(dir + "/complete"); err == nil {
		return nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return err
	}
	for _, d := range []string{"lists/partial", "archives/partial"} {
		if err := os.MkdirAll(filepath.Join(dir, d), 0o755); err != nil {
			return err
		}
	}
	if err := os.WriteFile(dir+"/status", nil, 0o644); err != nil {
		return err
	}
	options := []string{"-q", "-o", "Dir::State::status=" + dir + "/status", "-o", "Dir::State::lists=" + dir + "/lists",
		"-o", "Dir::Cache::archives=" + dir + "/archives", "-o", "Dir::Cache::pkgcache=", "-o", "Dir::Cache::srcpkgcache=",
		"-o", "APT::Install-Recommends=false", "-o", "APT::Sandbox::User=root", "-o", "Debug::NoLocking=true"}
	for _, args := range [][]string{{"update"}, {"install", "-y", "--download-only", "?essential", "usr-is-merged", "systemd-sysv", "udev", "linux-image-cloud-" + arch()}} {
		out, err := exec.Command("apt-get", append(slices.Clone(options), args...)...).CombinedOutput()
		if err != nil {
			return fmt.Errorf("apt-get %s: %w: %s", args[0], err, out)
		}
	}
	return os.WriteFile(dir+"/complete", nil, 0o644)
}

func arch() string {
	out, _ := exec.Command("dpkg", "--print-architecture").Output()
	return strings.TrimSpace(string(out))
}

// diverter takes a file of coreutils for itself.
var diverter = debtest.Package{Name: "diverter", Fields: "Depends: coreutils\n",
	Control: map[string]string{"preinst": "#!/bin/sh\nset -e\n[ \"$1\" = install ]\n[ ! -e /usr/share/diverter ]\n" +
		"dpkg-divert --package diverter --add --rename --divert /usr/bin/nproc.real /usr/bin/nproc\n"},
	Data:     []tar.Header{debtest.Dir("./usr/share/diverter/"), debtest.File("./usr/bin/nproc", 0o755), debtest.File("./usr/share/diverter/f", 0o644)},
	Contents: map[string]string{"./usr/bin/nproc": "#!/bin/sh\necho 1\n", "./usr/share/diverter/f": "f"},
}

func testRecipe() *recipe.Recipe {
	return &recipe.Recipe{
		Kernel:   recipe.Kernel{ExcludeModules: []string{"sound/", "drivers/net/wireless/", "fs/ocfs2/"}},
		Files:    []recipe.File{{Path: "/etc/x.conf", Content: "x\n", Owner: "work:video"}},
		Users:    []recipe.User{{Name: "work", UID: 900, Groups: []string{"video"}, Home: "/var/lib/work"}},
		Services: recipe.Services{Enable: []string{"systemd-networkd.service"}, Mask: []string{"getty@tty1.service"}},
	}
}

// TestBuild builds a real Debian system twice, differently in all that must
// not matter, and wants the same bytes.
func TestBuild(t *testing.T) {
	s := debian(t).with(t, diverter)
	var packed []Packed
	var results []*Result
	base := filepath.Join(t.TempDir(), "base")
	for i, jobs := range []int{1, 4} {
		keep := func(write func(string) error) (string, error) { return base, write(base) }
		if i == 1 {
			keep = nil // in the tree itself, not in an overlay above what was kept
		}
		work := filepath.Join(t.TempDir(), strings.Repeat("x", 1+40*i))
		if i == 1 {
			slices.Reverse(s.packages)
			t.Setenv("TZ", "Asia/Tokyo")
			t.Setenv("XZ_OPT", "--nonsense")
		}
		r, err := Build(t.Context(), Spec{Packages: s.packages, DebPath: s.path, Recipe: testRecipe(), SourceDateEpoch: 1_700_000_000, WorkDir: work, Jobs: jobs, SaveBase: keep})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(r.Close)
		p, err := Pack(t.Context(), r.Dir, base+fmt.Sprint(i)+".squashfs", PackOptions{SourceDateEpoch: 1_700_000_000, Level: 3, Processors: 1 + i, Index: base + fmt.Sprint(i) + ".index"})
		if err != nil {
			t.Fatal(err)
		}
		packed, results = append(packed, p), append(results, r)
		t.Logf("took %v; %d bytes packed by %s", r.Timings, p.SizeBytes, p.Tool)
	}
	if unsquash, err := exec.Command("unsquashfs", "-l", base+"0.squashfs").Output(); err != nil || !bytes.Contains(unsquash, []byte("squashfs-root/etc/x.conf\n")) {
		t.Errorf("unsquashfs -l: %v: %.300s", err, unsquash)
	}
	if packed[0] != packed[1] {
		t.Errorf("not the same bytes: %+v and %+v; the trees differ in:\n%s", packed[0], packed[1], differences(t, results[0].Dir, results[1].Dir))
	}
	checkSystem(t, s, results[0])
	testFromBase(t, s, base, packed[0])
}

// testFromBase builds from the base that another build kept, and wants the
// bytes of a build from packages.
func testFromBase(t *testing.T, s *store, base string, want Packed) {
	spec := Spec{Packages: s.packages, DebPath: func(string) string { return "/nowhere" }, Recipe: testRecipe(), SourceDateEpoch: 1_700_000_000, WorkDir: t.TempDir(), Base: base}
	r, err := Build(t.Context(), spec)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(r.Close)
	t.Logf("from a base: %v", r.Timings)
	checkSystem(t, s, r)
	o := PackOptions{SourceDateEpoch: 1_700_000_000, Level: 3, Reuse: base + "0.squashfs", ReuseIndex: base + "0.index"}
	got, err := Pack(t.Context(), r.Dir, filepath.Join(spec.WorkDir, "root.squashfs"), o)
	if err != nil {
		t.Fatal(err)
	}
	if got.Reused != got.Blocks {
		t.Errorf("%d of %d blocks were reused; want all", got.Reused, got.Blocks)
	}
	if got.Reused = 0; got != want {
		t.Errorf("from a base: %+v; from packages: %+v", got, want)
	}
	// What went bad in the base is found.
	f, err := os.OpenFile(filepath.Join(base, baseTree, "usr/bin/dpkg"), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	one := make([]byte, 1)
	if _, err := f.ReadAt(one, 5000); err != nil {
		t.Fatal(err)
	}
	one[0] ^= 4
	if _, err := f.WriteAt(one, 5000); err != nil {
		t.Fatal(err)
	}
	spec.WorkDir = t.TempDir()
	if _, err := Build(t.Context(), spec); !errors.Is(err, ErrBase) {
		t.Errorf("a base with a bad byte: Build = %v; want %v", err, ErrBase)
	}
	spec.Base = t.TempDir()
	if _, err := Build(t.Context(), spec); !errors.Is(err, ErrBase) {
		t.Errorf("a base of nothing: Build = %v; want %v", err, ErrBase)
	}
}

func checkSystem(t *testing.T, s *store, r *Result) {
	t.Helper()
	if len(r.Installed) != len(s.packages) {
		t.Errorf("%d packages installed of %d", len(r.Installed), len(s.packages))
	}
	if !regexp.MustCompile(`^\d+\.\d+\.\d+.*cloud-`).MatchString(r.KernelRelease) {
		t.Errorf("kernel release %q", r.KernelRelease)
	}
	if image, err := os.ReadFile(r.KernelImage); err != nil || len(image) < 1<<20 {
		t.Errorf("kernel image %q: %d bytes, %v", r.KernelImage, len(image), err)
	}
	deps, err := os.ReadFile(filepath.Join(r.ModulesDir, "modules.dep"))
	if err != nil || !bytes.Contains(deps, []byte("kernel/drivers/md/dm-verity.ko")) || bytes.Contains(deps, []byte("kernel/fs/ocfs2/")) {
		t.Errorf("modules.dep, of %d bytes, is not that of the modules left (%v)", len(deps), err)
	}
	if vs := Policy(os.DirFS(r.Dir)); len(vs) > 0 {
		t.Errorf("policy: %v", vs)
	}
	for name, want := range map[string]string{"usr/bin/nproc": "#!/bin/sh\necho 1\n", "etc/x.conf": "x\n", "etc/machine-id": ""} {
		if got, err := os.ReadFile(filepath.Join(r.Dir, name)); err != nil || string(got) != want {
			t.Errorf("%s = %q, %v; want %q", name, got, err, want)
		}
	}
	for name, want := range map[string]bool{"usr/bin/nproc.real": true, "usr/sbin/init": true, "usr/sbin/policy-rc.d": false, "boot/vmlinuz-" + r.KernelRelease: false,
		systemUnits + "/multi-user.target.wants/systemd-networkd.service": true} {
		if _, err := os.Lstat(filepath.Join(r.Dir, name)); err == nil != want {
			t.Errorf("%s is there: %v; want %v", name, err == nil, want)
		}
	}
	if out, err := exec.Command("dpkg-divert", "--admindir="+r.Dir+"/"+adminDir, "--list", "/usr/bin/nproc").Output(); err != nil || string(out) != "diversion of /usr/bin/nproc to /usr/bin/nproc.real by diverter\n" {
		t.Errorf("dpkg-divert --list = %q, %v", out, err)
	}
	if out, err := exec.Command("dpkg", "--root="+r.Dir, "--audit").CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("dpkg --audit: %v: %s", err, out)
	}
}

// differences names the files in which two trees differ.
func differences(t *testing.T, a, b string) string {
	t.Helper()
	var out strings.Builder
	sums := [2]map[string]string{{}, {}}
	for i, dir := range []string{a, b} {
		err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
			if err != nil {
				return err
			}
			name, _ := filepath.Rel(dir, p)
			st, err := d.Info()
			if err != nil {
				return err
			}
			text := st.Mode().String()
			if st.Mode().IsRegular() {
				sum, _, err := hashFile(p)
				if err != nil {
					return err
				}
				text += sum
			}
			sums[i][name] = text
			return nil
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	for name, x := range sums[0] {
		if y := sums[1][name]; x != y {
			fmt.Fprintf(&out, "%s: %s, %s\n", name, x, y)
		}
		delete(sums[1], name)
	}
	for name := range sums[1] {
		fmt.Fprintf(&out, "%s: only in the second\n", name)
	}
	return out.String()
}

// TestBuildFails: the error of a broken package names it, shows what it said
// and where the rest is, and leaves nothing running or mounted.
func TestBuildFails(t *testing.T) {
	s := debian(t).without("linux-image")
	script := func(text string) string { return "#!/bin/sh\n" + text }
	tests := []struct {
		name  string
		p     debtest.Package
		names []string
		text  string
	}{
		{"postinst", debtest.Package{Name: "broken", Control: map[string]string{"postinst": script("echo the disk is on fire >&2\nexit 7\n")}}, []string{"broken"}, "the disk is on fire"},
		{"preinst", debtest.Package{Name: "broken", Control: map[string]string{"preinst": script("echo no, thanks\nexit 1\n")}}, nil, "no, thanks"},
		{"dependency", debtest.Package{Name: "broken", Fields: "Depends: package-of-no-lock\n"}, []string{"broken"}, "package-of-no-lock"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := s.with(t, tt.p)
			_, err := Build(t.Context(), Spec{Packages: s.packages, DebPath: s.path, SourceDateEpoch: 1, WorkDir: t.TempDir()})
			var se *ScriptError
			if !errors.As(err, &se) {
				t.Fatalf("Build = %v; want a *ScriptError", err)
			}
			if diff := cmp.Diff(tt.names, se.Packages); diff != "" {
				t.Errorf("packages (-want +got):\n%s", diff)
			}
			if log, err := os.ReadFile(se.Log); err != nil || !bytes.Contains(log, []byte(tt.text)) {
				t.Errorf("log %q: %v", se.Log, err)
			}
			if !strings.Contains(err.Error(), tt.text) || !strings.Contains(err.Error(), "broken") || !strings.Contains(err.Error(), se.Log) {
				t.Errorf("error = %v; want %q, the package and the log in it", err, tt.text)
			}
		})
	}
}

func TestBuildCancelled(t *testing.T) {
	s := debian(t).without("linux-image")
	ctx, cancel := context.WithCancel(t.Context())
	work := t.TempDir()
	_, err := Build(ctx, Spec{Packages: s.packages, DebPath: s.path, SourceDateEpoch: 1, WorkDir: work,
		Progress: func(stage string, done, total int64) {
			if stage == "configure" && done == 3 {
				cancel()
			}
		}})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Build = %v; want %v", err, context.Canceled)
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || bytes.Contains(mounts, []byte(work)) {
		t.Errorf("still mounted: %v", err)
	}
	if err := os.RemoveAll(filepath.Join(work, "root")); err != nil {
		t.Errorf("the tree is still in use: %v", err)
	}
}

func TestBuildSpec(t *testing.T) {
	for name, s := range map[string]Spec{"no packages": {WorkDir: "x"}, "no work folder": {Packages: []lock.Package{{}}}} {
		if _, err := Build(t.Context(), s); !errors.Is(err, ErrSpec) {
			t.Errorf("%s: Build = %v; want %v", name, err, ErrSpec)
		}
	}
}

func TestPackFails(t *testing.T) {
	out := filepath.Join(t.TempDir(), "out")
	if _, err := Pack(t.Context(), filepath.Join(t.TempDir(), "missing"), out, PackOptions{}); err == nil {
		t.Error("a missing tree was packed")
	}
	if _, err := os.Stat(out); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("a failed pack left %q (%v)", out, err)
	}
}
