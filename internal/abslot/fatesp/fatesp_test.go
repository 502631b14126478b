package fatesp_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/abslot/fatesp"
	"github.com/turnout-project/turnout/internal/abslot/slottest"
	"github.com/turnout-project/turnout/internal/disk"
)

const size = 40 * disk.MiB

func TestESP(t *testing.T) {
	var path string
	slottest.Run(t, func(t *testing.T, reopen bool) abslot.ESP {
		if !reopen {
			path = filepath.Join(t.TempDir(), "esp.img")
			t.Cleanup(func() { fsck(t, path) })
		}
		f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		var fat *disk.FAT
		if reopen {
			fat, err = disk.OpenFAT(f, 0, size, 512)
		} else {
			fat, err = disk.FormatFAT(f, 0, size, 512)
		}
		if err != nil {
			t.Fatal(err)
		}
		return fatesp.New(fat)
	})
}

// fsck asks the other implementation.
func fsck(t *testing.T, path string) {
	for _, p := range []string{"fsck.vfat", "/usr/sbin/fsck.vfat"} {
		bin, err := exec.LookPath(p)
		if err != nil {
			continue
		}
		out, err := exec.Command(bin, "-n", path).CombinedOutput()
		if err != nil {
			t.Errorf("fsck.vfat -n: %v\n%s", err, out)
		}
		return
	}
	if os.Getenv("CI") != "" {
		t.Error("fsck.vfat is not installed")
	}
}

// readByMtools checks that another implementation can read the folder.
func readByMtools(t *testing.T, path string) {
	t.Helper()
	bin, err := exec.LookPath("mdir")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Error("mtools is not installed")
		}
		return
	}
	if out, err := exec.Command(bin, "-i", path, "-b", "::EFI/Linux").CombinedOutput(); err != nil {
		t.Errorf("mdir: %v\n%s", err, out)
	}
}
