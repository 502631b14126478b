package install

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// loopDevice makes a block device of a file, with losetup.
func loopDevice(t *testing.T, size int64) string {
	t.Helper()
	lack := func(what string) {
		if os.Getenv("CI") != "" {
			t.Fatalf("this test needs %s", what)
		}
		t.Skipf("this test needs %s", what)
	}
	if os.Geteuid() != 0 {
		lack("root, for loop devices")
	}
	if _, err := exec.LookPath("losetup"); err != nil {
		lack("losetup (package mount)")
	}
	file := filepath.Join(t.TempDir(), "partition")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(file, size); err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("losetup", "--find", "--show", file).CombinedOutput()
	if err != nil {
		lack("a loop device: " + string(out))
	}
	dev := strings.TrimSpace(string(out))
	t.Cleanup(func() {
		if out, err := exec.Command("losetup", "--detach", dev).CombinedOutput(); err != nil {
			t.Errorf("losetup --detach %s: %v: %s", dev, err, out)
		}
	})
	return dev
}

// TestOpenDeviceBlock works on a block device: its size is asked of the
// kernel, it is held exclusively, and what is read after Forget comes from
// the medium.
func TestOpenDeviceBlock(t *testing.T) {
	const size = 3 << 20
	dev := loopDevice(t, size)
	d, err := OpenDevice(dev)
	if err != nil {
		t.Fatal(err)
	}
	if d.Size() != size {
		t.Errorf("Size() = %d, want %d", d.Size(), size)
	}
	if _, err := OpenDevice(dev); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("a second OpenDevice = %v, want that it is in use", err)
	}
	if _, err := d.WriteAt([]byte("first"), 4096); err != nil {
		t.Fatal(err)
	}
	if err := errors.Join(d.Sync(), d.Forget()); err != nil {
		t.Fatal(err)
	}
	b := make([]byte, 5)
	if _, err := d.ReadAt(b, 4096); err != nil || string(b) != "first" {
		t.Errorf("read back %q, %v", b, err)
	}
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// TestRunOnBlockDevices installs into loop devices.
func TestRunOnBlockDevices(t *testing.T) {
	b, n := build(t, 1, nil), newNode(t)
	root, tree := loopDevice(t, 64*chunkSize), loopDevice(t, 64*chunkSize)
	for p, dev := range map[string]string{n.root("A"): root, n.verity("A"): tree} {
		if err := os.Remove(p); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(dev, p); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.install(t, &source{built: b}, "A", nil); err != nil {
		t.Fatal(err)
	}
	n.wantStaged(t, b, "A")
}
