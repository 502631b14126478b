//go:build linux

// Package guest runs a Go program as the only process of a small QEMU machine
// with Debian's kernel: for tests that need a kernel of our choosing (vfat) or
// real firmware and a real loader. Only tests import it. QEMU is run without
// KVM, so that it works everywhere.
//
// It needs qemu-system-x86_64, apt-get, dpkg-deb, depmod and the go tool. The
// kernel package is downloaded once and kept in the user's cache folder.
package guest

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/initrd"
)

// timeLimit ends a machine that hangs.
const timeLimit = 6 * time.Minute

// kernelMeta is the package that depends on the current kernel.
const kernelMeta = "linux-image-cloud-amd64"

// Need skips the test when a program is missing, and fails it in CI.
func Need(t *testing.T, programs ...string) {
	t.Helper()
	for _, p := range programs {
		if Tool(p) == "" {
			missing(t, p)
		}
	}
}

func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is missing; install it with apt", what)
	}
	t.Skipf("%s is missing", what)
}

// NeedFile is Need for files.
func NeedFile(t *testing.T, paths ...string) {
	t.Helper()
	for _, p := range paths {
		if _, err := os.Stat(p); err != nil {
			missing(t, p)
		}
	}
}

// Tool returns the path of a program, looked for in sbin folders too, or "".
func Tool(name string) string {
	for _, dir := range []string{"", "/usr/sbin/", "/sbin/"} {
		if p, err := exec.LookPath(dir + name); err == nil {
			return p
		}
	}
	return ""
}

// Output runs a program and returns what it prints; failure ends the test.
func Output(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(Tool(name), args...)
	cmd.Dir = dir
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s%s", name, strings.Join(args, " "), err, out, stderr.Bytes())
	}
	return string(out)
}

// Kernel is an unpacked kernel package.
type Kernel struct {
	Image   string // vmlinuz
	Release string
	modules string // …/lib/modules/<release>
}

// DebianKernel returns Debian's current kernel for virtual machines.
func DebianKernel(t *testing.T) Kernel {
	t.Helper()
	Need(t, "apt-get", "apt-cache", "dpkg-deb", "depmod")
	cache, err := os.UserCacheDir()
	if err != nil {
		cache = os.TempDir()
	}
	cache = filepath.Join(cache, "turnout-tests", "kernel")
	if k, ok := unpacked(cache); ok {
		return k
	}
	work := t.TempDir()
	pkg := ""
	for _, line := range strings.Split(Output(t, work, "apt-cache", "depends", kernelMeta), "\n") {
		if p, ok := strings.CutPrefix(strings.TrimSpace(line), "Depends: "); ok {
			pkg = p
		}
	}
	if pkg == "" {
		t.Fatalf("apt knows no %s; run apt-get update", kernelMeta)
	}
	// Without the sandbox user the download may go where root may write.
	Output(t, work, "apt-get", "-o", "APT::Sandbox::User=root", "-o", "Acquire::Retries=6", "download", pkg)
	debs, _ := filepath.Glob(filepath.Join(work, "*.deb"))
	if len(debs) != 1 {
		t.Fatalf("apt-get download %s left %q", pkg, debs)
	}
	tree := filepath.Join(work, "tree")
	Output(t, work, "dpkg-deb", "-x", debs[0], tree)
	k, ok := unpacked(tree)
	if !ok {
		t.Fatalf("package %s has no kernel", pkg)
	}
	Output(t, work, "depmod", "-b", tree, k.Release)
	if err := keep(tree, cache); err != nil {
		t.Logf("kernel not kept for the next test: %v", err)
		return k
	}
	k, _ = unpacked(cache)
	return k
}

// keep copies a tree into the cache in one step. A test of another package
// that was first is fine.
func keep(tree, cache string) error {
	if err := os.MkdirAll(filepath.Dir(cache), 0o755); err != nil {
		return err
	}
	tmp, err := os.MkdirTemp(filepath.Dir(cache), "new-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	if out, err := exec.Command("cp", "-a", tree, tmp+"/tree").CombinedOutput(); err != nil {
		return fmt.Errorf("cp: %w: %s", err, out)
	}
	if err := os.Rename(tmp+"/tree", cache); err != nil {
		if _, ok := unpacked(cache); !ok {
			return err
		}
	}
	return nil
}

func unpacked(tree string) (Kernel, bool) {
	images, _ := filepath.Glob(filepath.Join(tree, "boot", "vmlinuz-*"))
	if len(images) != 1 {
		return Kernel{}, false
	}
	release := strings.TrimPrefix(filepath.Base(images[0]), "vmlinuz-")
	return Kernel{images[0], release, filepath.Join(tree, "lib", "modules", release)}, true
}

// Initrd returns an initrd with a program as /init and modules that Main
// loads.
func (k Kernel) Initrd(t *testing.T, init []byte, modules ...string) []byte {
	t.Helper()
	ms, err := initrd.Modules(k.modules, initrd.Set{Required: modules})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := initrd.Build(&b, initrd.Contents{Init: init, Release: k.Release, Modules: ms}); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Build compiles a program, or with args "test", "-c" the tests of a package,
// into a static file and returns it.
func Build(t *testing.T, args ...string) []byte {
	t.Helper()
	out := filepath.Join(t.TempDir(), "program")
	cmd := exec.Command("go", append(args[:len(args)-1:len(args)-1], "-o", out, args[len(args)-1])...)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOOS=linux", "GOARCH=amd64")
	if b, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v: %v\n%s", cmd, err, b)
	}
	b, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// Run runs a machine with these QEMU arguments besides the common ones until
// it powers itself off, and returns what it wrote to its serial line.
func Run(t *testing.T, args ...string) string {
	t.Helper()
	Need(t, "qemu-system-x86_64")
	ctx, cancel := context.WithTimeout(t.Context(), timeLimit)
	defer cancel()
	args = append([]string{
		"-accel", "tcg,thread=multi", "-cpu", "max", "-m", "512", "-display", "none", "-serial", "stdio",
		"-monitor", "none", "-no-reboot", "-nodefaults", "-nic", "none",
	}, args...)
	out, err := exec.CommandContext(ctx, Tool("qemu-system-x86_64"), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("QEMU: %v (%v)\n%s", err, ctx.Err(), out)
	}
	return string(out)
}
