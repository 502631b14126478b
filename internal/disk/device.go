package disk

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"time"
	"unsafe"

	"github.com/diskfs/go-diskfs/backend"
	"golang.org/x/sys/unix"
)

// Device is a disk, a partition or an image of one: an *os.File, or what a
// test puts in its place.
type Device interface {
	io.ReaderAt
	io.WriterAt
	// Sync returns when all that was written is on the medium.
	Sync() error
}

// GeometryOf asks a block device, or takes the size of an image file, whose
// sectors count as 512 bytes.
func GeometryOf(f *os.File) (Geometry, error) {
	fi, err := f.Stat()
	if err != nil {
		return Geometry{}, err
	}
	if fi.Mode()&os.ModeDevice == 0 {
		return Geometry{SizeBytes: fi.Size(), SectorSize: 512}, nil
	}
	sector, err := unix.IoctlGetInt(int(f.Fd()), unix.BLKSSZGET)
	if err != nil {
		return Geometry{}, fmt.Errorf("sector size of %q: %w", f.Name(), err)
	}
	var size uint64
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, f.Fd(), unix.BLKGETSIZE64, uintptr(unsafe.Pointer(&size))); errno != 0 {
		return Geometry{}, fmt.Errorf("size of %q: %w", f.Name(), errno)
	}
	return Geometry{SizeBytes: int64(size), SectorSize: sector}, nil
}

// storage lets go-diskfs work on a Device.
type storage struct {
	Device
	size, pos int64
}

var _ backend.Storage = (*storage)(nil)

func newStorage(d Device, size int64) *storage { return &storage{Device: d, size: size} }

func (s *storage) Read(b []byte) (int, error) {
	n, err := s.ReadAt(b, s.pos)
	s.pos += int64(n)
	return n, err
}

func (s *storage) Seek(off int64, whence int) (int64, error) {
	switch whence {
	case io.SeekCurrent:
		off += s.pos
	case io.SeekEnd:
		off += s.size
	}
	if off < 0 {
		return 0, errors.New("seek before the start of the device")
	}
	s.pos = off
	return off, nil
}

func (s *storage) Close() error                            { return nil }
func (s *storage) Path() string                            { return "" }
func (s *storage) Sys() (*os.File, error)                  { return nil, backend.ErrNotSuitable }
func (s *storage) Writable() (backend.WritableFile, error) { return s, nil }
func (s *storage) Stat() (fs.FileInfo, error)              { return info{s.size}, nil }

type info struct{ size int64 }

func (i info) Name() string     { return "device" }
func (i info) Size() int64      { return i.size }
func (info) Mode() fs.FileMode  { return 0o600 }
func (info) ModTime() time.Time { return time.Time{} }
func (info) IsDir() bool        { return false }
func (info) Sys() any           { return nil }

// readOnly is a Device that refuses to be written.
type readOnly struct{ io.ReaderAt }

func (readOnly) WriteAt([]byte, int64) (int, error) { return 0, fs.ErrPermission }
func (readOnly) Sync() error                        { return nil }
