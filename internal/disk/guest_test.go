package disk_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/abslot/guest"
	"github.com/turnout-project/turnout/internal/disk"
)

// In a guest this program sets up real block devices.
func TestMain(m *testing.M) {
	if !guest.IsInit() {
		os.Exit(m.Run())
	}
	guest.Main(inGuest)
}

const guestPassed = "guest: all passed"

// TestBlockDevices sets up the disks of a machine, with sectors of 512 and of
// 4096 bytes, as the installer does: the kernel must show the partitions, find
// the layout, mount the ESP, and refuse a disk in use.
func TestBlockDevices(t *testing.T) {
	k := guest.DebianKernel(t)
	initrd := t.TempDir() + "/initrd"
	init := k.Initrd(t, guest.Build(t, "test", "-c", "."), "virtio_pci", "virtio_blk", "vfat", "nls_cp437", "nls_ascii")
	if err := os.WriteFile(initrd, init, 0o600); err != nil {
		t.Fatal(err)
	}
	a, b := image(t, 2*disk.GiB), image(t, 3*disk.GiB)
	console := guest.Run(t, "-kernel", k.Image, "-initrd", initrd, "-append", "console=ttyS0 quiet panic=-1",
		"-drive", "if=none,id=a,format=raw,file="+a, "-device", "virtio-blk-pci,drive=a,serial=disk-a",
		"-drive", "if=none,id=b,format=raw,file="+b, "-device", "virtio-blk-pci,drive=b,serial=disk-b,logical_block_size=4096,physical_block_size=4096")
	if !strings.Contains(console, guestPassed) {
		t.Fatalf("the guest did not pass:\n%s", console)
	}
	if out := run(t, "sgdisk", "-v", a); !strings.Contains(out, "No problems found") {
		t.Errorf("sgdisk -v: %s", out)
	}
}

func inGuest() error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	disks, err := disk.Host{}.List()
	if err != nil {
		return err
	}
	if len(disks) != 2 || disks[0].SectorSize != 512 || disks[1].SectorSize != 4096 || disks[1].Serial != "disk-b" {
		return fmt.Errorf("disks: %+v", disks)
	}
	for _, d := range disks {
		if c, err := disk.Probe(d.Path); err != nil || !c.IsBlank() {
			return fmt.Errorf("probing %s: %v, %w", d.Path, c, err)
		}
		if err := setUp(ctx, d); err != nil {
			return fmt.Errorf("%s: %w", d.Name, err)
		}
	}
	found, err := disk.Host{}.Find(ctx)
	if err != nil || len(found) != 2 {
		return fmt.Errorf("found %d disks: %w", len(found), err)
	}
	fmt.Println(guestPassed)
	return nil
}

func setUp(ctx context.Context, i disk.Info) error {
	l, err := disk.Plan(disk.Geometry{SizeBytes: int64(i.SizeBytes), SectorSize: i.SectorSize}, disk.Want{RootBytes: 10 * disk.MiB})
	if err != nil {
		return err
	}
	if err := disk.Create(ctx, i.Path, l, disk.ESPFiles("amd64", []byte("loader"))); err != nil {
		return err
	}
	d, err := disk.Open(i.Path)
	if err != nil {
		return err
	}
	if err := (disk.Host{}).Reread(ctx, d); err != nil {
		return err
	}
	esp, err := d.PartitionPath(disk.LabelESP)
	if err != nil {
		return err
	}
	dir := "/run/" + i.Name
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(esp, dir, "vfat", 0, "umask=0022"); err != nil {
		return fmt.Errorf("mounting the ESP: %w", err)
	}
	if b, err := os.ReadFile(dir + "/loader/loader.conf"); err != nil || string(b) != disk.LoaderConf {
		return fmt.Errorf("loader.conf is %q: %w", b, err)
	}
	if err := disk.Create(ctx, i.Path, l, nil); !errors.Is(err, unix.EBUSY) || !strings.Contains(err.Error(), "in use") {
		return fmt.Errorf("creating over a mounted disk: %w; want EBUSY", err)
	}
	return unix.Unmount(dir, 0)
}
