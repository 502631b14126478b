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

	"github.com/klauspost/compress/zstd"
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
	text, err := json.Marshal([]any{ps, exclude, s.SourceDateEpoch})
	if err != nil {
		return "", fmt.Errorf("digest of a base: %w", err)
	}
	sum := sha256.Sum256(text)
	return "sha256:" + hex.EncodeToString(sum[:]), nil
}

// saveBase hands the configured tree to whoever keeps bases. The form is a
// tar archive in zstd: one file, with a checksum over its contents.
func (b *build) saveBase(ctx context.Context) error {
	if b.SaveBase == nil {
		return nil
	}
	return b.SaveBase(func(path string) error {
		out, err := os.Create(path)
		if err != nil {
			return err
		}
		return errors.Join(writeBase(ctx, b.dir, out), out.Close())
	})
}

func writeBase(ctx context.Context, dir string, out io.Writer) error {
	z, err := zstd.NewWriter(out, zstd.WithEncoderLevel(zstd.SpeedFastest), zstd.WithEncoderCRC(true))
	if err != nil {
		return err
	}
	buf := bufio.NewWriterSize(z, 1<<20)
	w := &baseWriter{dir: dir, tar: tar.NewWriter(buf), linked: map[uint64]string{}}
	err = filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		return w.add(p, d)
	})
	if err != nil {
		return errors.Join(err, z.Close())
	}
	return errors.Join(w.tar.Close(), buf.Flush(), z.Close())
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

// restoreBase makes the tree from a saved base.
func (b *build) restoreBase(ctx context.Context) error {
	f, err := os.Open(b.Base)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBase, err)
	}
	defer func() { _ = f.Close() }() // read only
	st, err := f.Stat()
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBase, err)
	}
	counted := &countingReader{r: f, update: func(n int64) { b.progress("restore packages", n, st.Size()) }}
	z, err := zstd.NewReader(counted)
	if err != nil {
		return fmt.Errorf("%w: %w", ErrBase, err)
	}
	defer z.Close()
	dir, err := tree.OpenStrict(b.dir)
	if err != nil {
		return err
	}
	defer dir.Close()
	r := &baseReader{dir: dir}
	defer r.close()
	for t := tar.NewReader(z); ; {
		h, err := t.Next()
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			return fmt.Errorf("%w %q: %w", ErrBase, b.Base, err)
		}
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := r.entry(h, t); err != nil {
			return fmt.Errorf("%w %q: %q: %w", ErrBase, b.Base, h.Name, err)
		}
	}
	// The checksum comes after the end of the archive.
	if _, err := io.Copy(io.Discard, z); err != nil {
		return fmt.Errorf("%w %q: %w", ErrBase, b.Base, err)
	}
	return nil
}

// countingReader tells how much was read.
type countingReader struct {
	r      io.Reader
	n      int64
	update func(int64)
}

func (c *countingReader) Read(p []byte) (int, error) {
	n, err := c.r.Read(p)
	c.n += int64(n)
	c.update(c.n)
	return n, err
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
