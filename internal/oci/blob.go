package oci

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"github.com/turnout-project/turnout/internal/manifest"
)

// PutBlob stores what r gives and returns its descriptor, which is want with
// digest and size filled in. If want names a digest, or a size other than
// zero, r must match them: otherwise nothing is stored. A blob that is there
// already is kept, but r is read and checked all the same.
func (l *Layout) PutBlob(ctx context.Context, r io.Reader, want Descriptor) (Descriptor, error) {
	got := want
	err := l.putFile(func(f *os.File) (string, error) {
		h := sha256.New()
		n, err := io.Copy(io.MultiWriter(f, h), contextReader{ctx, r})
		if err != nil {
			return "", fmt.Errorf("storing a blob: %w", err)
		}
		got.Digest, got.Size = "sha256:"+hex.EncodeToString(h.Sum(nil)), n
		if want.Digest != "" && want.Digest != got.Digest || want.Size != 0 && want.Size != n {
			return "", fmt.Errorf("storing a blob: got %d bytes with digest %s, want %d bytes with %s", n, got.Digest, want.Size, want.Digest)
		}
		return got.Digest, nil
	})
	if err != nil {
		return Descriptor{}, err
	}
	return got, nil
}

// PutBytes stores b as a blob of a media type.
func (l *Layout) PutBytes(mediaType string, b []byte) (Descriptor, error) {
	return l.PutBlob(context.Background(), bytes.NewReader(b), Descriptor{MediaType: mediaType})
}

// putFile lets fill write a temporary file and gives it the name of the
// digest that fill returns, once it is on disk.
func (l *Layout) putFile(fill func(*os.File) (digest string, err error)) error {
	f, err := os.CreateTemp(filepath.Join(l.dir, "blobs", "sha256"), ".new-*")
	if err != nil {
		return fmt.Errorf("storing a blob: %w", err)
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone already after the rename
	digest, err := fill(f)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	to, err := l.blobPath(digest)
	if err != nil {
		return err
	}
	if err := os.Rename(f.Name(), to); err != nil {
		return fmt.Errorf("storing a blob: %w", err)
	}
	return syncDir(filepath.Dir(to))
}

// Blob opens a blob. Its contents are not checked: the reader must compare
// them with the digest, or trust the layout.
func (l *Layout) Blob(digest string) (*os.File, error) {
	p, err := l.blobPath(digest)
	if err != nil {
		return nil, err
	}
	f, err := os.Open(p)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("blob %s %w in %s", digest, ErrNotFound, l.dir)
	}
	return f, err
}

// Has reports whether a blob is there.
func (l *Layout) Has(digest string) bool {
	p, err := l.blobPath(digest)
	if err != nil {
		return false
	}
	fi, err := os.Stat(p)
	return err == nil && fi.Mode().IsRegular()
}

// ReadBlob returns a small blob (a manifest, config or signature), checked
// against its digest.
func (l *Layout) ReadBlob(digest string) ([]byte, error) {
	f, err := l.Blob(digest)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only
	b, err := io.ReadAll(io.LimitReader(f, maxJSON+1))
	if err != nil {
		return nil, fmt.Errorf("blob %s: %w", digest, err)
	}
	if len(b) > maxJSON {
		return nil, fmt.Errorf("blob %s: larger than %d MiB", digest, maxJSON>>20)
	}
	if got := manifest.DigestOf(b); got != digest {
		return nil, fmt.Errorf("blob %s is corrupt: its contents have the digest %s; publish the image again", digest, got)
	}
	return b, nil
}

// CheckBlob reads a whole blob and compares it with its descriptor.
func (l *Layout) CheckBlob(ctx context.Context, d Descriptor) error {
	f, err := l.Blob(d.Digest)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read only
	h := sha256.New()
	n, err := io.Copy(h, contextReader{ctx, f})
	if err != nil {
		return fmt.Errorf("blob %s: %w", d.Digest, err)
	}
	if got := "sha256:" + hex.EncodeToString(h.Sum(nil)); got != d.Digest || n != d.Size {
		return fmt.Errorf("blob %s is corrupt: %d bytes with the digest %s, want %d bytes", d.Digest, n, got, d.Size)
	}
	return nil
}

// contextReader stops reading when its context ends.
type contextReader struct {
	ctx context.Context
	r   io.Reader
}

func (c contextReader) Read(p []byte) (int, error) {
	if err := c.ctx.Err(); err != nil {
		return 0, err
	}
	return c.r.Read(p)
}

// writeFile replaces a file in one step that survives a crash.
func writeFile(name string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(name), ".new-*")
	if err != nil {
		return err
	}
	defer func() { _ = os.Remove(f.Name()) }() // gone already after the rename
	_, err = f.Write(b)
	if err == nil {
		err = f.Chmod(0o644)
	}
	if err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), name); err != nil {
		return err
	}
	return syncDir(filepath.Dir(name))
}

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(d.Sync(), d.Close())
}
