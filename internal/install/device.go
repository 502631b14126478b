package install

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/disk"
)

// Device is a partition to be written: an opened block device, or an image
// file.
type Device interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	Size() int64 // bytes
	// Sync returns when what was written is on the medium.
	Sync() error
	// Forget drops what the kernel has cached, so that reads are of the
	// medium. Call it after Sync.
	Forget() error
}

type partition struct {
	*os.File
	size    int64
	isBlock bool
}

// OpenDevice opens a partition for writing, exclusively: one that is mounted
// or mapped is refused.
func OpenDevice(path string) (Device, error) {
	f, err := os.OpenFile(path, os.O_RDWR|unix.O_EXCL, 0)
	if errors.Is(err, unix.EBUSY) {
		return nil, fmt.Errorf("partition %s is in use, it is not written: %w", path, err)
	}
	if err != nil {
		return nil, err
	}
	g, err := disk.GeometryOf(f)
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	fi, err := f.Stat()
	if err != nil {
		return nil, errors.Join(err, f.Close())
	}
	return &partition{f, g.SizeBytes, fi.Mode()&os.ModeDevice != 0}, nil
}

func (p *partition) Size() int64 { return p.size }

func (p *partition) Forget() error {
	if !p.isBlock {
		return unix.Fadvise(int(p.Fd()), 0, 0, unix.FADV_DONTNEED)
	}
	if err := unix.IoctlSetInt(int(p.Fd()), unix.BLKFLSBUF, 0); err != nil {
		return fmt.Errorf("dropping the cache of %s: %w", p.Name(), err)
	}
	return nil
}
