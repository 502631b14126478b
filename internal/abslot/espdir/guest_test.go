package espdir_test

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/abslot/crashtest"
	"github.com/turnout-project/turnout/internal/abslot/espdir"
	"github.com/turnout-project/turnout/internal/abslot/guest"
	"github.com/turnout-project/turnout/internal/abslot/slottest"
	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/fleet"
)

const (
	fatBytes  = 40 * disk.MiB
	diskBytes = fatBytes + disk.MiB // slots say what they hold after the file system
	suiteDisk = "/dev/vda"
	dramaDisk = "/dev/vdb"
	passed    = "guest: all passed"
)

// inGuest runs the suite on vfat and then plays the drama for TestPowerCut.
func inGuest(m *testing.M) error {
	for k, v := range map[string]string{"test.run": "^TestVFAT$", "test.v": "true"} {
		if err := flag.Set(k, v); err != nil {
			return err
		}
	}
	if code := m.Run(); code != 0 {
		return fmt.Errorf("tests: exit status %d", code)
	}
	if err := playDrama(); err != nil {
		return err
	}
	fmt.Println(passed)
	return nil
}

// TestVFAT is run by the guest only.
func TestVFAT(t *testing.T) {
	if !guest.IsInit() {
		t.Skip("runs inside the machine of TestPowerCut")
	}
	var last string
	n := 0
	slottest.Run(t, func(t *testing.T, reopen bool) abslot.ESP {
		n++
		dir := fmt.Sprintf("/tmp/esp%d", n)
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if reopen { // what a new mount shows is what the disk has
			if err := unix.Unmount(last, 0); err != nil {
				t.Fatal(err)
			}
		} else {
			freshFAT(t, suiteDisk, fatBytes)
		}
		if err := unix.Mount(suiteDisk, dir, "vfat", 0, "umask=0022"); err != nil {
			t.Fatal(err)
		}
		last = dir
		t.Cleanup(func() { _ = unix.Unmount(dir, 0) })
		return open(t, dir)
	})
}

// playDrama plays every act on a mounted vfat. Before each act it writes a
// marker after the slot records, so that the log can be cut into acts.
func playDrama() error {
	ctx := context.Background()
	dev, err := os.OpenFile(dramaDisk, os.O_RDWR|unix.O_SYNC, 0)
	if err != nil {
		return err
	}
	defer dev.Close()
	const dir = "/tmp/drama"
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(dramaDisk, dir, "vfat", unix.MS_NOATIME, "umask=0022"); err != nil {
		return err
	}
	esp, err := espdir.Open(dir)
	if err != nil {
		return err
	}
	write := func(at int64, text string) error {
		_, err := dev.WriteAt(crashtest.SlotRecord(text), at)
		return err
	}
	n := slottest.NewNode(esp)
	var werr error
	n.OnWrite = func(s fleet.Slot, hash string) { werr = write(crashtest.SlotSector(fatBytes, s), hash) }
	if err := crashtest.Prologue(ctx, n); err != nil {
		return err
	}
	for i, act := range crashtest.Acts {
		unix.Sync()
		if err := write(markerAt, fmt.Sprintf("act %d", i)); err != nil {
			return err
		}
		if err := act.Play(ctx, n); err != nil || werr != nil {
			return fmt.Errorf("%s: %w (%v)", act.Name, err, werr)
		}
	}
	unix.Sync()
	return nil
}

const markerAt = fatBytes + 8*crashtest.Sector

// TestPowerCut lets a guest play every transition on a mounted vfat of a
// disk whose writes QEMU records, and cuts the power at each write the kernel
// made.
func TestPowerCut(t *testing.T) {
	guest.Need(t, "qemu-system-x86_64", "mdir")
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	console := record(t, path)
	if !strings.Contains(console, passed) {
		t.Fatalf("the guest did not pass:\n%s", console)
	}
	base, err := os.ReadFile(path("before.img"))
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Open(path("log.img"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	ops, err := crashtest.ReadLog(f)
	if err != nil {
		t.Fatal(err)
	}
	judge(t, base, ops, path("cut.img"))
}

// record runs the guest.
func record(t *testing.T, path func(string) string) string {
	k := guest.DebianKernel(t)
	init := guest.Build(t, "test", "-c", ".")
	if err := os.WriteFile(path("initrd"), k.Initrd(t, init, "virtio_pci", "virtio_blk", "vfat", "nls_cp437", "nls_ascii"), 0o600); err != nil {
		t.Fatal(err)
	}
	freshFAT(t, path("suite.img"), diskBytes)
	freshFAT(t, path("drama.img"), diskBytes)
	makeFAT(t, path("drama.img"))
	copyFile(t, path("drama.img"), path("before.img"))
	if err := os.WriteFile(path("log.img"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	return guest.Run(t, "-kernel", k.Image, "-initrd", path("initrd"), "-append", "console=ttyS0 quiet panic=-1",
		"-drive", "if=none,id=suite,format=raw,cache=unsafe,file="+path("suite.img"), "-device", "virtio-blk-pci,drive=suite",
		"-blockdev", "driver=file,node-name=data,filename="+path("drama.img"),
		"-blockdev", "driver=file,node-name=log,filename="+path("log.img"),
		"-blockdev", "driver=blklogwrites,node-name=drama,file=data,log=log",
		"-device", "virtio-blk-pci,drive=drama,write-cache=on")
}

// makeFAT formats the drama's disk as long as its file system, not its disk.
func makeFAT(t *testing.T, path string) {
	t.Helper()
	if err := os.Remove(path); err != nil {
		t.Fatal(err)
	}
	freshFAT(t, path, fatBytes)
	if err := os.Truncate(path, diskBytes); err != nil {
		t.Fatal(err)
	}
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

// judge cuts the log into acts and checks the states of each.
func judge(t *testing.T, disk []byte, ops []crashtest.Op, cut string) {
	var total, distinct int
	for i, act := range append([]crashtest.Act{{Name: "prologue"}}, crashtest.Acts...) {
		var mine []crashtest.Op
		for len(ops) > 0 && !isMarker(ops[0], i) {
			mine, ops = append(mine, ops[0]), ops[1:]
		}
		if len(ops) > 0 {
			ops = ops[1:]
		}
		if i > 0 {
			c := &crashtest.Checker{FATBytes: fatBytes, Images: []slottest.Image{crashtest.V1, crashtest.V2, crashtest.V3}}
			c.OnDistinct = func(where string, s *crashtest.State) { readByMtools(t, c, s, cut) }
			log := crashtest.Log{Base: bytes.NewReader(disk), Ops: mine}
			if err := log.States(crashtest.Bounds{AllSubsets: 12, Random: 200}, c.Check); err != nil {
				t.Errorf("%s: power cut %v", act.Name, err)
			}
			t.Logf("%-28s %3d operations, %6d states, %4d distinct, %d repaired, %d cuts of that", act.Name, len(mine), c.Visited, c.Distinct, c.Torn, c.Recut)
			total, distinct = total+c.Visited, distinct+c.Distinct
		}
		for _, op := range mine {
			copy(disk[op.Offset:], op.Data)
		}
	}
	if total < 200 {
		t.Errorf("only %d states: the log was not recorded", total)
	}
	t.Logf("visited %d states, %d of them distinct", total, distinct)
}

func isMarker(op crashtest.Op, i int) bool {
	return op.Offset <= markerAt && op.Offset+int64(len(op.Data)) > markerAt &&
		strings.HasPrefix(string(op.Data[markerAt-op.Offset:]), fmt.Sprintf("act %d\x00", i))
}

// readByMtools lets another implementation look at a sample.
func readByMtools(t *testing.T, c *crashtest.Checker, s *crashtest.State, path string) {
	t.Helper()
	if c.Distinct%8 != 1 {
		return
	}
	b, err := s.Bytes(fatBytes)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	guest.Output(t, "", "mdir", "-i", path, "-b", "::EFI/Linux")
}
