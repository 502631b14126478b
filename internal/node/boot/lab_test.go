//go:build linux

package boot

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/initrd"
	"github.com/turnout-project/turnout/internal/uki"
	"github.com/turnout-project/turnout/internal/verity"
)

// These tests start the real initrd on a real kernel in QEMU (no firmware:
// -kernel), with a real disk: dm-verity, squashfs, ext4 and FAT are the
// kernel's. They need root for nothing, but the tools below, and a Debian
// kernel package, which they fetch once with apt-get into the user's cache.

const stub = "/usr/lib/systemd/boot/efi/linuxx64.efi.stub"

// need skips a test for want of a tool; in CI it fails.
func need(t *testing.T, tools ...string) {
	t.Helper()
	if testing.Short() {
		t.Skip("starts virtual machines: not with -short")
	}
	if runtime.GOARCH != "amd64" {
		t.Skip("starts amd64 machines")
	}
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			lack(t, tool)
		}
	}
	if _, err := os.Stat(stub); err != nil {
		lack(t, stub)
	}
}

func lack(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("this test needs %s; run scripts/deps.sh", what)
	}
	t.Skipf("this test needs %s; run scripts/deps.sh", what)
}

// kernel is an unpacked Debian kernel package.
type kernel struct{ image, tree, release string }

var getKernel = sync.OnceValues(func() (kernel, error) {
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	dir := filepath.Join(cache, "turnout-test", "kernel-amd64")
	if found, _ := filepath.Glob(dir + "/boot/vmlinuz-*"); len(found) == 0 {
		if err := fetchKernel(dir); err != nil {
			return kernel{}, err
		}
	}
	found, _ := filepath.Glob(dir + "/boot/vmlinuz-*")
	release := strings.TrimPrefix(filepath.Base(found[0]), "vmlinuz-")
	return kernel{found[0], filepath.Join(dir, "lib/modules", release), release}, nil
})

// fetchKernel unpacks the newest kernel that apt knows: the generic one, since
// the cloud kernel has no hardware watchdog.
func fetchKernel(dir string) error {
	out, err := exec.Command("apt-cache", "depends", "linux-image-amd64").Output()
	if err != nil {
		return fmt.Errorf("apt-cache: %w", err)
	}
	var name string
	for line := range strings.Lines(string(out)) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == "Depends:" && strings.HasPrefix(f[1], "linux-image-") {
			name = f[1]
		}
	}
	if name == "" {
		return errors.New("apt knows no kernel package; run apt-get update")
	}
	tmp := dir + ".new"
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return err
	}
	script := fmt.Sprintf("cd %q && apt-get download %s && dpkg-deb -x %s_*.deb . && rm *.deb && depmod -b . %s && mv %q %q",
		tmp, name, name, strings.TrimPrefix(name, "linux-image-"), tmp, dir)
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		return fmt.Errorf("fetching %s: %w: %s", name, err, out)
	}
	return nil
}

func command(t *testing.T, name string, args ...string) {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
}

// lab is a built initrd and two roots, shared by the tests of this file.
type lab struct {
	kernel kernel
	initrd string
	roots  [2]root
}

type root struct {
	path, tree string // squashfs and verity tree
	hash       string
}

var theLab struct {
	once sync.Once
	lab  *lab
}

func newLab(t *testing.T) *lab {
	t.Helper()
	need(t, "qemu-system-x86_64", "mksquashfs", "mkfs.ext4", "e2fsck", "depmod", "apt-get", "dpkg-deb")
	theLab.once.Do(func() {
		k, err := getKernel()
		if err != nil {
			t.Fatal(err)
		}
		dir, err := os.MkdirTemp("", "turnout-boot-*")
		if err != nil {
			t.Fatal(err)
		}
		l := &lab{kernel: k, initrd: filepath.Join(dir, "initrd")}
		l.buildInitrd(t, dir)
		for i := range l.roots {
			l.roots[i] = buildRoot(t, dir, i)
		}
		theLab.lab = l
	})
	if theLab.lab == nil {
		t.Fatal("the lab was not built, see the first test")
	}
	return theLab.lab
}

func TestMain(m *testing.M) {
	code := m.Run()
	if theLab.lab != nil {
		_ = os.RemoveAll(filepath.Dir(theLab.lab.initrd))
	}
	os.Exit(code)
}

func (l *lab) buildInitrd(t *testing.T, dir string) {
	t.Helper()
	agent := filepath.Join(dir, "nodeagent")
	command(t, "go", "build", "-o", agent, "github.com/turnout-project/turnout/cmd/nodeagent")
	b, err := os.ReadFile(agent)
	if err != nil {
		t.Fatal(err)
	}
	mods, err := initrd.Modules(l.kernel.tree, initrd.Slot)
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(l.initrd)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := initrd.Build(f, initrd.Contents{Init: b, Release: l.kernel.release, Modules: mods}); err != nil {
		t.Fatal(err)
	}
}

// buildRoot makes a small root: our test init, and the tools for the state
// partition with their libraries from this machine.
func buildRoot(t *testing.T, dir string, n int) root {
	t.Helper()
	top := filepath.Join(dir, fmt.Sprintf("root%d", n))
	for _, d := range []string{"dev", "proc", "sys", "run", "var/lib", "etc", "sbin", "usr/share", "tmp"} {
		if err := os.MkdirAll(filepath.Join(top, d), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	command(t, "go", "build", "-o", filepath.Join(top, "sbin/init"), "./testdata/system")
	for _, tool := range []string{"/sbin/mke2fs", "/sbin/e2fsck"} {
		copyTool(t, top, tool)
	}
	if err := os.Symlink("mke2fs", filepath.Join(top, "sbin/mkfs.ext4")); err != nil {
		t.Fatal(err)
	}
	conf, err := os.ReadFile("/etc/mke2fs.conf")
	if err != nil {
		t.Fatal(err)
	}
	ballast := bytes.Repeat([]byte(fmt.Sprintf("this is root %d. ", n)), 1<<20)
	for p, b := range map[string][]byte{"etc/mke2fs.conf": conf, "etc/machine-id": nil, "var/lib/seed": fmt.Appendf(nil, "root %d", n), "usr/share/ballast": ballast} {
		if err := os.WriteFile(filepath.Join(top, p), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	r := root{path: top + ".squashfs", tree: top + ".verity"}
	command(t, "mksquashfs", top, r.path, "-quiet", "-no-progress", "-noD", "-no-fragments", "-all-root")
	r.hash = buildTree(t, r.path, r.tree)
	return r
}

func buildTree(t *testing.T, data, tree string) string {
	t.Helper()
	in, err := os.Open(data)
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	out, err := os.Create(tree)
	if err != nil {
		t.Fatal(err)
	}
	defer out.Close()
	fi, err := in.Stat()
	if err != nil {
		t.Fatal(err)
	}
	res, err := verity.Build(t.Context(), in, fi.Size()/verity.BlockSize*verity.BlockSize, out, verity.Params{Salt: []byte(data)})
	if err != nil {
		t.Fatal(err)
	}
	return hex.EncodeToString(res.RootHash[:])
}

func copyTool(t *testing.T, top, tool string) {
	t.Helper()
	files := []string{tool}
	out, err := exec.Command("ldd", tool).Output()
	if err != nil {
		t.Fatalf("ldd %s: %v", tool, err)
	}
	for _, w := range strings.Fields(string(out)) {
		if strings.HasPrefix(w, "/") {
			files = append(files, w)
		}
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		to := filepath.Join(top, f)
		if err := os.MkdirAll(filepath.Dir(to), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(to, b, 0o755); err != nil {
			t.Fatal(err)
		}
	}
}

// vm is a machine with a disk that holds root 0 in slot A, root 1 in slot B.
type vm struct {
	*lab
	disk   string
	layout disk.Layout
}

// names are the UKIs on the ESP of a fresh vm.
var names = [2]string{"g000001-aaaaaaaaaaaa.efi", "g000002-bbbbbbbbbbbb.efi"}

func newVM(t *testing.T) *vm {
	t.Helper()
	l := newLab(t)
	v := &vm{lab: l, disk: filepath.Join(t.TempDir(), "disk")}
	var err error
	v.layout, err = disk.Plan(disk.Geometry{SizeBytes: 2 * disk.GiB, SectorSize: 512}, disk.Want{RootBytes: 32 * disk.MiB, VerityBytes: disk.MiB, ESPBytes: 64 * disk.MiB})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(v.disk)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(v.layout.SizeBytes); err != nil {
		t.Fatal(err)
	}
	all := map[string][]byte{"loader/loader.conf": []byte(disk.LoaderConf)}
	for i, r := range l.roots {
		all["EFI/Linux/"+names[i]] = ukiFor(t, r.hash)
	}
	if err := disk.Write(t.Context(), f, v.layout, all); err != nil {
		t.Fatal(err)
	}
	for i, s := range fleet.Slots {
		v.put(t, f, disk.RootLabel(s), l.roots[i].path)
		v.put(t, f, disk.VerityLabel(s), l.roots[i].tree)
	}
	return v
}

func (v *vm) put(t *testing.T, f *os.File, label, file string) {
	t.Helper()
	p, err := v.layout.Partition(label)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := f.WriteAt(b, p.StartBytes); err != nil {
		t.Fatal(err)
	}
}

// damage flips one bit of a partition.
func (v *vm) damage(t *testing.T, label string, off int64) {
	t.Helper()
	f, err := os.OpenFile(v.disk, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := v.layout.Partition(label)
	if err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 1)
	if _, err := f.ReadAt(b, p.StartBytes+off); err != nil {
		t.Fatal(err)
	}
	b[0] ^= 1
	if _, err := f.WriteAt(b, p.StartBytes+off); err != nil {
		t.Fatal(err)
	}
}

// ukiFor makes a UKI that is never started, but read for its root hash.
func ukiFor(t *testing.T, hash string) []byte {
	t.Helper()
	s, err := os.ReadFile(stub)
	if err != nil {
		t.Fatal(err)
	}
	b, err := uki.Build(s, []uki.Section{{Name: ".cmdline", Data: []byte("roothash=" + hash)}})
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// espFiles lists the UKIs on the ESP.
func (v *vm) espFiles(t *testing.T) []string {
	t.Helper()
	f, err := os.Open(v.disk)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	p, err := v.layout.Partition(disk.LabelESP)
	if err != nil {
		t.Fatal(err)
	}
	fat, err := disk.OpenFAT(f, p.StartBytes, p.SizeBytes, 512)
	if err != nil {
		t.Fatal(err)
	}
	files, err := fat.List("EFI/Linux")
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, x := range files {
		out = append(out, x.Name)
	}
	return out
}

// boot starts the machine with more words on the command line and returns
// its console when it has ended by itself.
func (v *vm) boot(t *testing.T, words string, more ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	serial := filepath.Join(t.TempDir(), "serial")
	args := append([]string{
		"-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1", "-m", "512",
		"-display", "none", "-vga", "none", "-nodefaults", "-no-reboot",
		"-kernel", v.kernel.image, "-initrd", v.initrd, "-append", "console=ttyS0 quiet panic=1 " + words,
		"-drive", "if=none,id=d,format=raw,file=" + v.disk, "-device", "virtio-blk-pci,drive=d",
		"-chardev", "file,id=s,path=" + serial, "-serial", "chardev:s",
	}, more...)
	out, err := exec.CommandContext(ctx, "qemu-system-x86_64", args...).CombinedOutput()
	console, _ := os.ReadFile(serial)
	if err != nil {
		t.Fatalf("qemu: %v: %s\n%s", err, out, console)
	}
	return string(console)
}
