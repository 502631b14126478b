// Package fatesp is an abslot.ESP on a FAT32 file system in a device or image
// file, without mounting it: for tests, and to look at a node's disk from
// elsewhere. A running node uses espdir, whose renames touch one directory
// sector; those of go-diskfs write the whole folder anew.
package fatesp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"strings"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/disk"
)

// ESP is an EFI system partition in a FAT32 file system. It is not safe for
// concurrent use, and nothing else may have the file system open.
type ESP struct {
	fat *disk.FAT
}

var _ abslot.ESP = (*ESP)(nil)

// New returns the ESP in a file system.
func New(fat *disk.FAT) *ESP { return &ESP{fat} }

// List implements abslot.ESP.
func (e *ESP) List(_ context.Context, dir string) ([]abslot.File, error) {
	files, err := e.fat.List(dir)
	if err != nil {
		return nil, err
	}
	var out []abslot.File
	for _, f := range files {
		out = append(out, abslot.File{Name: f.Name, SizeBytes: f.SizeBytes})
	}
	return out, nil
}

// Open implements abslot.ESP. It reads the whole file.
func (e *ESP) Open(_ context.Context, p string) (abslot.ReadAtCloser, int64, error) {
	b, err := e.fat.ReadFile(p)
	if errors.Is(err, os.ErrNotExist) {
		return nil, 0, fmt.Errorf("%w: %s", abslot.ErrNotExist, p)
	}
	if err != nil {
		return nil, 0, err
	}
	return reader{bytes.NewReader(b)}, int64(len(b)), nil
}

type reader struct{ *bytes.Reader }

func (reader) Close() error { return nil }

// Put implements abslot.ESP: whole content under a temporary name, flush,
// remove the old file, rename. Unlike on a mounted ESP there is a moment
// without the old file.
func (e *ESP) Put(_ context.Context, p string, r io.Reader, size int64) error {
	b, err := io.ReadAll(io.LimitReader(r, size+1))
	if err != nil {
		return fmt.Errorf("writing %s: %w", p, err)
	}
	if int64(len(b)) != size {
		return fmt.Errorf("writing %s: source does not have the %d bytes it promised", p, size)
	}
	if free, err := e.fat.Free(); err != nil || free < size {
		if err != nil {
			return err
		}
		return &abslot.SpaceError{Where: "ESP image", File: p, NeedBytes: size, FreeBytes: free}
	}
	tmp := strings.TrimSuffix(p, path.Ext(p)) + ".tmp"
	if err := e.removeIfThere(tmp); err != nil {
		return err
	}
	if err := e.fat.WriteFile(tmp, b); err != nil {
		return err
	}
	if err := e.removeIfThere(p); err != nil {
		return err
	}
	return e.fat.Rename(tmp, p)
}

func (e *ESP) removeIfThere(p string) error {
	if _, err := e.fat.Stat(p); errors.Is(err, os.ErrNotExist) {
		return nil
	} else if err != nil {
		return err
	}
	return e.fat.Remove(p)
}

// Rename implements abslot.ESP.
func (e *ESP) Rename(_ context.Context, oldPath, newPath string) error {
	if path.Dir(oldPath) != path.Dir(newPath) {
		return fmt.Errorf("renaming %s to %s: a rename stays in its folder", oldPath, newPath)
	}
	if _, err := e.fat.Stat(oldPath); errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("%w: %s", abslot.ErrNotExist, oldPath)
	}
	if _, err := e.fat.Stat(newPath); err == nil {
		return fmt.Errorf("%w: %s", abslot.ErrExist, newPath)
	}
	return e.fat.Rename(oldPath, newPath)
}

// Remove implements abslot.ESP.
func (e *ESP) Remove(_ context.Context, p string) error { return e.removeIfThere(p) }
