package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Index reads index.json.
func (l *Layout) Index() (*Index, error) {
	b, err := os.ReadFile(filepath.Join(l.dir, indexFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("image layout %s: index %w", l.dir, ErrNotFound)
	}
	if err != nil {
		return nil, fmt.Errorf("image layout: %w", err)
	}
	var x Index
	if err := json.Unmarshal(b, &x); err != nil {
		return nil, fmt.Errorf("image layout %s: %s: %w", l.dir, indexFile, err)
	}
	return &x, nil
}

// PutManifest stores m, which gets its fixed fields filled in, and lists it in
// the index. Storing the same manifest again changes nothing.
func (l *Layout) PutManifest(m Manifest) (Descriptor, error) {
	m.SchemaVersion, m.MediaType = 2, MediaManifest
	if m.Layers == nil {
		m.Layers = []Descriptor{}
	}
	b, err := json.Marshal(m)
	if err != nil {
		return Descriptor{}, fmt.Errorf("OCI manifest: %w", err)
	}
	return l.PutRawManifest(b)
}

// PutRawManifest stores the bytes of a manifest and lists it in the index.
func (l *Layout) PutRawManifest(b []byte) (Descriptor, error) {
	m, err := parseManifest(b)
	if err != nil {
		return Descriptor{}, err
	}
	d, err := l.PutBytes(MediaManifest, b)
	if err != nil {
		return Descriptor{}, err
	}
	d.ArtifactType, d.Annotations = m.ArtifactType, m.Annotations
	return d, l.changeIndex(func(x *Index) bool {
		for _, old := range x.Manifests {
			if old.Digest == d.Digest {
				return false
			}
		}
		x.Manifests = append(x.Manifests, d)
		return true
	})
}

// Forget takes a manifest, and what refers to it, out of the index. Blobs
// stay. Forgetting what is not there is no error.
func (l *Layout) Forget(digest string) error {
	refs, err := l.Referrers(digest, "")
	if err != nil {
		return err
	}
	gone := map[string]bool{digest: true}
	for _, r := range refs {
		gone[r.Digest] = true
	}
	return l.changeIndex(func(x *Index) bool {
		kept := []Descriptor{}
		for _, d := range x.Manifests {
			if !gone[d.Digest] {
				kept = append(kept, d)
			}
		}
		changed := len(kept) != len(x.Manifests)
		x.Manifests = kept
		return changed
	})
}

// changeIndex edits the index under the lock; edit reports whether there is
// anything to write.
func (l *Layout) changeIndex(edit func(*Index) bool) error {
	unlock, err := l.lock()
	if err != nil {
		return err
	}
	defer unlock()
	x, err := l.Index()
	if err != nil {
		return err
	}
	if !edit(x) {
		return nil
	}
	return l.writeIndex(x)
}

func (l *Layout) writeIndex(x *Index) error {
	b, err := json.MarshalIndent(x, "", "  ")
	if err != nil {
		return fmt.Errorf("image layout: %w", err)
	}
	if err := writeFile(filepath.Join(l.dir, indexFile), append(b, '\n')); err != nil {
		return fmt.Errorf("image layout: %w", err)
	}
	return nil
}

// lock takes the layout's file lock, which also excludes other processes.
func (l *Layout) lock() (unlock func(), err error) {
	f, err := os.OpenFile(filepath.Join(l.dir, lockFile), os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, fmt.Errorf("image layout: %w", err)
	}
	for {
		err = unix.Flock(int(f.Fd()), unix.LOCK_EX)
		if err == nil {
			return func() { _ = f.Close() }, nil // closing releases the lock
		}
		if !errors.Is(err, unix.EINTR) {
			return nil, fmt.Errorf("locking image layout %s: %w", l.dir, errors.Join(err, f.Close()))
		}
	}
}
