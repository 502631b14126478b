// Package cas is the content-addressed store of the build host: downloaded
// packages by their SHA-256, and results of build steps by a key over all
// their inputs. It is a folder:
//
//	sha256/ab/abcdef…   a blob, named by the SHA-256 of its bytes
//	keys/ab/abcdef…     a file or folder, named by the SHA-256 of its key
//	tmp/                what is being written
//
// An entry appears by one rename when it is whole and its bytes were checked,
// and never changes afterwards, so any number of processes may share a store
// without locks. Serving sha256/ over HTTP makes it a mirror (Store.Mirrors)
// for other build hosts: a lock without its packages is of no use once the
// archive has dropped them.
package cas

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"
)

// Store is one folder of blobs and results.
type Store struct {
	dir string

	// Mirrors are other stores that Fetch asks when the address of an item
	// has it no longer: the http(s) address or absolute path of a store's
	// top folder.
	Mirrors []string
	// Sources are asked after the mirrors.
	Sources []Source
	// Offline makes Fetch ask no address of an item, and no mirror that is one:
	// what is neither in the store, nor in a mirror that is a folder, nor in
	// one of Sources, is an error.
	Offline bool
}

// abandoned is the age at which something below tmp/ can have no writer left.
const abandoned = 7 * 24 * time.Hour

// Open opens the store at dir, which is made if it does not exist.
func Open(dir string) (*Store, error) {
	dir, err := filepath.Abs(dir)
	if err != nil {
		return nil, err
	}
	for _, sub := range []string{"sha256", "keys", "tmp"} {
		if err := os.MkdirAll(filepath.Join(dir, sub), 0o755); err != nil {
			return nil, fmt.Errorf("store %s: %w", dir, err)
		}
	}
	s := &Store{dir: dir}
	s.sweep(time.Now())
	return s, nil
}

// sweep removes what writers that were killed left behind.
func (s *Store) sweep(now time.Time) {
	left, err := os.ReadDir(filepath.Join(s.dir, "tmp"))
	if err != nil {
		return
	}
	for _, e := range left {
		if st, err := e.Info(); err == nil && now.Sub(st.ModTime()) > abandoned {
			_ = os.RemoveAll(filepath.Join(s.dir, "tmp", e.Name()))
		}
	}
}

// Dir returns the store's folder.
func (s *Store) Dir() string { return s.dir }

// Path returns where the blob of that SHA-256 (64 hex digits, with or without
// "sha256:") is or would be.
func (s *Store) Path(sum string) string {
	sum = strings.TrimPrefix(sum, "sha256:")
	if checkSum(sum) != nil {
		return filepath.Join(s.dir, "sha256", "invalid")
	}
	return filepath.Join(s.dir, "sha256", sum[:2], sum)
}

// Has tells whether the blob is in the store.
func (s *Store) Has(sum string) bool {
	st, err := os.Stat(s.Path(sum))
	return err == nil && st.Mode().IsRegular()
}

// Put copies r into the store as the blob sum of size bytes and returns an
// error, leaving nothing, if it is not that. A size of -1 is not checked.
func (s *Store) Put(ctx context.Context, sum string, size int64, r io.Reader) error {
	sum = strings.TrimPrefix(sum, "sha256:")
	if err := checkSum(sum); err != nil {
		return err
	}
	f, err := os.CreateTemp(filepath.Join(s.dir, "tmp"), "blob-")
	if err != nil {
		return fmt.Errorf("store: %w", err)
	}
	defer os.Remove(f.Name())
	defer f.Close()
	if err := copyVerified(f, contextReader{ctx, r}, sum, size); err != nil {
		return err
	}
	if err := s.seal(f); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	path := s.Path(sum)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	if err := os.Rename(f.Name(), path); err != nil {
		return fmt.Errorf("store: %w", err)
	}
	return nil
}

// seal makes f's bytes durable and read-only.
func (s *Store) seal(f *os.File) error {
	if err := f.Chmod(0o444); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	return f.Close()
}

// MismatchError tells that bytes are not the ones that were asked for.
type MismatchError struct {
	WantSHA256, GotSHA256 string // Got is "" when the size alone showed it
	WantSize, GotSize     int64
}

func (e *MismatchError) Error() string {
	if e.GotSHA256 == "" || e.GotSize != e.WantSize && e.WantSize >= 0 {
		return fmt.Sprintf("size is %d bytes, want %d", e.GotSize, e.WantSize)
	}
	return fmt.Sprintf("sha256 is %s, want %s", e.GotSHA256, e.WantSHA256)
}

func copyVerified(w io.Writer, r io.Reader, sum string, size int64) error {
	h := sha256.New()
	if size >= 0 {
		r = io.LimitReader(r, size+1)
	}
	n, err := io.Copy(io.MultiWriter(w, h), r)
	if err != nil {
		return err
	}
	got := hex.EncodeToString(h.Sum(nil))
	switch {
	case size >= 0 && n > size:
		return &MismatchError{WantSHA256: sum, WantSize: size, GotSize: n}
	case size >= 0 && n != size, got != sum:
		return &MismatchError{WantSHA256: sum, GotSHA256: got, WantSize: size, GotSize: n}
	}
	return nil
}

// Verify reads the blob and returns an error if its bytes went bad; such a
// blob is removed, so that Fetch gets it anew.
func (s *Store) Verify(sum string, size int64) error {
	sum = strings.TrimPrefix(sum, "sha256:")
	f, err := os.Open(s.Path(sum))
	if err != nil {
		return err
	}
	defer f.Close()
	if err := copyVerified(io.Discard, f, sum, size); err != nil {
		_ = os.Remove(f.Name())
		return fmt.Errorf("store: blob %s went bad and was removed: %w", sum, err)
	}
	return nil
}

func checkSum(sum string) error {
	if b, err := hex.DecodeString(sum); err != nil || len(b) != sha256.Size || strings.ToLower(sum) != sum {
		return fmt.Errorf("store: %q is not a SHA-256 of 64 hexadecimal digits", sum)
	}
	return nil
}

// contextReader ends a copy when its context does.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(b []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(b)
}
