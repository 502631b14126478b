package crashtest_test

import (
	"bytes"
	"slices"
	"testing"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/abslot/crashtest"
	"github.com/turnout-project/turnout/internal/abslot/fatesp"
	"github.com/turnout-project/turnout/internal/abslot/slottest"
	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/disk/fatdir"
	"github.com/turnout-project/turnout/internal/fleet"
)

// TestRepairIsCut: a confirm was torn so that both names of the UKI are on the
// disk, and the power goes again while that is repaired.
func TestRepairIsCut(t *testing.T) {
	const size = 40 * disk.MiB
	dev := &crashtest.Device{Bytes: make([]byte, size+2*crashtest.Sector)}
	fat, err := disk.FormatFAT(dev, 0, size, 512)
	if err != nil {
		t.Fatal(err)
	}
	n := slottest.NewNode(fatesp.New(fat))
	n.OnWrite = func(s fleet.Slot, hash string) {
		if _, err := dev.WriteAt(crashtest.SlotRecord(hash), crashtest.SlotSector(size, s)); err != nil {
			t.Fatal(err)
		}
	}
	if err := crashtest.Prologue(t.Context(), n); err != nil {
		t.Fatal(err)
	}
	if err := n.Install(t.Context(), fleet.SlotB, crashtest.V2, 2); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Boot(t.Context()); err != nil {
		t.Fatal(err)
	}
	before, after := "g000002-"+crashtest.V2.Short+"+1-1.efi", "g000002-"+crashtest.V2.Short+".efi"
	if err := fat.WriteFile(abslot.LinuxDir+"/"+after, []byte("x")); err != nil {
		t.Fatal(err)
	}
	link(t, dev, before, after)

	c := &crashtest.Checker{FATBytes: size, Images: []slottest.Image{crashtest.V1, crashtest.V2}}
	log := crashtest.Log{Base: bytes.NewReader(dev.Bytes)}
	if err := log.States(crashtest.Bounds{AllSubsets: 10, Random: 50}, c.Check); err != nil {
		t.Fatal(err)
	}
	if c.Torn != 1 || c.Recut < 2 {
		t.Errorf("%d torn states, %d cuts of the repair; want one, and some", c.Torn, c.Recut)
	}
}

// link gives the second name the first one's content and size.
func link(t *testing.T, dev *crashtest.Device, first, second string) {
	t.Helper()
	v, err := fatdir.Open(dev, 0)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := v.List(abslot.LinuxDir)
	if err != nil {
		t.Fatal(err)
	}
	slot := func(name string) []byte {
		i := slices.IndexFunc(entries, func(e fatdir.Entry) bool { return e.Name == name })
		if i < 0 {
			t.Fatalf("no %s among %v", name, entries)
		}
		at := entries[i].Slots[len(entries[i].Slots)-1]
		return dev.Bytes[at : at+32]
	}
	from, to := slot(first), slot(second)
	copy(to[20:22], from[20:22]) // first cluster, high
	copy(to[26:32], from[26:32]) // low, and the size
}
