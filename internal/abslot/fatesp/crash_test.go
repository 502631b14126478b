package fatesp_test

import (
	"bytes"
	"context"
	"testing"

	"github.com/turnout-project/turnout/internal/abslot/crashtest"
	"github.com/turnout-project/turnout/internal/abslot/fatesp"
	"github.com/turnout-project/turnout/internal/abslot/slottest"
	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/fleet"
)

// TestPowerCut plays every transition on a FAT image through go-diskfs and
// cuts the power at every write and flush of each.
func TestPowerCut(t *testing.T) {
	ctx := context.Background()
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
		dev.Sync()
	}
	if err := crashtest.Prologue(ctx, n); err != nil {
		t.Fatal(err)
	}
	var total, distinct int
	readers := newReaders(t)
	for _, act := range crashtest.Acts {
		base := bytes.Clone(dev.Bytes)
		dev.Ops = nil
		if err := act.Play(ctx, n); err != nil {
			t.Fatalf("%s: %v", act.Name, err)
		}
		c := &crashtest.Checker{FATBytes: size, Images: []slottest.Image{crashtest.V1, crashtest.V2, crashtest.V3}}
		c.OnDistinct = func(where string, s *crashtest.State) {
			if c.Distinct%3 == 1 {
				b, err := s.Bytes(size)
				if err != nil {
					t.Fatal(err)
				}
				readers.check(where, b)
			}
		}
		log := crashtest.Log{Base: bytes.NewReader(base), Ops: dev.Ops}
		if err := log.States(crashtest.Bounds{AllSubsets: 10, Random: 100}, c.Check); err != nil {
			t.Errorf("%s: power cut %v", act.Name, err)
		}
		t.Logf("%-28s %3d operations, %6d states, %4d distinct, %d repaired, %d cuts of that", act.Name, len(dev.Ops), c.Visited, c.Distinct, c.Torn, c.Recut)
		total, distinct = total+c.Visited, distinct+c.Distinct
	}
	t.Logf("visited %d states, %d of them distinct, %d read by mtools, fsck.vfat and sgdisk", total, distinct, readers.states)
}
