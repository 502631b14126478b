package localvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
)

// diskBytes is the size of the machine's disk, a sparse file.
const diskBytes = 8 * disk.GiB

// WriteDisk makes a disk at path with the image in slot A, confirmed, as an
// installation leaves it. Each part is checked against its digest.
func WriteDisk(ctx context.Context, l *oci.Layout, img *oci.Image, path string) (err error) {
	m := img.Manifest
	plan, err := disk.Plan(disk.Geometry{SizeBytes: diskBytes, SectorSize: 512},
		disk.Want{RootBytes: m.Root.SizeBytes, VerityBytes: m.Verity.SizeBytes, UKIBytes: m.UKI.SizeBytes, Architecture: m.Architecture})
	if err != nil {
		return err
	}
	loader, err := read(ctx, l, m.Loader)
	if err != nil {
		return err
	}
	uki, err := read(ctx, l, m.UKI)
	if err != nil {
		return err
	}
	files := disk.ESPFiles(m.Architecture, loader)
	name := abslot.Name{Generation: 1, Short: manifest.Short(img.Digest)}
	files[abslot.LinuxDir+"/"+name.String()] = uki
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if err := f.Truncate(diskBytes); err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	if err := disk.Write(ctx, f, plan, files); err != nil {
		return fmt.Errorf("disk: %w", err)
	}
	for label, blob := range map[string]manifest.Blob{disk.RootLabel(fleet.SlotA): m.Root, disk.VerityLabel(fleet.SlotA): m.Verity.Blob} {
		p, err := plan.Partition(label)
		if err != nil {
			return err
		}
		if err := fill(ctx, l, blob, f, p); err != nil {
			return fmt.Errorf("disk: partition %s: %w", label, err)
		}
	}
	return nil
}

func check(ctx context.Context, l *oci.Layout, b manifest.Blob) error {
	return l.CheckBlob(ctx, oci.Descriptor{Digest: b.Digest, Size: b.SizeBytes})
}

func read(ctx context.Context, l *oci.Layout, b manifest.Blob) ([]byte, error) {
	if err := check(ctx, l, b); err != nil {
		return nil, err
	}
	f, err := l.Blob(b.Digest)
	if err != nil {
		return nil, err
	}
	raw, err := io.ReadAll(f)
	return raw, errors.Join(err, f.Close())
}

func fill(ctx context.Context, l *oci.Layout, b manifest.Blob, to io.WriterAt, p disk.Partition) error {
	if b.SizeBytes > p.SizeBytes {
		return fmt.Errorf("%d bytes do not fit into %d", b.SizeBytes, p.SizeBytes)
	}
	if err := check(ctx, l, b); err != nil {
		return err
	}
	f, err := l.Blob(b.Digest)
	if err != nil {
		return err
	}
	_, err = io.Copy(io.NewOffsetWriter(to, p.StartBytes), f)
	return errors.Join(err, f.Close())
}
