// Package memesp is an abslot.ESP in memory, for tests of what stands above
// the slot machine. It is a real carrier: it passes slottest.
package memesp

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"path"
	"strings"
	"sync"

	"github.com/turnout-project/turnout/internal/abslot"
)

// ESP is an EFI system partition in memory. The zero value is empty, of
// unlimited size and ready to use; it is safe for concurrent use.
type ESP struct {
	// CapacityBytes limits the sum of all file sizes; 0 means no limit.
	CapacityBytes int64
	// ReadOnly makes every change fail with abslot.ErrReadOnly.
	ReadOnly bool
	// OnChange, when set, is called before each change with its name ("put",
	// "rename", "remove") and path. An error stops the change and is
	// returned. It must not call the ESP.
	OnChange func(op, path string) error

	mu    sync.Mutex
	files []file // in directory order
}

type file struct {
	path string
	data []byte
}

var _ abslot.ESP = (*ESP)(nil)

// Files returns the contents by path.
func (e *ESP) Files() map[string][]byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := map[string][]byte{}
	for _, f := range e.files {
		out[f.path] = bytes.Clone(f.data)
	}
	return out
}

// List implements abslot.ESP.
func (e *ESP) List(_ context.Context, dir string) ([]abslot.File, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	var out []abslot.File
	for _, f := range e.files {
		if strings.EqualFold(path.Dir(f.path), dir) {
			out = append(out, abslot.File{Name: path.Base(f.path), SizeBytes: int64(len(f.data))})
		}
	}
	return out, nil
}

// Open implements abslot.ESP.
func (e *ESP) Open(_ context.Context, p string) (abslot.ReadAtCloser, int64, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := e.find(p)
	if i < 0 {
		return nil, 0, fmt.Errorf("%w: %s", abslot.ErrNotExist, p)
	}
	b := e.files[i].data
	return reader{bytes.NewReader(b)}, int64(len(b)), nil
}

type reader struct{ *bytes.Reader }

func (reader) Close() error { return nil }

// Put implements abslot.ESP.
func (e *ESP) Put(_ context.Context, p string, r io.Reader, size int64) error {
	b, err := io.ReadAll(io.LimitReader(r, size+1))
	if err != nil {
		return fmt.Errorf("writing %s: %w", p, err)
	}
	if int64(len(b)) != size {
		return fmt.Errorf("writing %s: source does not have the %d bytes it promised", p, size)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if err := e.change("put", p); err != nil {
		return err
	}
	var used int64
	for _, f := range e.files {
		used += int64(len(f.data))
	}
	if e.CapacityBytes > 0 && used+size > e.CapacityBytes {
		return &abslot.SpaceError{Where: "ESP in memory", File: p, NeedBytes: size, FreeBytes: e.CapacityBytes - used}
	}
	if i := e.find(p); i >= 0 {
		e.files[i].data = b
		return nil
	}
	e.files = append(e.files, file{p, b})
	return nil
}

// Rename implements abslot.ESP.
func (e *ESP) Rename(_ context.Context, oldPath, newPath string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := e.find(oldPath)
	switch {
	case i < 0:
		return fmt.Errorf("%w: %s", abslot.ErrNotExist, oldPath)
	case e.find(newPath) >= 0:
		return fmt.Errorf("%w: %s", abslot.ErrExist, newPath)
	case path.Dir(oldPath) != path.Dir(newPath):
		return fmt.Errorf("renaming %s to %s: a rename stays in its folder", oldPath, newPath)
	}
	if err := e.change("rename", newPath); err != nil {
		return err
	}
	e.files[i].path = newPath
	return nil
}

// Remove implements abslot.ESP.
func (e *ESP) Remove(_ context.Context, p string) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	i := e.find(p)
	if i < 0 {
		return nil
	}
	if err := e.change("remove", p); err != nil {
		return err
	}
	e.files = append(e.files[:i], e.files[i+1:]...)
	return nil
}

func (e *ESP) change(op, p string) error {
	if e.ReadOnly {
		return fmt.Errorf("%w: %s %s", abslot.ErrReadOnly, op, p)
	}
	if e.OnChange != nil {
		return e.OnChange(op, p)
	}
	return nil
}

// find ignores letter case, as FAT does.
func (e *ESP) find(p string) int {
	for i, f := range e.files {
		if strings.EqualFold(f.path, p) {
			return i
		}
	}
	return -1
}
