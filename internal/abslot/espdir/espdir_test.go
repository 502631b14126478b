package espdir_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/abslot/espdir"
	"github.com/turnout-project/turnout/internal/abslot/guest"
	"github.com/turnout-project/turnout/internal/abslot/slottest"
	"github.com/turnout-project/turnout/internal/disk"
)

// In a guest this program runs the tests marked for it, on a real vfat.
func TestMain(m *testing.M) {
	if !guest.IsInit() {
		os.Exit(m.Run())
	}
	guest.Main(func() error { return inGuest(m) })
}

// TestFolder runs the suite on a plain folder of whatever the machine has.
func TestFolder(t *testing.T) {
	var dir string
	slottest.Run(t, func(t *testing.T, reopen bool) abslot.ESP {
		if !reopen {
			dir = t.TempDir()
		}
		return open(t, dir)
	})
}

func open(t *testing.T, dir string) *espdir.ESP {
	t.Helper()
	e, err := espdir.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	return e
}

func TestOpenRefuses(t *testing.T) {
	if _, err := espdir.Open(filepath.Join(t.TempDir(), "missing")); err == nil {
		t.Error("Open of a folder that is not there: no error")
	}
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	mount(t, "tmpfs", dir, "tmpfs", unix.MS_RDONLY, "")
	if _, err := espdir.Open(dir); !errors.Is(err, abslot.ErrReadOnly) || !strings.Contains(err.Error(), dir) {
		t.Errorf("Open of a read-only mount: error %v; want ErrReadOnly with the folder", err)
	}
}

func TestFull(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	mount(t, "tmpfs", dir, "tmpfs", 0, "size=8m")
	e := open(t, dir)
	err := e.Put(t.Context(), "EFI/Linux/x.new", strings.NewReader(""), 5<<20)
	var space *abslot.SpaceError
	if !errors.As(err, &space) || !errors.Is(err, abslot.ErrNoSpace) {
		t.Fatalf("Put without room: error %v; want a SpaceError", err)
	}
	if space.NeedBytes != 9<<20 || space.FreeBytes != 8<<20 || !strings.Contains(err.Error(), fmt.Sprint(9<<20)) {
		t.Errorf("error %q; want %d bytes needed, %d free", err, 9<<20, 8<<20)
	}
	if files, err := e.List(t.Context(), "EFI/Linux"); err != nil || len(files) != 0 {
		t.Errorf("a refused Put left %v (%v)", files, err)
	}
}

func TestLock(t *testing.T) {
	dir := t.TempDir()
	unlock, err := open(t, dir).Lock(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := open(t, dir).Lock(t.Context()); !errors.Is(err, abslot.ErrBusy) {
		t.Errorf("second Lock: error %v; want ErrBusy", err)
	}
	unlock()
	if unlock, err = open(t, dir).Lock(t.Context()); err != nil {
		t.Errorf("Lock after unlock: %v", err)
	} else {
		unlock()
	}
}

func mount(t *testing.T, source, at, fs string, flags uintptr, data string) {
	t.Helper()
	if err := unix.Mount(source, at, fs, flags, data); err != nil {
		t.Fatalf("mounting %s on %s: %v", source, at, err)
	}
	t.Cleanup(func() {
		if err := unix.Unmount(at, 0); err != nil {
			t.Errorf("unmounting %s: %v", at, err)
		}
	})
}

// freshFAT makes a file system on a device or in a file.
func freshFAT(t *testing.T, path string, bytes int64) {
	t.Helper()
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if fi, err := f.Stat(); err == nil && fi.Mode().IsRegular() {
		if err := f.Truncate(bytes); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := disk.FormatFAT(f, 0, bytes, 512); err != nil {
		t.Fatal(err)
	}
}
