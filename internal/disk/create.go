package disk

import (
	"context"
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// LoaderPath is where firmware looks for a loader on a disk of which it knows
// nothing, by architecture.
var LoaderPath = map[string]string{"": "EFI/BOOT/BOOTX64.EFI", "amd64": "EFI/BOOT/BOOTX64.EFI", "arm64": "EFI/BOOT/BOOTAA64.EFI"}

// LoaderConf is the constant loader/loader.conf. It names no default entry:
// systemd-boot follows a default even to an entry without tries.
const LoaderConf = "timeout 0\neditor no\nauto-entries no\nauto-firmware no\n"

// ESPFiles returns what an ESP holds before any image is on it.
func ESPFiles(arch string, loader []byte) map[string][]byte {
	return map[string][]byte{LoaderPath[arch]: loader, "loader/loader.conf": []byte(LoaderConf)}
}

// espFolders are made empty, so that slots need not make folders later.
var espFolders = []string{"EFI/Linux", "turnout"}

// Create writes a layout to the disk at path and everything on it is lost:
// signatures of old file systems are wiped, the ESP is formatted and filled
// with files, and last the partition table is written. Slots and state stay
// empty. The device is opened exclusively: a disk of which anything is
// mounted is refused. When Create fails or is interrupted, the disk has no
// valid Turnout layout.
//
// The kernel does not know the partitions yet: see Host.Reread.
func Create(ctx context.Context, path string, l Layout, files map[string][]byte) (err error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_EXCL, 0)
	if errors.Is(err, unix.EBUSY) {
		return fmt.Errorf("disk %q is in use: unmount its partitions first: %w", path, err)
	}
	if err != nil {
		return fmt.Errorf("opening disk: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	g, err := GeometryOf(f)
	if err != nil {
		return err
	}
	if fi, serr := f.Stat(); serr == nil && fi.Mode().IsRegular() {
		g.SectorSize = l.SectorSize // an image file may stand for any disk
	}
	if g != l.Geometry {
		return fmt.Errorf("disk %q has %d bytes in %d-byte sectors, the layout is for %d and %d", path, g.SizeBytes, g.SectorSize, l.SizeBytes, l.SectorSize)
	}
	if err := Write(ctx, f, l, files); err != nil {
		return fmt.Errorf("disk %q: %w", path, err)
	}
	return nil
}

// Write is Create on an open device.
func Write(ctx context.Context, dev Device, l Layout, files map[string][]byte) error {
	if err := wipe(ctx, dev, l); err != nil {
		return err
	}
	esp, err := l.Partition(LabelESP)
	if err != nil {
		return err
	}
	fat, err := FormatFAT(dev, esp.StartBytes, esp.SizeBytes, l.SectorSize)
	if err != nil {
		return err
	}
	for _, d := range espFolders {
		if err := fat.Mkdir(d); err != nil {
			return err
		}
	}
	if err := fat.WriteFiles(files); err != nil {
		return err
	}
	if err := ctx.Err(); err != nil {
		return err
	}
	return writeTable(dev, l)
}

// wipe zeroes both ends of the disk and of each partition: that is where
// partition tables and file systems leave their signatures.
func wipe(ctx context.Context, dev Device, l Layout) error {
	zero := make([]byte, MiB)
	for _, p := range append([]Partition{{Label: "disk", SizeBytes: l.SizeBytes}}, l.Partitions...) {
		if err := ctx.Err(); err != nil {
			return err
		}
		last := p.StartBytes + p.SizeBytes - MiB
		for _, at := range []int64{p.StartBytes, last} {
			if _, err := dev.WriteAt(zero, at); err != nil {
				return fmt.Errorf("wiping %s: %w", p.Label, err)
			}
		}
	}
	return dev.Sync()
}
