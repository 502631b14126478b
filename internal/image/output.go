package image

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/oci"
)

// checkOut refuses to replace a folder that is not an image.
func checkOut(out string) error {
	if out == "" {
		return fmt.Errorf("%w: no output folder; name one with --out", ErrOptions)
	}
	names, err := os.ReadDir(out)
	if errors.Is(err, fs.ErrNotExist) || err == nil && len(names) == 0 {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%w: output folder: %w", ErrOptions, err)
	}
	if _, err := oci.Open(out); err != nil {
		return fmt.Errorf("%w: output folder %s holds something that is not an image; choose another --out", ErrOptions, out)
	}
	return nil
}

// replaceFolder has fill make a folder and puts it at path in one step, in
// place of what is there. On an error path stays as it was. What an earlier
// run left beside path when it was killed is removed.
func replaceFolder(path string, fill func(dir string) error) (err error) {
	path, err = filepath.Abs(path)
	if err != nil {
		return err
	}
	parent := filepath.Dir(path)
	if err := os.MkdirAll(parent, 0o755); err != nil {
		return err
	}
	prefix := "." + filepath.Base(path) + ".new-"
	stale, err := filepath.Glob(filepath.Join(parent, prefix+"*"))
	if err != nil {
		return err
	}
	for _, s := range stale {
		if err := os.RemoveAll(s); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp(parent, prefix)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	if err := os.Chmod(dir, 0o755); err != nil {
		return err
	}
	if err := fill(dir); err != nil {
		return err
	}
	err = unix.Renameat2(unix.AT_FDCWD, dir, unix.AT_FDCWD, path, unix.RENAME_EXCHANGE)
	if errors.Is(err, unix.ENOENT) {
		err = os.Rename(dir, path)
	}
	if err != nil {
		return err
	}
	d, err := os.Open(parent)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
