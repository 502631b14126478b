package crashtest_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"io"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/abslot/crashtest"
	"github.com/turnout-project/turnout/internal/abslot/fatesp"
	"github.com/turnout-project/turnout/internal/abslot/slottest"
	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/fleet"
)

// sector returns a sector full of one letter.
func sector(c byte) []byte { return bytes.Repeat([]byte{c}, crashtest.Sector) }

// letters renders a disk of a few sectors.
func letters(t *testing.T, r io.ReaderAt, n int) string {
	t.Helper()
	var s strings.Builder
	for i := range n {
		b := make([]byte, 1)
		if _, err := r.ReadAt(b, int64(i)*crashtest.Sector+7); err != nil {
			t.Fatal(err)
		}
		s.WriteByte(b[0])
	}
	return s.String()
}

func TestStates(t *testing.T) {
	w := func(i int64, c ...byte) crashtest.Op {
		var b []byte
		for _, x := range c {
			b = append(b, sector(x)...)
		}
		return crashtest.Op{Offset: i * crashtest.Sector, Data: b}
	}
	flush := crashtest.Op{}
	for _, tt := range []struct {
		name string
		ops  []crashtest.Op
		all  int
		want []string // sorted, each once
	}{
		{"nothing", nil, 4, []string{"..."}},
		{"two unflushed", []crashtest.Op{w(0, 'a'), w(2, 'b')}, 4, []string{"...", "..b", "a..", "a.b"}},
		{"a flush orders", []crashtest.Op{w(0, 'a'), flush, w(2, 'b'), flush}, 4, []string{"...", "a..", "a.b"}},
		{"one sector twice", []crashtest.Op{w(1, 'a'), w(1, 'b')}, 4, []string{"...", ".a.", ".b."}},
		{"one write may tear", []crashtest.Op{w(0, 'a', 'b', 'c')}, 4, []string{"...", "..c", ".b.", ".bc", "a..", "a.c", "ab.", "abc"}},
		{"what changes nothing counts for nothing", []crashtest.Op{w(0, '.'), w(1, 'b'), flush, w(1, 'b')}, 4, []string{"...", ".b."}},
		{"beyond the bound: prefixes and all but one", []crashtest.Op{w(0, 'a', 'b', 'c')}, 0, []string{"...", ".bc", "a..", "a.c", "ab.", "abc"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			base := bytes.Repeat([]byte("."), 3*crashtest.Sector)
			var got []string
			err := crashtest.Log{Base: bytes.NewReader(base), Ops: tt.ops}.States(crashtest.Bounds{AllSubsets: tt.all}, func(_ string, s *crashtest.State) error {
				got = append(got, letters(t, s, 3))
				return nil
			})
			if err != nil {
				t.Fatal(err)
			}
			slices.Sort(got)
			if diff := cmp.Diff(tt.want, slices.Compact(got)); diff != "" {
				t.Errorf("states (-want +got):\n%s", diff)
			}
		})
	}
}

func TestDeviceRecords(t *testing.T) {
	d := &crashtest.Device{Bytes: bytes.Repeat([]byte("."), 3*crashtest.Sector)}
	if _, err := d.WriteAt([]byte("xy"), crashtest.Sector-1); err != nil {
		t.Fatal(err)
	}
	d.Sync()
	if len(d.Ops) != 2 || d.Ops[0].Offset != 0 || len(d.Ops[0].Data) != 2*crashtest.Sector || d.Ops[1].Data != nil {
		t.Errorf("ops %v; want one write of two sectors and a flush", d.Ops)
	}
	if _, err := d.WriteAt([]byte("xy"), 3*crashtest.Sector-1); err == nil {
		t.Error("write past the end: no error")
	}
}

func TestReadLog(t *testing.T) {
	var b []byte
	put := func(vs ...uint64) {
		s := make([]byte, crashtest.Sector)
		for i, v := range vs {
			binary.LittleEndian.PutUint64(s[8*i:], v)
		}
		b = append(b, s...)
	}
	put(0x6a736677736872, 1, 5, crashtest.Sector)
	put(8, 2, 0, 0) // write two sectors at 8
	b = append(append(b, sector('a')...), sector('b')...)
	put(0, 0, 1, 0) // flush
	put(0, 0, 1, 0) // and again
	put(5, 9, 4, 0) // discard
	put(3, 1, 2, 0) // FUA
	b = append(b, sector('c')...)
	got, err := crashtest.ReadLog(bytes.NewReader(b))
	if err != nil {
		t.Fatal(err)
	}
	want := []crashtest.Op{
		{Offset: 8 * crashtest.Sector, Data: append(sector('a'), sector('b')...)}, {},
		{Offset: 3 * crashtest.Sector, Data: sector('c')}, {},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("ReadLog() (-want +got):\n%s", diff)
	}
	for name, bad := range map[string][]byte{"cut": b[:len(b)-1], "magic": append([]byte{1}, b[1:]...), "short": b[:10]} {
		if _, err := crashtest.ReadLog(bytes.NewReader(bad)); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

// The proof is worth what it can refute: each of these carriers and agents
// breaks one rule, and a power cut must show it.
func TestCheckerFindsFaults(t *testing.T) {
	ctx := context.Background()
	for _, tt := range []struct {
		name string
		lazy bool // the disk never hears of a flush
		play func(*slottest.Node) error
		want string
	}{
		{"nothing is flushed", true, func(n *slottest.Node) error { return n.Install(ctx, fleet.SlotB, crashtest.V2, 2) }, "the loader starts"},
		{"slot written before its UKI is unbootable", false, func(n *slottest.Node) error {
			if err := n.Install(ctx, fleet.SlotB, crashtest.V2, 2); err != nil {
				return err
			}
			n.Write(fleet.SlotB, crashtest.V3)
			return nil
		}, "in no slot"},
		{"confirmed without a trial, before the slot is written", false, func(n *slottest.Node) error {
			return n.ESP.Put(ctx, abslot.LinuxDir+"/g000002-"+crashtest.V2.Short+".efi", bytes.NewReader(crashtest.V2.UKI), slottest.UKISize)
		}, "in no slot"},
		{"good slot renamed away", false, func(n *slottest.Node) error {
			return n.ESP.Rename(ctx, abslot.LinuxDir+"/g000001-"+crashtest.V1.Short+".efi", abslot.LinuxDir+"/g000002-"+crashtest.V1.Short+"+2.efi")
		}, "without a confirm"},
		{"only UKI removed", false, func(n *slottest.Node) error {
			return n.ESP.Remove(ctx, abslot.LinuxDir+"/g000001-"+crashtest.V1.Short+".efi")
		}, "nothing to boot"},
	} {
		t.Run(tt.name, func(t *testing.T) {
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
				dev.Sync()
			}
			if err := crashtest.Prologue(ctx, n); err != nil {
				t.Fatal(err)
			}
			base := bytes.Clone(dev.Bytes)
			dev.Ops = nil
			if err := tt.play(n); err != nil {
				t.Fatal(err)
			}
			if tt.lazy {
				dev.Ops = slices.DeleteFunc(dev.Ops, func(o crashtest.Op) bool { return o.Data == nil })
			}
			c := &crashtest.Checker{FATBytes: size, Images: []slottest.Image{crashtest.V1, crashtest.V2, crashtest.V3}}
			err = crashtest.Log{Base: bytes.NewReader(base), Ops: dev.Ops}.States(crashtest.Bounds{AllSubsets: 10, Random: 50}, c.Check)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("after %d states: error %v; want one about %q", c.Visited, err, tt.want)
			}
		})
	}
}
