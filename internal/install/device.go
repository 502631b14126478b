package install

import (
	"errors"
	"fmt"
	"io"
	"os"
	"unsafe"

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

// partition reads and writes around the kernel's cache where it can: whole
// blocks, from aligned memory, on file systems that allow it. What is read
// that way comes from the medium.
type partition struct {
	*os.File
	direct  *os.File // opened with O_DIRECT; nil where that is not possible
	size    int64
	isBlock bool
}

// directAlign is what O_DIRECT asks of offsets, lengths and memory on any
// disk, in bytes.
const directAlign = 4096

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
	direct, err := os.OpenFile(path, os.O_RDWR|unix.O_DIRECT, 0)
	if err != nil {
		direct = nil // as on tmpfs
	}
	return &partition{f, direct, g.SizeBytes, fi.Mode()&os.ModeDevice != 0}, nil
}

// via returns the file to use for a piece.
func (p *partition) via(b []byte, off int64) *os.File {
	if p.direct == nil || len(b) == 0 || (int64(len(b))|off|int64(uintptr(unsafe.Pointer(&b[0]))))%directAlign != 0 {
		return p.File
	}
	return p.direct
}

func (p *partition) ReadAt(b []byte, off int64) (int, error) { return p.via(b, off).ReadAt(b, off) }

func (p *partition) WriteAt(b []byte, off int64) (int, error) { return p.via(b, off).WriteAt(b, off) }

// isDirect reports whether reads of whole blocks come from the medium.
func (p *partition) isDirect() bool { return p.direct != nil }

func (p *partition) Close() error {
	if p.direct == nil {
		return p.File.Close()
	}
	return errors.Join(p.direct.Close(), p.File.Close())
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
