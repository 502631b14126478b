// Package espdir is the abslot.ESP of a running node: a mounted EFI system
// partition (Linux, vfat). Every change is flushed through the file system
// and the disk before it returns. It does not mount anything.
package espdir

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/abslot"
)

// reserveBytes stays free on the ESP when a file of more than smallBytes is
// put: the loader and the journal must be able to write after it.
const (
	reserveBytes = 4 << 20
	smallBytes   = 1 << 20
)

// ESP is a mounted EFI system partition.
type ESP struct {
	root string
}

var (
	_ abslot.ESP    = (*ESP)(nil)
	_ abslot.Locker = (*ESP)(nil)
)

// Open returns the ESP mounted at root. It fails with abslot.ErrReadOnly when
// the mount is read-only: a node that cannot rename cannot count on its
// slots, and must say so before anything depends on it.
func Open(root string) (*ESP, error) {
	e := &ESP{root: filepath.Clean(root)}
	if fi, err := os.Stat(e.root); err != nil || !fi.IsDir() {
		return nil, fmt.Errorf("ESP %q is not mounted: %w", root, errors.Join(err, unix.ENOTDIR))
	}
	return e, e.writable()
}

// writable asks the mount, not the folder: kernels turn a damaged FAT
// read-only under our feet.
func (e *ESP) writable() error {
	var st unix.Statfs_t
	if err := unix.Statfs(e.root, &st); err != nil {
		return fmt.Errorf("ESP %q: %w", e.root, err)
	}
	if st.Flags&unix.ST_RDONLY != 0 {
		return fmt.Errorf("%w: %q is mounted read-only; look for FAT errors in the kernel log", abslot.ErrReadOnly, e.root)
	}
	return nil
}

// Lock implements abslot.Locker with flock on the root of the mount: one
// transition at a time on the whole node.
func (e *ESP) Lock(context.Context) (func(), error) {
	d, err := os.Open(e.root)
	if err != nil {
		return nil, fmt.Errorf("ESP %q: %w", e.root, err)
	}
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		d.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%w in another process", abslot.ErrBusy)
		}
		return nil, fmt.Errorf("locking ESP %q: %w", e.root, err)
	}
	return func() { d.Close() }, nil
}

// List implements abslot.ESP.
func (e *ESP) List(_ context.Context, dir string) ([]abslot.File, error) {
	d, err := os.Open(e.path(dir))
	if errors.Is(err, os.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer d.Close()
	entries, err := d.ReadDir(-1) // in directory order, unlike os.ReadDir
	if err != nil {
		return nil, err
	}
	var out []abslot.File
	for _, x := range entries {
		fi, err := x.Info()
		if err != nil {
			return nil, err
		}
		if fi.Mode().IsRegular() {
			out = append(out, abslot.File{Name: x.Name(), SizeBytes: fi.Size()})
		}
	}
	return out, nil
}

// Open implements abslot.ESP.
func (e *ESP) Open(_ context.Context, path string) (abslot.ReadAtCloser, int64, error) {
	f, err := os.Open(e.path(path))
	if err != nil {
		return nil, 0, wrap(err)
	}
	fi, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, 0, wrap(err)
	}
	return f, fi.Size(), nil
}

// Put implements abslot.ESP: temporary name, data, fsync, then move. The page
// cache of the file is dropped, so that reading it back reads the disk.
func (e *ESP) Put(_ context.Context, path string, r io.Reader, size int64) error {
	if err := e.writable(); err != nil {
		return err
	}
	if err := e.room(path, size); err != nil {
		return err
	}
	dst := e.path(path)
	if err := e.mkdir(filepath.Dir(path)); err != nil {
		return wrap(err)
	}
	tmp := tempPath(dst)
	if err := writeTemp(tmp, r, size); err != nil {
		if rerr := os.Remove(tmp); rerr != nil && !errors.Is(rerr, os.ErrNotExist) {
			err = errors.Join(err, rerr)
		}
		return fmt.Errorf("writing %s: %w", path, wrap(err))
	}
	if err := e.move(tmp, dst, 0); err != nil {
		return fmt.Errorf("writing %s: %w", path, err)
	}
	return nil
}

// tempPath swaps the suffix for .tmp, so that temporary names are no longer
// than final ones and share a directory sector with them.
func tempPath(p string) string { return strings.TrimSuffix(p, filepath.Ext(p)) + ".tmp" }

func writeTemp(tmp string, r io.Reader, size int64) (err error) {
	if err := os.Remove(tmp); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	// 0644: a file without the owner's write bit gets the FAT read-only
	// attribute, and firmware then refuses to rename it (systemd issue 36170).
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	n, err := io.Copy(f, io.LimitReader(r, size+1))
	if err != nil {
		return err
	}
	if n != size {
		return fmt.Errorf("source does not have the %d bytes it promised", size)
	}
	if err := f.Sync(); err != nil {
		return err
	}
	fi, err := f.Stat()
	if err != nil {
		return err
	}
	if fi.Mode().Perm()&0o200 == 0 {
		return fmt.Errorf("%w: %s came out read-only; mount the ESP with umask=0022", abslot.ErrReadOnly, tmp)
	}
	return unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED)
}

// room is the preflight: a full ESP is told before anything was changed. An
// existing file under the same name stays until the new one is complete, so
// it gives no room back.
func (e *ESP) room(path string, size int64) error {
	var st unix.Statfs_t
	if err := unix.Statfs(e.root, &st); err != nil {
		return fmt.Errorf("ESP %q: %w", e.root, err)
	}
	free, need := int64(st.Bavail)*st.Bsize, size
	if size > smallBytes {
		need += reserveBytes
	}
	if fi, err := os.Stat(tempPath(e.path(path))); err == nil { // of an interrupted Put
		free += fi.Size()
	}
	if need > free {
		return &abslot.SpaceError{Where: e.root, File: path, NeedBytes: need, FreeBytes: free}
	}
	return nil
}

func (e *ESP) mkdir(dir string) error {
	full := e.path(dir)
	if _, err := os.Stat(full); err == nil {
		return nil
	}
	if err := os.MkdirAll(full, 0o755); err != nil {
		return err
	}
	return e.flush(filepath.Dir(full))
}

// Rename implements abslot.ESP with RENAME_NOREPLACE.
func (e *ESP) Rename(_ context.Context, oldPath, newPath string) error {
	if filepath.Dir(oldPath) != filepath.Dir(newPath) {
		return fmt.Errorf("renaming %s to %s: a rename stays in its folder", oldPath, newPath)
	}
	if err := e.writable(); err != nil {
		return err
	}
	return e.move(e.path(oldPath), e.path(newPath), unix.RENAME_NOREPLACE)
}

// move renames and flushes: the file, its folder, the file system, in this
// order. Linux' vfat gives the new directory entry no content at first, and
// fills it in when the inode is written: flushing the folder before the file
// would put an empty file on the disk, and the old name away, for a moment
// (seen by TestPowerCut). Flushing the file first writes the sector once, with
// the finished new entry and without the old one.
func (e *ESP) move(src, dst string, flags uint) error {
	f, err := os.Open(src)
	if err != nil {
		return wrap(err)
	}
	defer f.Close()
	if err := unix.Renameat2(unix.AT_FDCWD, src, unix.AT_FDCWD, dst, flags); err != nil {
		return wrap(&os.LinkError{Op: "rename", Old: src, New: dst, Err: err})
	}
	if err := f.Sync(); err != nil {
		return fmt.Errorf("flushing %s: %w", dst, wrap(err))
	}
	return e.flush(filepath.Dir(dst))
}

// Remove implements abslot.ESP.
func (e *ESP) Remove(_ context.Context, path string) error {
	full := e.path(path)
	if _, err := os.Lstat(full); errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err := os.Remove(full); err != nil {
		return wrap(err)
	}
	return e.flush(filepath.Dir(full))
}

// flush makes what was done in a folder durable: fsync of the folder writes
// its entries, syncfs the allocation table, and both flush the disk's cache.
func (e *ESP) flush(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return wrap(err)
	}
	defer d.Close()
	if err := d.Sync(); err != nil {
		return fmt.Errorf("flushing %s: %w", dir, wrap(err))
	}
	if err := unix.Syncfs(int(d.Fd())); err != nil {
		return fmt.Errorf("flushing %s: %w", e.root, wrap(err))
	}
	return nil
}

func (e *ESP) path(p string) string { return filepath.Join(e.root, filepath.FromSlash(p)) }

// wrap gives the errors of the file system their slot names.
func wrap(err error) error {
	for _, m := range []struct {
		errno, as error
	}{
		{unix.EROFS, abslot.ErrReadOnly}, {unix.ENOSPC, abslot.ErrNoSpace},
		{unix.ENOENT, abslot.ErrNotExist}, {unix.EEXIST, abslot.ErrExist},
	} {
		if errors.Is(err, m.errno) {
			return fmt.Errorf("%w: %w", m.as, err)
		}
	}
	return err
}
