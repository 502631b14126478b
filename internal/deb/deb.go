// Package deb reads Debian binary packages: the ar archive, its control and
// its data member, as deb(5) describes format 2.0. It unpacks nothing to disk:
// internal/rootfs does, from the entries that Walk hands out.
//
// A package is unverified input. Whatever the bytes are, this package returns
// an error rather than panicking, hands out no entry whose name leaves the
// root, no device nodes, and never decompresses more than Limits allow, the
// parts that a caller skips included.
package deb

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"sync"
)

// ErrHostile is wrapped by the errors of packages that no honest tool makes:
// names that leave the root, device nodes, sizes beyond the limits.
var ErrHostile = errors.New("refused as hostile")

// Limits bound what one package may hold. A zero field means its default.
type Limits struct {
	ControlBytes int64 // decompressed control member; default 64 MiB
	DataBytes    int64 // decompressed data member; default 16 GiB
	// Ratio is how many times its compressed size the data member may hold
	// (beside 64 MiB that are always allowed); default 200.
	Ratio   int64
	Entries int // entries of a member; default 400,000
}

func (l Limits) withDefaults() Limits {
	if l.ControlBytes == 0 {
		l.ControlBytes = 64 << 20
	}
	if l.DataBytes == 0 {
		l.DataBytes = 16 << 30
	}
	if l.Ratio == 0 {
		l.Ratio = 200
	}
	if l.Entries == 0 {
		l.Entries = 400_000
	}
	return l
}

// Options say how packages are read. The zero value is right for a build.
type Options struct {
	Limits Limits
	// XZ is the path of the xz program, which decompresses several times
	// faster than Go does: "" looks it up in PATH and falls back to Go,
	// "none" always uses Go.
	XZ string
}

// Package is one open package. It is for one goroutine at a time.
type Package struct {
	name    string // for error messages
	src     io.ReaderAt
	closer  io.Closer
	opts    Options
	control member
	data    member
}

// Open opens the package at path.
func Open(path string, o Options) (*Package, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("opening package: %w", err)
	}
	st, err := f.Stat()
	if err != nil {
		f.Close()
		return nil, fmt.Errorf("opening package: %w", err)
	}
	p, err := NewPackage(path, f, st.Size(), o)
	if err != nil {
		f.Close()
		return nil, err
	}
	p.closer = f
	return p, nil
}

// NewPackage reads the package that the first size bytes of src hold; name is
// used in errors only.
func NewPackage(name string, src io.ReaderAt, size int64, o Options) (*Package, error) {
	o.Limits = o.Limits.withDefaults()
	p := &Package{name: name, src: src, opts: o}
	if err := p.readMembers(size); err != nil {
		return nil, fmt.Errorf("package %q: %w", name, err)
	}
	return p, nil
}

// Close closes the file that Open opened.
func (p *Package) Close() error {
	if p.closer == nil {
		return nil
	}
	return p.closer.Close()
}

// readMembers finds the members that format 2.0 asks for, in their order:
// debian-binary, control.tar*, data.tar*. Members before data.tar whose names
// begin with "_" are skipped, and so is anything behind it, as dpkg does.
func (p *Package) readMembers(size int64) error {
	ms, err := readAr(p.src, size)
	if err != nil {
		return err
	}
	wanted := []struct {
		stem string
		into *member
	}{{"debian-binary", new(member)}, {"control.tar", &p.control}, {"data.tar", &p.data}}
	for _, m := range ms {
		if len(wanted) == 0 {
			break
		}
		w := wanted[0]
		switch {
		case m.name == w.stem, len(m.name) > len(w.stem) && m.name[:len(w.stem)] == w.stem && m.name[len(w.stem)] == '.' && w.stem != "debian-binary":
			*w.into = m
			wanted = wanted[1:]
			if w.stem == "debian-binary" {
				if err := p.checkVersion(m); err != nil {
					return err
				}
			}
		case m.name[0] == '_' && w.stem != "debian-binary":
		default:
			return fmt.Errorf("member %q where %q was expected", m.name, w.stem)
		}
	}
	if len(wanted) > 0 {
		return fmt.Errorf("no member %q: the file is cut off or is no .deb", wanted[0].stem)
	}
	return nil
}

func (p *Package) checkVersion(m member) error {
	if m.size < 4 || m.size > 64 {
		return fmt.Errorf("debian-binary of %d bytes", m.size)
	}
	b := make([]byte, m.size)
	if _, err := p.src.ReadAt(b, m.offset); err != nil {
		return fmt.Errorf("reading debian-binary: %w", err)
	}
	if b[0] != '2' || b[1] != '.' {
		return fmt.Errorf("format %q is not 2.x", b[:3])
	}
	return nil
}

// xzInPath looks the xz program up once.
var xzInPath = sync.OnceValue(func() string {
	path, err := exec.LookPath("xz")
	if err != nil {
		return ""
	}
	return path
})
