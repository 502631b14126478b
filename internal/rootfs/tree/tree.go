// Package tree reads and writes a directory that is, or will be, a root file
// system, with every path resolved inside it: an absolute symbolic link in
// the tree means the tree's own root, and no path ever leaves it, whatever
// links packages ship or scripts make (openat2(2)).
//
// Names are slash-separated and relative to the root; a leading slash is
// allowed and means the same.
package tree

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path"
	"strings"

	"golang.org/x/sys/unix"
)

// Dir is an open tree. Its methods may be called from several goroutines.
type Dir struct {
	root    *os.File
	resolve uint64
}

// Open opens the tree at dir. Symbolic links in names are followed, inside
// the tree.
func Open(dir string) (*Dir, error) { return open(dir, unix.RESOLVE_IN_ROOT) }

// OpenStrict opens the tree at dir for unpacking: a symbolic link anywhere in
// a name is an error.
func OpenStrict(dir string) (*Dir, error) {
	return open(dir, unix.RESOLVE_BENEATH|unix.RESOLVE_NO_SYMLINKS)
}

func open(dir string, resolve uint64) (*Dir, error) {
	f, err := os.Open(dir)
	if err != nil {
		return nil, fmt.Errorf("opening tree: %w", err)
	}
	d := &Dir{root: f, resolve: resolve | unix.RESOLVE_NO_MAGICLINKS}
	probe, err := d.openat("/", unix.O_PATH|unix.O_DIRECTORY, 0)
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("opening tree (openat2 needs Linux 5.6): %w", err)
	}
	return d, unix.Close(probe)
}

// Path returns the path the tree was opened at.
func (d *Dir) Path() string { return d.root.Name() }

// Close closes the tree.
func (d *Dir) Close() error { return d.root.Close() }

func clean(name string) string {
	name = strings.TrimLeft(name, "/")
	if name == "" {
		return "."
	}
	return name
}

func (d *Dir) openat(name string, flags int, perm fs.FileMode) (int, error) {
	how := unix.OpenHow{Flags: uint64(flags | unix.O_CLOEXEC), Resolve: d.resolve}
	if flags&unix.O_CREAT != 0 {
		how.Mode = uint64(perm.Perm())
	}
	for {
		fd, err := unix.Openat2(int(d.root.Fd()), clean(name), &how)
		if err == unix.EINTR || err == unix.EAGAIN { // EAGAIN: a rename raced with the look-up
			continue
		}
		if err != nil {
			return -1, &fs.PathError{Op: "open", Path: name, Err: err}
		}
		return fd, nil
	}
}

// OpenFile opens the file of that name with the flags of os.OpenFile.
func (d *Dir) OpenFile(name string, flags int, perm fs.FileMode) (*os.File, error) {
	fd, err := d.openat(name, flags, perm)
	if err != nil {
		return nil, err
	}
	return os.NewFile(uintptr(fd), name), nil
}

// Parent opens the folder that holds name, which must exist, and returns it
// with the last part of name. The caller closes it.
func (d *Dir) Parent(name string) (dir *os.File, base string, err error) {
	name = strings.TrimRight(clean(name), "/")
	base = path.Base(name)
	if base == "." || base == ".." {
		return nil, "", &fs.PathError{Op: "open", Path: name, Err: fs.ErrInvalid}
	}
	dir, err = d.OpenFile(path.Dir(name), unix.O_PATH|unix.O_DIRECTORY, 0)
	return dir, base, err
}

// at calls f on the folder that holds name.
func (d *Dir) at(op, name string, f func(dirfd int, base string) error) error {
	dir, base, err := d.Parent(name)
	if err != nil {
		return err
	}
	defer dir.Close()
	if err := f(int(dir.Fd()), base); err != nil {
		return &fs.PathError{Op: op, Path: name, Err: err}
	}
	return nil
}

// ReadFile returns the contents of the file of that name.
func (d *Dir) ReadFile(name string) ([]byte, error) {
	f, err := d.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return io.ReadAll(f)
}

// WriteFile makes or replaces the file of that name, with exactly these
// permissions, and the folders above it. A symbolic link of that name is
// replaced, not followed.
func (d *Dir) WriteFile(name string, data []byte, mode fs.FileMode) error {
	if err := d.MkdirAll(path.Dir(clean(name)), 0o755); err != nil {
		return err
	}
	if err := d.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	f, err := d.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_EXCL, mode)
	if err != nil {
		return err
	}
	defer f.Close()
	if err := f.Chmod(mode); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Close()
}

// Update replaces the contents of an existing file and keeps its owner and
// permissions.
func (d *Dir) Update(name string, data []byte) error {
	f, err := d.OpenFile(name, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := f.Write(data); err != nil {
		return err
	}
	return f.Close()
}

// MkdirAll makes the folder of that name and those above it, each missing one
// with exactly these permissions.
func (d *Dir) MkdirAll(name string, mode fs.FileMode) error {
	name = strings.TrimRight(clean(name), "/")
	if name == "." || name == "" {
		return nil
	}
	if fd, err := d.openat(name, unix.O_PATH|unix.O_DIRECTORY, 0); err == nil {
		return unix.Close(fd)
	} else if !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := d.MkdirAll(path.Dir(name), mode); err != nil {
		return err
	}
	return d.at("mkdir", name, func(dirfd int, base string) error {
		switch err := unix.Mkdirat(dirfd, base, uint32(mode.Perm())); err {
		case nil:
			return unix.Fchmodat(dirfd, base, Bits(mode), 0)
		case unix.EEXIST: // another goroutine was first
			return nil
		default:
			return err
		}
	})
}

// Symlink makes or replaces the symbolic link of that name, and the folders
// above it.
func (d *Dir) Symlink(target, name string) error {
	if err := d.MkdirAll(path.Dir(clean(name)), 0o755); err != nil {
		return err
	}
	if err := d.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	return d.at("symlink", name, func(dirfd int, base string) error {
		return unix.Symlinkat(target, dirfd, base)
	})
}

// Readlink returns the target of the symbolic link of that name.
func (d *Dir) Readlink(name string) (target string, err error) {
	err = d.at("readlink", name, func(dirfd int, base string) error {
		b := make([]byte, 4096)
		n, err := unix.Readlinkat(dirfd, base, b)
		target = string(b[:max(n, 0)])
		return err
	})
	return target, err
}

// Remove removes the file, link or empty folder of that name.
func (d *Dir) Remove(name string) error {
	return d.at("remove", name, func(dirfd int, base string) error {
		err := unix.Unlinkat(dirfd, base, 0)
		if err == unix.EISDIR {
			err = unix.Unlinkat(dirfd, base, unix.AT_REMOVEDIR)
		}
		return err
	})
}

// RemoveAll removes name and what is below it; that it is missing is no error.
func (d *Dir) RemoveAll(name string) error {
	dir, base, err := d.Parent(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer dir.Close()
	return os.RemoveAll(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), base))
}

// Lstat describes the file of that name, the link itself if it is one.
func (d *Dir) Lstat(name string) (fs.FileInfo, error) {
	if clean(name) == "." {
		return d.root.Stat()
	}
	dir, base, err := d.Parent(name)
	if err != nil {
		return nil, err
	}
	defer dir.Close()
	return os.Lstat(fmt.Sprintf("/proc/self/fd/%d/%s", dir.Fd(), base))
}

// Exists reports whether there is something of that name, links followed.
func (d *Dir) Exists(name string) bool {
	fd, err := d.openat(name, unix.O_PATH, 0)
	if err != nil {
		return false
	}
	_ = unix.Close(fd)
	return true
}

// IsDir reports whether name is a folder and no link to one.
func (d *Dir) IsDir(name string) bool {
	st, err := d.Lstat(name)
	return err == nil && st.IsDir()
}

// ReadDir lists the folder of that name, sorted.
func (d *Dir) ReadDir(name string) ([]fs.DirEntry, error) {
	f, err := d.OpenFile(name, os.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return os.ReadDir(fmt.Sprintf("/proc/self/fd/%d", f.Fd()))
}

// Glob returns the names in the folder dir that match the pattern of
// path.Match, with dir before them. A missing folder matches nothing.
func (d *Dir) Glob(dir, pattern string) ([]string, error) {
	es, err := d.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, unix.ENOTDIR) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range es {
		ok, err := path.Match(pattern, e.Name())
		if err != nil {
			return nil, err
		}
		if ok {
			names = append(names, path.Join(dir, e.Name()))
		}
	}
	return names, nil
}

// Lchown sets the owner of name, the link itself if it is one.
func (d *Dir) Lchown(name string, uid, gid int) error {
	return d.at("chown", name, func(dirfd int, base string) error {
		return unix.Fchownat(dirfd, base, uid, gid, unix.AT_SYMLINK_NOFOLLOW)
	})
}

// Chmod sets the permissions of name, links followed inside the tree.
func (d *Dir) Chmod(name string, mode fs.FileMode) error {
	f, err := d.OpenFile(name, os.O_RDONLY|unix.O_NONBLOCK, 0)
	if err != nil {
		return err
	}
	defer f.Close()
	return unix.Fchmod(int(f.Fd()), Bits(mode))
}

// Bits returns the bits of mode as chmod(2) takes them.
func Bits(mode fs.FileMode) uint32 {
	b := uint32(mode.Perm())
	for _, x := range []struct {
		m fs.FileMode
		b uint32
	}{{fs.ModeSetuid, unix.S_ISUID}, {fs.ModeSetgid, unix.S_ISGID}, {fs.ModeSticky, unix.S_ISVTX}} {
		if mode&x.m != 0 {
			b |= x.b
		}
	}
	return b
}
