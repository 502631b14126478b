package cas

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// usedSuffix ends the name of the empty file beside a result whose time is
// when the result was last used.
const usedSuffix = ".used"

// touch notes that a result was used. It is a note only: a store that cannot
// be written serves all the same.
func touch(path string) {
	now := time.Now()
	if os.Chtimes(path+usedSuffix, now, now) == nil {
		return
	}
	if f, err := os.OpenFile(path+usedSuffix, os.O_CREATE|os.O_WRONLY, 0o644); err == nil {
		_ = f.Close() // nothing was written
	}
}

// Entry is a blob or a result in the store.
type Entry struct {
	Path   string
	Blob   bool      // named by the SHA-256 of its bytes, in Sum
	Sum    string    //
	Size   int64     // bytes, of all files in it
	Used   time.Time // when it was last used, or made; of a blob when it came
	marker string
}

// Entries lists what the store holds.
func (s *Store) Entries() ([]Entry, error) {
	var out []Entry
	for _, kind := range []string{"sha256", "keys"} {
		paths, err := filepath.Glob(filepath.Join(s.dir, kind, "??", "*"))
		if err != nil {
			return nil, err
		}
		for _, p := range paths {
			if strings.HasSuffix(p, usedSuffix) {
				continue
			}
			e, err := entry(p, kind == "sha256")
			if errors.Is(err, fs.ErrNotExist) {
				continue // gone meanwhile
			}
			if err != nil {
				return nil, fmt.Errorf("store: %w", err)
			}
			out = append(out, e)
		}
	}
	return out, nil
}

func entry(path string, blob bool) (Entry, error) {
	e := Entry{Path: path, Blob: blob, marker: path + usedSuffix}
	if blob {
		e.Sum = filepath.Base(path)
	}
	err := filepath.WalkDir(path, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		st, err := d.Info()
		if err != nil {
			return err
		}
		if p == path {
			e.Used = st.ModTime()
		}
		if st.Mode().IsRegular() {
			e.Size += st.Size()
		}
		return nil
	})
	if st, e2 := os.Stat(e.marker); e2 == nil && st.ModTime().After(e.Used) {
		e.Used = st.ModTime()
	}
	return e, err
}

// Remove takes an entry out of the store, at once for others: it has its
// name no longer before its first file goes.
func (s *Store) Remove(e Entry) error {
	aside, err := os.MkdirTemp(filepath.Join(s.dir, "tmp"), "gone-")
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	defer os.RemoveAll(aside)
	if err := os.Rename(e.Path, filepath.Join(aside, "entry")); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("store: %w", err)
	}
	if err := os.Remove(e.marker); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("store: %w", err)
	}
	return nil
}
