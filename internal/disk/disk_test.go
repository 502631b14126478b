package disk_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/fleet"
)

// tool returns the path of a program that CI has installed.
func tool(t *testing.T, name string) string {
	t.Helper()
	for _, dir := range []string{"", "/usr/sbin/", "/sbin/"} {
		if p, err := exec.LookPath(dir + name); err == nil {
			return p
		}
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is not installed", name)
	}
	t.Skipf("%s is not installed", name)
	return ""
}

func run(t *testing.T, name string, args ...string) string {
	t.Helper()
	out, err := exec.Command(tool(t, name), args...).CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

func image(t *testing.T, size int64) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "disk.img")
	f, err := os.Create(p)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(size); err != nil {
		t.Fatal(err)
	}
	return p
}

func mustPlan(t *testing.T, g disk.Geometry, w disk.Want) disk.Layout {
	t.Helper()
	l, err := disk.Plan(g, w)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestPlan(t *testing.T) {
	img := disk.Want{RootBytes: 150 * disk.MiB, VerityBytes: 2 * disk.MiB, UKIBytes: 30 * disk.MiB}
	big := disk.Want{RootBytes: 14 * disk.GiB, VerityBytes: 120 * disk.MiB, UKIBytes: 80 * disk.MiB}
	tests := []struct {
		name          string
		size          int64
		sector        int
		want          disk.Want
		esp, root     int64 // bytes
		stateAtLeast  int64
		needMiB       int64 // of a TooSmallError, 0 for none
		otherErrMatch string
	}{
		{name: "lab disk", size: 8 * disk.GiB, sector: 512, want: img, esp: 512 * disk.MiB, root: 1535 * disk.MiB, stateAtLeast: 4 * disk.GiB},
		{name: "server disk", size: 480e9, sector: 512, want: img, esp: 2 * disk.GiB, root: 16 * disk.GiB, stateAtLeast: 400 * disk.GiB},
		{name: "4Kn", size: 3840e9, sector: 4096, want: img, esp: 2 * disk.GiB, root: 16 * disk.GiB, stateAtLeast: 3000 * disk.GiB},
		{name: "large image", size: 480e9, sector: 512, want: big, esp: 2 * disk.GiB, root: 21 * disk.GiB, stateAtLeast: 300 * disk.GiB},
		{name: "barely fits", size: 1226 * disk.MiB, sector: 512, want: img, esp: 512 * disk.MiB, root: 225 * disk.MiB, stateAtLeast: 256 * disk.MiB},
		{name: "one MiB less", size: 1225 * disk.MiB, sector: 512, want: img, needMiB: 1226},
		{name: "large UKI", size: 8 * disk.GiB, sector: 512, want: disk.Want{RootBytes: disk.MiB, UKIBytes: 300 * disk.MiB}, esp: 932 * disk.MiB, root: 1451 * disk.MiB, stateAtLeast: disk.GiB},
		{name: "odd sectors", size: 8 * disk.GiB, sector: 520, want: img, otherErrMatch: "520"},
		{name: "odd architecture", size: 8 * disk.GiB, sector: 512, want: disk.Want{Architecture: "riscv64"}, otherErrMatch: "riscv64"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l, err := disk.Plan(disk.Geometry{SizeBytes: tt.size, SectorSize: tt.sector}, tt.want)
			var small *disk.TooSmallError
			switch {
			case tt.needMiB > 0:
				if !errors.As(err, &small) || small.NeedBytes != tt.needMiB*disk.MiB {
					t.Fatalf("Plan() error = %v; want a TooSmallError of %d MiB", err, tt.needMiB)
				}
				return
			case tt.otherErrMatch != "":
				if err == nil || !strings.Contains(err.Error(), tt.otherErrMatch) {
					t.Fatalf("Plan() error = %v; want one about %s", err, tt.otherErrMatch)
				}
				return
			case err != nil:
				t.Fatal(err)
			}
			check(t, l)
			esp, _ := l.Partition(disk.LabelESP)
			root, _ := l.Partition(disk.RootLabel(fleet.SlotB))
			state, _ := l.Partition(disk.LabelState)
			if esp.SizeBytes != tt.esp || root.SizeBytes != tt.root || state.SizeBytes < tt.stateAtLeast {
				t.Errorf("esp %d MiB, root %d MiB, state %d MiB; want %d, %d, at least %d", esp.SizeBytes/disk.MiB,
					root.SizeBytes/disk.MiB, state.SizeBytes/disk.MiB, tt.esp/disk.MiB, tt.root/disk.MiB, tt.stateAtLeast/disk.MiB)
			}
		})
	}
}

// check asserts what holds for every layout.
func check(t *testing.T, l disk.Layout) {
	t.Helper()
	end := int64(disk.MiB)
	guids := map[string]bool{l.DiskGUID: true}
	for i, p := range l.Partitions {
		if p.Label != disk.Labels[i] || p.StartBytes != end || p.StartBytes%disk.MiB != 0 || p.SizeBytes <= 0 || guids[p.GUID] {
			t.Errorf("partition %d: %+v; want %s at %d, on a MiB, with its own GUID", i+1, p, disk.Labels[i], end)
		}
		guids[p.GUID] = true
		end = p.StartBytes + p.SizeBytes
	}
	if end > l.SizeBytes-disk.MiB {
		t.Errorf("last partition ends at %d of %d; no room for the backup table", end, l.SizeBytes)
	}
	a, _ := l.Partition(disk.RootLabel(fleet.SlotA))
	v, _ := l.Partition(disk.VerityLabel(fleet.SlotA))
	if need := a.SizeBytes / 4096 * 32 * 129 / 128; v.SizeBytes < need {
		t.Errorf("verity-a has %d bytes; a tree over root-a needs %d", v.SizeBytes, need)
	}
}

func TestCreate(t *testing.T) {
	for _, sector := range []int{512, 4096} {
		t.Run(fmt.Sprint(sector), func(t *testing.T) {
			p := image(t, 3*disk.GiB)
			stale(t, p)
			l := mustPlan(t, disk.Geometry{SizeBytes: 3 * disk.GiB, SectorSize: sector}, disk.Want{RootBytes: 100 * disk.MiB, UKIBytes: 20 * disk.MiB, ESPBytes: 300 * disk.MiB})
			loader := bytes.Repeat([]byte("loader"), 30000)
			if err := disk.Create(context.Background(), p, l, disk.ESPFiles("amd64", loader)); err != nil {
				t.Fatal(err)
			}
			checkESP(t, p, l, loader)
			checkState(t, p, l)
			if sector == 512 {
				checkTable(t, p, l)
			}
		})
	}
}

// stale leaves what an earlier life of the disk may have left.
func stale(t *testing.T, p string) {
	t.Helper()
	f, err := os.OpenFile(p, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for at := int64(0); at < 3*disk.GiB; at += disk.MiB {
		if _, err := f.WriteAt([]byte("stale!"), at); err != nil {
			t.Fatal(err)
		}
	}
}

func checkESP(t *testing.T, p string, l disk.Layout, loader []byte) {
	t.Helper()
	esp, _ := l.Partition(disk.LabelESP)
	fs := filepath.Join(t.TempDir(), "esp.img")
	copyOut(t, p, fs, esp.StartBytes, esp.SizeBytes)
	run(t, "fsck.vfat", "-n", "-v", fs)
	out := filepath.Join(t.TempDir(), "loader")
	run(t, "mcopy", "-i", fs, "::EFI/BOOT/BOOTX64.EFI", out)
	if got, err := os.ReadFile(out); err != nil || !bytes.Equal(got, loader) {
		t.Errorf("mtools reads another loader than was written (%v)", err)
	}
	if got := run(t, "mtype", "-i", fs, "::loader/loader.conf"); got != disk.LoaderConf {
		t.Errorf("loader.conf = %q; want %q", got, disk.LoaderConf)
	}
	for _, d := range []string{"::EFI/Linux", "::turnout"} {
		run(t, "mdir", "-i", fs, d)
	}
}

func checkState(t *testing.T, p string, l disk.Layout) {
	t.Helper()
	f, err := os.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for _, label := range disk.Labels[1:] {
		part, _ := l.Partition(label)
		for _, at := range []int64{part.StartBytes, part.StartBytes + part.SizeBytes - disk.MiB} {
			b := make([]byte, disk.MiB)
			if _, err := f.ReadAt(b, at); err != nil {
				t.Fatal(err)
			}
			if len(bytes.Trim(b, "\x00")) != 0 {
				t.Errorf("partition %s is not wiped at %d", label, at)
			}
		}
	}
}

func checkTable(t *testing.T, p string, l disk.Layout) {
	t.Helper()
	if out := run(t, "sgdisk", "-v", p); !strings.Contains(out, "No problems found") {
		t.Errorf("sgdisk -v: %s", out)
	}
	if out := run(t, "sfdisk", "--verify", p); !strings.Contains(out, "No errors detected") || strings.Contains(out, "mismatch") {
		t.Errorf("sfdisk --verify: %s", out)
	}
	out := run(t, "sfdisk", "--dump", p)
	for _, part := range l.Partitions {
		want := fmt.Sprintf("start=%12d, size=%12d, type=%s, uuid=%s, name=%q, attrs=\"GUID:63\"",
			part.StartBytes/512, part.SizeBytes/512, part.Type, part.GUID, part.Label)
		if !strings.Contains(out, want) {
			t.Errorf("sfdisk --dump has no %s:\n%s", want, out)
		}
	}
	d, err := disk.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(l, d.Layout); diff != "" {
		t.Errorf("Open() differs from what was created (-want +got):\n%s", diff)
	}
}

func copyOut(t *testing.T, from, to string, start, size int64) {
	t.Helper()
	run(t, "dd", "if="+from, "of="+to, "bs=1M", "conv=sparse", "status=none",
		fmt.Sprintf("skip=%d", start/disk.MiB), fmt.Sprintf("count=%d", size/disk.MiB))
}
