//go:build linux

package boot

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// seededBy is the file on the state partition that names the image whose /var
// was merged last.
const seededBy = "seeded"

// seedVar brings what an image has below /var to the state partition, once
// per image. What is there already stays as it is: state outlives images. A
// cut leaves some files out, and the next start goes on.
func seedVar(image, state, rootHash string) error {
	mark := filepath.Join(state, seededBy)
	if b, err := os.ReadFile(mark); err == nil && string(b) == rootHash {
		return nil
	}
	src, dst := filepath.Join(image, "var"), filepath.Join(state, "var")
	if err := copyMissing(src, dst); err != nil {
		return fmt.Errorf("bringing the image's /var to the state partition: %w", err)
	}
	return os.WriteFile(mark, []byte(rootHash), 0o644)
}

// copyMissing copies the tree src to dst, leaving out what dst has.
func copyMissing(src, dst string) error {
	var dirs []func() error // times of folders, set when they are full
	err := filepath.WalkDir(src, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(src, p)
		if err != nil {
			return err
		}
		to := filepath.Join(dst, rel)
		fi, err := d.Info()
		if err != nil {
			return err
		}
		if have, err := os.Lstat(to); err == nil {
			if d.IsDir() && !have.IsDir() {
				return filepath.SkipDir
			}
			return nil
		}
		if err := copyOne(p, to, fi); err != nil {
			return err
		}
		if fi.IsDir() {
			dirs = append(dirs, func() error { return setTimes(to, fi) })
		}
		return nil
	})
	for _, f := range dirs {
		if err == nil {
			err = f()
		}
	}
	return err
}

// copyOne makes one file, folder or link with the owner, mode and times of fi.
// Sockets, pipes and devices have no place in an image's /var.
func copyOne(from, to string, fi fs.FileInfo) error {
	switch {
	case fi.IsDir():
		if err := os.Mkdir(to, 0o700); err != nil {
			return err
		}
		return setOwner(to, fi)
	case fi.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		if err := os.Symlink(target, to); err != nil {
			return err
		}
		return os.Lchown(to, owner(fi, 0), owner(fi, 1))
	case fi.Mode().IsRegular():
		return copyFile(from, to, fi)
	}
	return nil
}

// copyFile copies under a temporary name, so that a cut leaves no half file
// that the next start would take for done.
func copyFile(from, to string, fi fs.FileInfo) error {
	b, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	tmp := filepath.Join(filepath.Dir(to), ".turnout-"+strings.TrimPrefix(filepath.Base(to), "."))
	if err := os.WriteFile(tmp, b, 0o600); err != nil {
		return err
	}
	if err := setOwner(tmp, fi); err != nil {
		return err
	}
	if err := setTimes(tmp, fi); err != nil {
		return err
	}
	return os.Rename(tmp, to)
}

func setOwner(p string, fi fs.FileInfo) error {
	if err := os.Lchown(p, owner(fi, 0), owner(fi, 1)); err != nil {
		return err
	}
	return unix.Chmod(p, uint32(fi.Sys().(*syscall.Stat_t).Mode)&0o7777)
}

func setTimes(p string, fi fs.FileInfo) error { return os.Chtimes(p, time.Time{}, fi.ModTime()) }

// owner returns the user (0) or the group (1) of a file.
func owner(fi fs.FileInfo, which int) int {
	st := fi.Sys().(*syscall.Stat_t)
	if which == 0 {
		return int(st.Uid)
	}
	return int(st.Gid)
}
