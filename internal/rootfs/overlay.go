package rootfs

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"
)

// overlay mounts an overlay of lower, with changes in upper, nowhere: only
// the file that it returns leads there. The kernel ends it with the file, and
// so with the process, whatever ends that.
func overlay(lower, upper, work string) (*os.File, error) {
	for _, dir := range []string{upper, work} {
		if err := os.RemoveAll(dir); err != nil {
			return nil, err
		}
	}
	if err := errors.Join(os.Mkdir(upper, 0o755), os.Mkdir(work, 0o700), likeIn(lower, upper)); err != nil {
		return nil, err
	}
	fsfd, err := unix.Fsopen("overlay", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return nil, os.NewSyscallError("fsopen", err)
	}
	defer func() { _ = unix.Close(fsfd) }()
	for _, o := range []struct{ key, dir string }{{"lowerdir", lower}, {"upperdir", upper}, {"workdir", work}} {
		// By number, since an option has no room for commas and colons.
		f, err := os.Open(o.dir)
		if err != nil {
			return nil, err
		}
		defer func() { _ = f.Close() }() // a folder
		if err := unix.FsconfigSetString(fsfd, o.key, fmt.Sprintf("/proc/self/fd/%d", f.Fd())); err != nil {
			return nil, os.NewSyscallError("fsconfig "+o.key, err)
		}
	}
	if err := unix.FsconfigCreate(fsfd); err != nil {
		return nil, os.NewSyscallError("fsconfig create", err)
	}
	fd, err := unix.Fsmount(fsfd, unix.FSMOUNT_CLOEXEC, 0)
	if err != nil {
		return nil, os.NewSyscallError("fsmount", err)
	}
	return os.NewFile(uintptr(fd), "overlay"), nil
}

// likeIn gives the top folder of an overlay the owner and mode that it has in
// the tree below.
func likeIn(lower, upper string) error {
	var st unix.Stat_t
	if err := unix.Lstat(lower, &st); err != nil {
		return &fs.PathError{Op: "lstat", Path: lower, Err: err}
	}
	return errors.Join(os.Chown(upper, int(st.Uid), int(st.Gid)), unix.Chmod(upper, st.Mode&0o7777))
}

// treeSum returns the SHA-256 (hex) of all that a tree is: names, owners,
// modes, attributes, links and contents.
func treeSum(ctx context.Context, dir string, jobs int) (string, error) {
	type node struct {
		Name, Target, Sum   string
		Mode, UID, GID, Dev uint32
		Size                int64
		Attributes          map[string]string
	}
	var nodes []*node
	first := map[uint64]string{}
	g, gctx := errgroup.WithContext(ctx)
	g.SetLimit(max(jobs, 1))
	err := filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = gctx.Err()
		}
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return &fs.PathError{Op: "lstat", Path: p, Err: err}
		}
		n := &node{Mode: st.Mode, UID: st.Uid, GID: st.Gid}
		nodes = append(nodes, n)
		if n.Name, err = filepath.Rel(dir, p); err != nil {
			return err
		}
		if t := st.Mode & unix.S_IFMT; t == unix.S_IFCHR || t == unix.S_IFBLK {
			n.Dev = uint32(st.Rdev)
		}
		if n.Attributes, err = xattrs(p); err != nil {
			return err
		}
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			n.Target, err = os.Readlink(p)
		case unix.S_IFREG:
			if st.Nlink > 1 && first[st.Ino] != "" {
				n.Target = first[st.Ino]
				return nil
			}
			first[st.Ino] = n.Name
			n.Size = st.Size
			g.Go(func() (err error) {
				n.Sum, _, err = hashFile(p)
				return err
			})
		}
		return err
	})
	if err := errors.Join(err, g.Wait()); err != nil {
		return "", err
	}
	h := sha256.New()
	e := json.NewEncoder(h)
	for _, n := range nodes {
		if err := e.Encode(n); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}
