package deb

import (
	"archive/tar"
	"context"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"time"
)

// Entry is one entry of a package's data member.
type Entry struct {
	// Name is relative to the root, clean, slash-separated ("usr/bin/env"),
	// "." for the root itself. It never is absolute and has no "..".
	Name     string
	Type     Type
	Mode     fs.FileMode // permissions with ModeSetuid, ModeSetgid, ModeSticky
	UID, GID int
	Size     int64 // of a File, else 0
	ModTime  time.Time
	// Link is the target of a Symlink, as it stands (it may be absolute, and
	// is not to be trusted), or the clean name of the entry a Hardlink is
	// another name of.
	Link string
}

// Type says what an entry is.
type Type byte

// The types of entries; packages with others are refused.
const (
	File Type = iota
	Dir
	Symlink
	Hardlink
)

// Longest name and part of a name that Linux takes.
const (
	maxName = 4095
	maxPart = 255
)

// Walk calls fn for each entry of the data member in its order. content reads
// the File's bytes and is only good during the call; fn need not read it. An
// error of fn ends the walk and is returned as it is.
func (p *Package) Walk(ctx context.Context, fn func(e Entry, content io.Reader) error) error {
	limit := min(p.opts.Limits.DataBytes, 64<<20+p.opts.Limits.Ratio*p.data.size)
	r, err := p.open(p.data, limit)
	if err != nil {
		return fmt.Errorf("package %q: %w", p.name, err)
	}
	defer r.Close()
	t := tar.NewReader(r)
	for n := 0; ; n++ {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := t.Next()
		if err == io.EOF {
			return p.drain(r)
		}
		if err != nil {
			return fmt.Errorf("package %q: data: %w", p.name, err)
		}
		if n >= p.opts.Limits.Entries {
			return fmt.Errorf("package %q: data: more than %d entries: %w", p.name, n, ErrHostile)
		}
		e, err := newEntry(h)
		if err == nil && e.Size > limit {
			err = fmt.Errorf("entry %q of %d bytes: %w", e.Name, e.Size, ErrHostile)
		}
		if err != nil {
			return fmt.Errorf("package %q: data: %w", p.name, err)
		}
		if err := fn(e, t); err != nil {
			return err
		}
	}
}

// drain reads what follows the end of the tar archive, so that a damaged or
// cut compressed stream is noticed.
func (p *Package) drain(r io.Reader) error {
	if _, err := io.Copy(io.Discard, r); err != nil {
		return fmt.Errorf("package %q: data: %w", p.name, err)
	}
	return nil
}

func newEntry(h *tar.Header) (Entry, error) {
	name, err := cleanName(h.Name)
	if err != nil {
		return Entry{}, err
	}
	const bits = 0o7777
	e := Entry{
		Name: name, UID: h.Uid, GID: h.Gid, ModTime: h.ModTime,
		Mode: h.FileInfo().Mode() & (fs.ModePerm | fs.ModeSetuid | fs.ModeSetgid | fs.ModeSticky),
	}
	if h.Mode&^bits&^0o170000 != 0 || h.Uid < 0 || h.Gid < 0 {
		return Entry{}, fmt.Errorf("entry %q has mode %#o, owner %d:%d: %w", name, h.Mode, h.Uid, h.Gid, ErrHostile)
	}
	switch h.Typeflag {
	case tar.TypeReg:
		e.Type, e.Size = File, h.Size
	case tar.TypeDir:
		e.Type = Dir
	case tar.TypeSymlink:
		e.Type, e.Link = Symlink, h.Linkname
		if e.Link == "" || len(e.Link) > maxName || strings.IndexByte(e.Link, 0) >= 0 {
			return Entry{}, fmt.Errorf("symbolic link %q has a bad target: %w", name, ErrHostile)
		}
	case tar.TypeLink:
		e.Type = Hardlink
		if e.Link, err = cleanName(h.Linkname); err != nil {
			return Entry{}, fmt.Errorf("hard link %q: %w", name, err)
		}
	default:
		return Entry{}, fmt.Errorf("entry %q is of type %q (a device or pipe?): %w", name, h.Typeflag, ErrHostile)
	}
	if name == "." && e.Type != Dir {
		return Entry{}, fmt.Errorf("entry \".\" is no folder: %w", ErrHostile)
	}
	return e, nil
}

// cleanName turns a tar entry's name ("./usr/bin/") into a clean one
// ("usr/bin"), and refuses what could leave the root.
func cleanName(name string) (string, error) {
	rest := strings.TrimSuffix(name, "/")
	for strings.HasPrefix(rest, "./") {
		rest = rest[2:]
	}
	if rest == "." || rest == "" && name != "" && name[0] == '.' {
		return ".", nil
	}
	if rest == "" || len(rest) > maxName || strings.IndexByte(rest, 0) >= 0 {
		return "", fmt.Errorf("entry %.100q has no usable name: %w", name, ErrHostile)
	}
	for part := range strings.SplitSeq(rest, "/") {
		if part == "" || part == "." || part == ".." || len(part) > maxPart {
			return "", fmt.Errorf("entry %.100q: a name with the part %.100q: %w", name, part, ErrHostile)
		}
	}
	return rest, nil
}
