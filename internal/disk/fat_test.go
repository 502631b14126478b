package disk_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/disk/fatdir"
)

// C44: go-diskfs makes the FAT too small at some sizes (issue 418); ours must
// satisfy fsck at each, and a full volume must not be written past its end.
func TestFormatFATSizes(t *testing.T) {
	for _, tt := range []struct {
		size   int64
		sector int
	}{
		{40 * disk.MiB, 512}, {63 * disk.MiB, 512}, {64 * disk.MiB, 512}, {65 * disk.MiB, 512}, {260 * disk.MiB, 512}, {261 * disk.MiB, 512},
		{512 * disk.MiB, 512}, {1000 * disk.MiB, 512}, {2 * disk.GiB, 512}, {3 * disk.GiB, 512}, {4 * disk.GiB, 512},
		{512 * disk.MiB, 4096}, {2 * disk.GiB, 4096},
	} {
		t.Run(fmt.Sprintf("%dMiB-%d", tt.size/disk.MiB, tt.sector), func(t *testing.T) {
			p := image(t, tt.size)
			f, err := os.OpenFile(p, os.O_RDWR, 0)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			fat, err := disk.FormatFAT(f, 0, tt.size, tt.sector)
			if err != nil {
				t.Fatal(err)
			}
			if err := fat.WriteFile("EFI/Linux/x.efi", []byte("x")); err != nil {
				t.Fatal(err)
			}
			run(t, "fsck.vfat", "-n", p)
		})
	}
	f, err := os.Create(filepath.Join(t.TempDir(), "x"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, size := range []int64{0, 16 * disk.MiB, 1 << 45} {
		if _, err := disk.FormatFAT(f, 0, size, 512); err == nil {
			t.Errorf("FormatFAT of %d bytes: no error", size)
		}
	}
}

func TestFullFATStaysInside(t *testing.T) {
	const start, size = 1 * disk.MiB, 40 * disk.MiB
	p := image(t, start+size+disk.MiB)
	f, err := os.OpenFile(p, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	guard := bytes.Repeat([]byte("guard"), disk.MiB/5)
	if _, err := f.WriteAt(guard, start+size); err != nil {
		t.Fatal(err)
	}
	fat, err := disk.FormatFAT(f, start, size, 512)
	if err != nil {
		t.Fatal(err)
	}
	free, err := fat.Free()
	if err != nil {
		t.Fatal(err)
	}
	if err := fat.WriteFile("all", bytes.Repeat([]byte("x"), int(free))); err != nil {
		t.Fatalf("writing the %d bytes that are free: %v", free, err)
	}
	if err := fat.WriteFile("more", []byte("x")); err == nil {
		t.Error("writing one more byte: no error")
	}
	got := make([]byte, len(guard))
	if _, err := f.ReadAt(got, start+size); err != nil || !bytes.Equal(got, guard) {
		t.Errorf("bytes after the file system changed (%v)", err)
	}
}

// What a torn rename leaves is repaired without touching the content, and
// fsck finds nothing more to do.
func TestRepairESP(t *testing.T) {
	const size = 40 * disk.MiB
	p := image(t, size)
	f, err := os.OpenFile(p, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fat, err := disk.FormatFAT(f, 0, size, 512)
	if err != nil {
		t.Fatal(err)
	}
	content := bytes.Repeat([]byte("uki"), 5000)
	for _, n := range []string{"g000001-aaaaaaaaaaaa.efi", "g000002-bbbbbbbbbbbb+1-1.efi", "g000002-bbbbbbbbbbbb.efi"} {
		if err := fat.WriteFile("EFI/Linux/"+n, content); err != nil {
			t.Fatal(err)
		}
	}
	if deleted, err := disk.RepairESP(p, abslot.Folders, abslot.Keep); err != nil || len(deleted) != 0 {
		t.Fatalf("RepairESP of a sound ESP = %q, %v", deleted, err)
	}
	share(t, f, "g000002-bbbbbbbbbbbb+1-1.efi", "g000002-bbbbbbbbbbbb.efi")
	deleted, err := disk.RepairESP(p, abslot.Folders, abslot.Keep)
	if err != nil || !slices.Equal(deleted, []string{"g000002-bbbbbbbbbbbb+1-1.efi"}) {
		t.Fatalf("RepairESP = %q, %v; want the counted name gone", deleted, err)
	}
	run(t, "fsck.vfat", "-n", p)
	v, err := fatdir.Open(f, 0)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := v.List("EFI/Linux")
	if err != nil || len(entries) != 2 {
		t.Fatalf("entries %v, %v; want two", entries, err)
	}
	for _, e := range entries {
		if got, err := v.ReadFile(e); err != nil || !bytes.Equal(got, content) {
			t.Errorf("%s has %d bytes, %v; want the content", e.Name, len(got), err)
		}
	}
}

// share makes the second file point to the content of the first, and frees
// its own, as if it were the first one's new name.
func share(t *testing.T, f *os.File, first, second string) {
	t.Helper()
	v, err := fatdir.Open(f, 0)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := v.List("EFI/Linux")
	if err != nil {
		t.Fatal(err)
	}
	slot := map[string]int64{}
	for _, e := range entries {
		slot[e.Name] = e.Slots[len(e.Slots)-1]
	}
	b := make([]byte, 32)
	read := func(at int64) {
		if _, err := f.ReadAt(b, at); err != nil {
			t.Fatal(err)
		}
	}
	write := func(b []byte, at int64) {
		if _, err := f.WriteAt(b, at); err != nil {
			t.Fatal(err)
		}
	}
	read(slot[second])
	old := uint32(b[26]) | uint32(b[27])<<8
	read(slot[first])
	write(b[26:28], slot[second]+26)
	clusters := (15000 + 511) / 512
	for _, at := range fatOffsets(t, f) {
		write(make([]byte, 4*clusters), at+4*int64(old))
	}
}

// fatOffsets returns where both allocation tables start.
func fatOffsets(t *testing.T, f *os.File) [2]int64 {
	t.Helper()
	b := make([]byte, 512)
	if _, err := f.ReadAt(b, 0); err != nil {
		t.Fatal(err)
	}
	first := (int64(b[14]) | int64(b[15])<<8) * 512
	return [2]int64{first, first + (int64(b[36])|int64(b[37])<<8)*512}
}

func TestFATErrors(t *testing.T) {
	p := image(t, 40*disk.MiB)
	f, err := os.OpenFile(p, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if _, err := disk.OpenFAT(f, 0, 40*disk.MiB, 512); err == nil {
		t.Error("OpenFAT of zeroes: no error")
	}
	fat, err := disk.FormatFAT(f, 0, 40*disk.MiB, 512)
	if err != nil {
		t.Fatal(err)
	}
	if err := fat.WriteFile("x", nil); err == nil || !strings.Contains(err.Error(), "empty") {
		t.Errorf("WriteFile of nothing: error %v", err)
	}
	if _, err := fat.ReadFile("no/such/file"); err == nil {
		t.Error("ReadFile of a missing file: no error")
	}
	if err := fat.Remove("nothing"); err == nil {
		t.Error("Remove of a missing file: no error")
	}
}

// TestReadFileSize: a file has the size that its entry says, not that of its
// clusters.
func TestReadFileSize(t *testing.T) {
	f, err := os.OpenFile(image(t, 64*disk.MiB), os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	fat, err := disk.FormatFAT(f, 0, 64*disk.MiB, 512)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{1, 511, 512, 4096, 5000, 70001} {
		want, name := bytes.Repeat([]byte{'x'}, size), fmt.Sprintf("turnout/%d.json", size)
		if err := fat.WriteFile(name, want); err != nil {
			t.Fatal(err)
		}
		if got, err := fat.ReadFile(name); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%d bytes come back as %d, %v", size, len(got), err)
		}
	}
}
