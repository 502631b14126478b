package image

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// workFolder is a folder of one build alone. While the build lives it holds a
// lock on a file beside it, so that another build can tell a folder in use
// from one that was left when its build was killed.
type workFolder struct {
	dir  string
	lock *os.File
}

const lockSuffix = ".lock"

// newWorkFolder makes a folder below parent, and removes those there that
// belong to no living build.
func newWorkFolder(parent, name string) (*workFolder, error) {
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return nil, fmt.Errorf("work folder: %w", err)
	}
	d, err := os.Open(parent)
	if err != nil {
		return nil, fmt.Errorf("work folder: %w", err)
	}
	defer func() { _ = d.Close() }() // ends the lock: builds start one at a time
	if err := unix.Flock(int(d.Fd()), unix.LOCK_EX); err != nil {
		return nil, fmt.Errorf("work folder: locking %s: %w", parent, err)
	}
	if err := removeStale(parent); err != nil {
		return nil, fmt.Errorf("work folder: %w", err)
	}
	lock, err := os.CreateTemp(parent, name+"-*"+lockSuffix)
	if err != nil {
		return nil, fmt.Errorf("work folder: %w", err)
	}
	w := &workFolder{strings.TrimSuffix(lock.Name(), lockSuffix), lock}
	if err := unix.Flock(int(lock.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		return nil, fmt.Errorf("work folder: locking %s: %w", lock.Name(), err)
	}
	if err := os.Mkdir(w.dir, 0o755); err != nil {
		return nil, fmt.Errorf("work folder: %w", err)
	}
	return w, nil
}

func (w *workFolder) path(name string) string { return filepath.Join(w.dir, name) }

// remove removes the folder as far as it can; the next build does the rest.
func (w *workFolder) remove() {
	if os.RemoveAll(w.dir) == nil {
		_ = os.Remove(w.lock.Name())
	}
	_ = w.lock.Close() // ends the lock
}

// removeStale removes the folders whose lock nobody holds.
func removeStale(parent string) error {
	locks, err := filepath.Glob(filepath.Join(parent, "*"+lockSuffix))
	if err != nil {
		return err
	}
	for _, name := range locks {
		f, err := os.Open(name)
		if err != nil {
			continue // another build was faster
		}
		if unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB) == nil {
			(&workFolder{strings.TrimSuffix(name, lockSuffix), f}).remove()
			continue
		}
		_ = f.Close() // in use, and read only
	}
	return nil
}
