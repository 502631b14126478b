//go:build linux

package boot

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// sysroot is where the root is put together.
const sysroot = "/sysroot"

// switchRoot makes sysroot the root, frees the initrd's memory and becomes
// init. It returns only on failure.
func switchRoot(init string, w *Watchdog) error {
	if init == "" {
		init = "/sbin/init"
	}
	if _, err := os.Lstat(filepath.Join(sysroot, init)); err != nil {
		return fmt.Errorf("the root has no init: %w", err)
	}
	for _, dir := range []string{"/dev", "/proc", "/sys", "/run"} {
		if err := unix.Mount(dir, filepath.Join(sysroot, dir), "", unix.MS_MOVE, ""); err != nil {
			return fmt.Errorf("moving %s into the root: %w", dir, err)
		}
	}
	if err := os.Chdir(sysroot); err != nil {
		return err
	}
	emptyInitrd()
	if err := unix.Mount(".", "/", "", unix.MS_MOVE, ""); err != nil {
		return fmt.Errorf("moving the root to /: %w", err)
	}
	if err := unix.Chroot("."); err != nil {
		return err
	}
	if err := os.Chdir("/"); err != nil {
		return err
	}
	w.feed()
	err := syscall.Exec(init, []string{init}, []string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin", "TERM=linux"})
	return fmt.Errorf("starting %s: %w", init, err)
}

// emptyInitrd deletes the files of the initrd, whose memory would be held for
// ever. It stays on that file system.
func emptyInitrd() {
	var st unix.Stat_t
	if unix.Stat("/", &st) == nil {
		_ = removeTree("/", st.Dev)
	}
}

func removeTree(dir string, dev uint64) error {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return err
	}
	var errs []error
	for _, e := range entries {
		p := filepath.Join(dir, e.Name())
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil || st.Dev != dev {
			continue
		}
		if e.IsDir() {
			errs = append(errs, removeTree(p, dev))
		}
		errs = append(errs, os.Remove(p))
	}
	return errors.Join(errs...)
}
