package rootfs

import (
	"archive/tar"
	"bufio"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/rootfs/tree"
)

// ErrBase is wrapped when a saved base cannot be used: it is damaged, or no
// base at all.
var ErrBase = errors.New("saved base of a root file system")

// BaseDigest returns "sha256:…" over what a base, the tree with its packages
// configured and nothing of the recipe applied, is made from.
func (s *Spec) BaseDigest() (string, error) {
	var exclude []string
	if s.Recipe != nil {
		exclude = s.Recipe.Kernel.ExcludeModules
	}
	type pkg struct{ Name, Version, Architecture, SHA256 string }
	var ps []pkg
	for _, p := range s.Packages {
		ps = append(ps, pkg{p.Name, p.Version, p.Architecture, p.SHA256})
	}
	made := []any{ps, exclude, s.SourceDateEpoch}
	if len(s.Accounts) > 0 {
		made = append(made, s.Accounts)
	}
	text, err := json.Marshal(made)
	if err != nil {
		return "", fmt.Errorf("digest of a base: %w", err)
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// Files of a base, which is a folder that only root may look into: there are
// setuid programs in the tree.
const (
	baseTree = "tree"
	baseSum  = "sum" // treeSum of it
)

// saveBase hands the configured tree to whoever keeps bases, and goes on in
// an overlay above it.
func (b *build) saveBase(ctx context.Context) error {
	if b.SaveBase == nil {
		return nil
	}
	path, err := b.SaveBase(func(path string) error {
		sum, err := treeSum(ctx, b.dir, b.Jobs)
		if err != nil {
			return err
		}
		if err := os.Mkdir(path, 0o700); err != nil {
			return err
		}
		kept := filepath.Join(path, baseTree)
		if err := os.Rename(b.dir, kept); errors.Is(err, unix.EXDEV) {
			err = copyTree(ctx, b.dir, kept)
			if err != nil {
				return err
			}
		} else if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(path, baseSum), []byte(sum), 0o644)
	})
	if err != nil {
		return err
	}
	if err := b.hold(path); err != nil {
		return err
	}
	return b.startFrom(ctx, path)
}

// restoreBase starts from a base that an earlier build saved.
func (b *build) restoreBase(ctx context.Context) (err error) {
	defer func() {
		if err != nil {
			b.result.Close()
			b.result.base = nil
		}
	}()
	if err := b.hold(b.Base); err != nil {
		return fmt.Errorf("%w: %w", ErrBase, err)
	}
	want, err := os.ReadFile(filepath.Join(b.Base, baseSum))
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBase, err)
	}
	got, err := treeSum(ctx, filepath.Join(b.Base, baseTree), b.Jobs)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		return fmt.Errorf("%w %q: %w", ErrBase, b.Base, err)
	}
	if got != string(want) {
		return fmt.Errorf("%w %q: its files are not those that were saved", ErrBase, b.Base)
	}
	return b.startFrom(ctx, b.Base)
}

// hold keeps others from removing a base until the result is closed.
func (b *build) hold(path string) error {
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_SH|unix.LOCK_NB); err != nil {
		return errors.Join(fmt.Errorf("%q is being removed: %w", path, err), f.Close())
	}
	b.result.base = f
	return nil
}

// RemoveBase removes a base that cannot be used, unless a build that could
// use it still does: its files must not go while they are below its own.
func RemoveBase(path string) error {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return fmt.Errorf("%q is in use by another build; try again when that has ended: %w", path, err)
	}
	return os.RemoveAll(path)
}

// startFrom makes the tree of the base at path the tree of this build. What
// the build changes is in an overlay that nothing else sees, and that ends
// with the process; where the kernel refuses overlays, it is a copy.
func (b *build) startFrom(ctx context.Context, path string) error {
	lower := filepath.Join(path, baseTree)
	mount, err := overlay(lower, filepath.Join(b.WorkDir, "changes"), filepath.Join(b.WorkDir, "overlay"))
	if err != nil {
		b.Log.Debug("copying the packages' tree, since it cannot be overlaid", "error", err)
		if err := os.RemoveAll(b.dir); err != nil {
			return err
		}
		if err := copyTree(ctx, lower, b.dir); err != nil {
			return err
		}
	} else {
		b.result.mount = mount
		b.dir = fmt.Sprintf("/proc/%d/fd/%d/.", os.Getpid(), mount.Fd())
	}
	b.tree.Close()
	b.tree, err = tree.Open(b.dir)
	return err
}

// copyTree makes a tree at to, which must not be there, like that at from.
func copyTree(ctx context.Context, from, to string) error {
	if err := os.Mkdir(to, 0o755); err != nil {
		return err
	}
	r, w := io.Pipe()
	go func() { _ = w.CloseWithError(writeTree(ctx, from, w)) }() // the reader gets the error
	err := readTree(ctx, bufio.NewReaderSize(r, 1<<20), to)
	return errors.Join(err, r.Close())
}

func writeTree(ctx context.Context, dir string, out io.Writer) error {
	buf := bufio.NewWriterSize(out, 1<<20)
	w := &baseWriter{dir: dir, tar: tar.NewWriter(buf), linked: map[uint64]string{}}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		return w.add(p, d)
	})
	if err != nil {
		return err
	}
	return errors.Join(w.tar.Close(), buf.Flush())
}

func readTree(ctx context.Context, in io.Reader, to string) error {
	dir, err := tree.OpenStrict(to)
	if err != nil {
		return err
	}
	defer dir.Close()
	r := &baseReader{dir: dir}
	defer r.close()
	for t := tar.NewReader(in); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.entry(h, t); err != nil {
			return fmt.Errorf("%q: %w", h.Name, err)
		}
	}
}

// baseWriter writes a tree, parents first.
type baseWriter struct {
	dir    string
	tar    *tar.Writer
	linked map[uint64]string // inode of a file with several links, and its first name
}

const xattrRecord = "SCHILY.xattr."

func (w *baseWriter) add(p string, d fs.DirEntry) error {
	name, err := filepath.Rel(w.dir, p)
	if err != nil {
		return err
	}
	var st unix.Stat_t
	if err := unix.Lstat(p, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: p, Err: err}
	}
	h := &tar.Header{Name: name, Uid: int(st.Uid), Gid: int(st.Gid), Mode: int64(st.Mode & 0o7777), Format: tar.FormatPAX}
	switch st.Mode & unix.S_IFMT {
	case unix.S_IFDIR:
		h.Typeflag, h.Name = tar.TypeDir, name+"/"
	case unix.S_IFLNK:
		h.Typeflag = tar.TypeSymlink
		if h.Linkname, err = os.Readlink(p); err != nil {
			return err
		}
	case unix.S_IFREG:
		h.Typeflag, h.Size = tar.TypeReg, st.Size
		if first, ok := w.linked[st.Ino]; ok {
			h.Typeflag, h.Linkname, h.Size = tar.TypeLink, first, 0
		} else if st.Nlink > 1 {
			w.linked[st.Ino] = name
		}
	default:
		return fmt.Errorf("%q is neither a file, a folder nor a link", p)
	}
	if h.Typeflag != tar.TypeLink {
		if h.PAXRecords, err = xattrs(p); err != nil {
			return err
		}
	}
	if err := w.tar.WriteHeader(h); err != nil {
		return fmt.Errorf("%q: %w", p, err)
	}
	if h.Typeflag != tar.TypeReg {
		return nil
	}
	f, err := os.Open(p)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read only
	_, err = io.Copy(w.tar, f)
	return err
}

// xattrs returns the extended attributes that squashfs can hold, as records of
// PAX.
func xattrs(p string) (map[string]string, error) {
	names := make([]byte, 4096)
	n, err := unix.Llistxattr(p, names)
	if errors.Is(err, unix.ENOTSUP) || err == nil && n == 0 {
		return nil, nil
	}
	if err != nil {
		return nil, &fs.PathError{Op: "llistxattr", Path: p, Err: err}
	}
	records := map[string]string{}
	for name := range strings.SplitSeq(strings.TrimSuffix(string(names[:n]), "\x00"), "\x00") {
		if strings.HasPrefix(name, "system.") || name == "security.selinux" {
			continue
		}
		value := make([]byte, 4096)
		n, err := unix.Lgetxattr(p, name, value)
		if err != nil {
			return nil, &fs.PathError{Op: "lgetxattr", Path: p, Err: err}
		}
		records[xattrRecord+name] = string(value[:n])
	}
	return records, nil
}

// baseReader writes the entries of a base into an empty tree. Entries of one
// folder follow each other, so that it stays open between them.
type baseReader struct {
	dir    *tree.Dir
	folder string
	parent *os.File
}

func (r *baseReader) close() {
	if r.parent != nil {
		_ = r.parent.Close()
	}
}

func (r *baseReader) entry(h *tar.Header, content io.Reader) error {
	name := strings.TrimSuffix(h.Name, "/")
	if name == "." {
		top := r.dir.Path()
		return errors.Join(os.Chown(top, h.Uid, h.Gid), os.Chmod(top, fromBits(uint32(h.Mode))))
	}
	base, err := r.open(name)
	if err != nil {
		return err
	}
	fd := int(r.parent.Fd())
	switch h.Typeflag {
	case tar.TypeDir:
		err = unix.Mkdirat(fd, base, 0o700)
	case tar.TypeSymlink:
		err = unix.Symlinkat(h.Linkname, fd, base)
	case tar.TypeLink:
		old, oldBase, err := r.dir.Parent(h.Linkname)
		if err != nil {
			return err
		}
		defer func() { _ = old.Close() }() // opened as a path only
		return unix.Linkat(int(old.Fd()), oldBase, fd, base, 0)
	case tar.TypeReg:
		return r.file(fd, base, h, content)
	default:
		return fmt.Errorf("entry of type %q", h.Typeflag)
	}
	if err != nil {
		return err
	}
	if err := unix.Fchownat(fd, base, h.Uid, h.Gid, unix.AT_SYMLINK_NOFOLLOW); err != nil {
		return err
	}
	if h.Typeflag == tar.TypeDir {
		return unix.Fchmodat(fd, base, uint32(h.Mode), 0)
	}
	return nil
}

// open makes parent the folder of name and returns the last part of it.
func (r *baseReader) open(name string) (string, error) {
	folder, base := filepath.Split(name)
	if r.parent != nil && folder == r.folder {
		return base, nil
	}
	dir, base, err := r.dir.Parent(name)
	if err != nil {
		return "", err
	}
	r.close()
	r.folder, r.parent = folder, dir
	return base, nil
}

func (r *baseReader) file(parent int, base string, h *tar.Header, content io.Reader) (err error) {
	fd, err := unix.Openat(parent, base, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL|unix.O_NOFOLLOW|unix.O_CLOEXEC, 0o600)
	if err != nil {
		return err
	}
	f := os.NewFile(uintptr(fd), base)
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := io.Copy(f, content); err != nil {
		return err
	}
	// The owner first: changing it clears setuid, setgid and capabilities.
	if err := unix.Fchown(fd, h.Uid, h.Gid); err != nil {
		return err
	}
	if err := unix.Fchmod(fd, uint32(h.Mode)); err != nil {
		return err
	}
	for key, value := range h.PAXRecords {
		if name, ok := strings.CutPrefix(key, xattrRecord); ok {
			if err := unix.Fsetxattr(fd, name, []byte(value), 0); err != nil {
				return fmt.Errorf("attribute %s: %w", name, err)
			}
		}
	}
	return nil
}
