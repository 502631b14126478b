package disk_test

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/fleet"
)

func TestPartitionPath(t *testing.T) {
	for _, tt := range []struct {
		disk string
		n    int
		want string
	}{
		{"/dev/vda", 1, "/dev/vda1"}, {"/dev/sdaa", 12, "/dev/sdaa12"}, {"/dev/nvme0n1", 6, "/dev/nvme0n1p6"}, {"/dev/mmcblk0", 2, "/dev/mmcblk0p2"},
	} {
		if got := disk.PartitionPath(tt.disk, tt.n); got != tt.want {
			t.Errorf("PartitionPath(%q, %d) = %q; want %q", tt.disk, tt.n, got, tt.want)
		}
	}
}

// fakeHost makes a machine of files: sysfs attributes and, for each disk, an
// image in place of its device node.
func fakeHost(t *testing.T, attrs map[string]string) disk.Host {
	t.Helper()
	h := disk.Host{Sys: t.TempDir(), Dev: t.TempDir()}
	for p, v := range attrs {
		full := filepath.Join(h.Sys, "block", p)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(v+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return h
}

func TestList(t *testing.T) {
	h := fakeHost(t, map[string]string{
		"vda/size": "16777216", "vda/queue/logical_block_size": "512", "vda/serial": "virt-1", "vda/ro": "0", "vda/removable": "0",
		"nvme0n1/size": "937703088", "nvme0n1/queue/logical_block_size": "4096", "nvme0n1/device/model": "SAMSUNG MZ", "nvme0n1/device/serial": "S4 ",
		"sda/size": "1000", "sda/queue/logical_block_size": "512", "sda/device/model": "Flash", "sda/device/vpd_pg80": "\x00\x80\x00\x04ABCD", "sda/removable": "1", "sda/ro": "1",
		"sdb/size": "0", "loop0/size": "100", "dm-0/size": "100", "sr0/size": "100", "md127/size": "5",
	})
	got, err := h.List()
	if err != nil {
		t.Fatal(err)
	}
	want := []disk.Info{
		{Disk: fleet.Disk{Name: "nvme0n1", Model: "SAMSUNG MZ", Serial: "S4", SizeBytes: 937703088 * 512, SectorSize: 4096}, Path: h.Path("nvme0n1"), IDs: []string{"nvme-SAMSUNG_MZ_S4"}},
		{Disk: fleet.Disk{Name: "sda", Model: "Flash", Serial: "ABCD", SizeBytes: 512000, SectorSize: 512}, Path: h.Path("sda"), IDs: []string{"ata-Flash_ABCD"}, ReadOnly: true, Removable: true},
		{Disk: fleet.Disk{Name: "vda", Serial: "virt-1", SizeBytes: 8 * disk.GiB, SectorSize: 512}, Path: h.Path("vda"), IDs: []string{"virtio-virt-1"}},
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("List() (-want +got):\n%s", diff)
	}
	if _, err := (disk.Host{Sys: t.TempDir()}).List(); err == nil {
		t.Error("List without /sys/block: no error")
	}
}

func TestFindAndProbe(t *testing.T) {
	const size = 2 * disk.GiB
	h := fakeHost(t, map[string]string{"vda/size": "4194304", "vdb/size": "4194304", "vdc/size": "4194304", "vdd/size": "4194304"})
	blank := func(name string) *os.File {
		f, err := os.Create(h.Path(name))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { f.Close() })
		if err := f.Truncate(size); err != nil {
			t.Fatal(err)
		}
		return f
	}
	blank("vda")
	l := mustPlan(t, disk.Geometry{SizeBytes: size, SectorSize: 512}, disk.Want{RootBytes: 10 * disk.MiB})
	if err := disk.Create(t.Context(), h.Path("vda"), l, disk.ESPFiles("amd64", []byte("loader"))); err != nil {
		t.Fatal(err)
	}
	blank("vdb")
	foreign := blank("vdc")
	run(t, "sgdisk", "--clear", foreign.Name())
	if _, err := foreign.WriteAt([]byte("LUKS\xba\xbe"), 0); err != nil {
		t.Fatal(err)
	}
	mbr := blank("vdd")
	b := make([]byte, 512)
	b[450], b[510], b[511] = 0x83, 0x55, 0xAA
	if _, err := mbr.WriteAt(b, 0); err != nil {
		t.Fatal(err)
	}
	if _, err := mbr.WriteAt([]byte("\xfc\x4e\x2b\xa9"), 4096); err != nil {
		t.Fatal(err)
	}
	found, err := h.Find(t.Context())
	if err != nil || len(found) != 1 || found[0].Path != h.Path("vda") {
		t.Fatalf("Find() = %v, %v; want vda", found, err)
	}
	if p, err := found[0].PartitionPath(disk.RootLabel(fleet.SlotB)); err != nil || p != h.Path("vda4") {
		t.Errorf("root of slot B is %q, %v; want vda4", p, err)
	}
	if _, err := found[0].PartitionPath("swap"); err == nil {
		t.Error("PartitionPath(swap): no error")
	}
	if _, err := disk.Open(h.Path("vdb")); !errors.Is(err, disk.ErrNotTurnout) {
		t.Errorf("Open of a blank disk: error %v; want ErrNotTurnout", err)
	}
	for name, want := range map[string]string{"vda": "a Turnout disk", "vdb": "blank", "vdc": "partition table gpt, LUKS", "vdd": "partition table mbr, mdraid"} {
		c, err := disk.Probe(h.Path(name))
		if err != nil || c.String() != want || c.IsBlank() != (want == "blank") || c.Turnout != (name == "vda") {
			t.Errorf("Probe(%s) = %q, %v; want %q", name, c, err, want)
		}
	}
}

// A damaged primary table is answered from the backup, and so is a damaged
// backup from the primary; with both gone the disk is nobody's.
func TestOpenDamaged(t *testing.T) {
	const size = 2 * disk.GiB
	p := image(t, size)
	l := mustPlan(t, disk.Geometry{SizeBytes: size, SectorSize: 512}, disk.Want{RootBytes: 10 * disk.MiB})
	if err := disk.Create(t.Context(), p, l, disk.ESPFiles("amd64", []byte("loader"))); err != nil {
		t.Fatal(err)
	}
	f, err := os.OpenFile(p, os.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	spoil := func(at int64) {
		t.Helper()
		if _, err := f.WriteAt([]byte{0xFF, 0xFF}, at); err != nil {
			t.Fatal(err)
		}
	}
	spoil(1024 + 32) // an entry of the primary
	d, err := disk.Open(p)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(l, d.Layout); diff != "" {
		t.Errorf("layout from the backup (-want +got):\n%s", diff)
	}
	spoil(size - 512 + 56) // and the backup header
	if _, err := disk.Open(p); err == nil {
		t.Error("Open with both tables damaged: no error")
	}
	if c, err := disk.Probe(p); err != nil || c.Turnout || c.Table != "gpt" {
		t.Errorf("Probe with both tables damaged = %+v, %v; want a gpt that is not ours", c, err)
	}
}

func TestCreateRefuses(t *testing.T) {
	const size = 2 * disk.GiB
	p := image(t, size)
	l := mustPlan(t, disk.Geometry{SizeBytes: size + disk.MiB, SectorSize: 512}, disk.Want{RootBytes: 10 * disk.MiB})
	if err := disk.Create(t.Context(), p, l, nil); err == nil || !strings.Contains(err.Error(), p) {
		t.Errorf("Create with the layout of another disk: error %v", err)
	}
	l = mustPlan(t, disk.Geometry{SizeBytes: size, SectorSize: 512}, disk.Want{RootBytes: 10 * disk.MiB})
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := disk.Create(ctx, p, l, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("Create when cancelled: error %v", err)
	}
	if _, err := disk.Open(p); !errors.Is(err, disk.ErrNotTurnout) {
		t.Errorf("a cancelled Create left a layout: %v", err)
	}
}
