// Package debtest makes .deb packages for tests, honest ones and others.
package debtest

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"

	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// Package is a package to be made.
type Package struct {
	Name         string // "test" if empty
	Fields       string // further lines of the control file, each ended by a newline
	Control      map[string]string
	Data         []tar.Header // in order; Typeflag 0 is a file
	Contents     map[string]string
	Compression  string // "", "gz", "xz", "zst"
	DataRaw      []byte // the data member as it is, instead of Data
	Architecture string // "all" if empty
}

// File is an entry for Package.Data.
func File(name string, mode int64) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeReg, Mode: mode}
}

// Dir is an entry for Package.Data.
func Dir(name string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeDir, Mode: 0o755}
}

// Link is a symbolic link for Package.Data.
func Link(name, target string) tar.Header {
	return tar.Header{Name: name, Typeflag: tar.TypeSymlink, Linkname: target, Mode: 0o777}
}

// Bytes returns the package.
func (p Package) Bytes(t testing.TB) []byte {
	t.Helper()
	if p.Name == "" {
		p.Name = "test"
	}
	if p.Architecture == "" {
		p.Architecture = "all"
	}
	control := []tar.Header{Dir("./"), File("./control", 0o644)}
	contents := map[string]string{"./control": fmt.Sprintf("Package: %s\nVersion: 1\nArchitecture: %s\nMaintainer: A <a@example.org>\n%sDescription: for a test\n more of it\n", p.Name, p.Architecture, p.Fields)}
	for name, text := range p.Control {
		control = append(control, File("./"+name, 0o755))
		contents["./"+name] = text
	}
	data := p.DataRaw
	if data == nil {
		data = Tar(t, p.Data, p.Contents)
	}
	ext := p.Compression
	if ext != "" {
		ext = "." + ext
	}
	return Ar(
		Member{"debian-binary", []byte("2.0\n")},
		Member{"control.tar" + ext, Compress(t, p.Compression, Tar(t, control, contents))},
		Member{"data.tar" + ext, Compress(t, p.Compression, data)})
}

// Write writes the package to a file in a folder of the test.
func (p Package) Write(t testing.TB) string {
	t.Helper()
	name := filepath.Join(t.TempDir(), "test.deb")
	if err := os.WriteFile(name, p.Bytes(t), 0o644); err != nil {
		t.Fatal(err)
	}
	return name
}

// Tar returns a tar archive of the entries; files have their contents by name.
func Tar(t testing.TB, entries []tar.Header, contents map[string]string) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range entries {
		if h.Typeflag == tar.TypeReg {
			h.Size = int64(len(contents[h.Name]))
		}
		h.Format = tar.FormatGNU
		if err := w.WriteHeader(&h); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(w, contents[h.Name]); err != nil && h.Typeflag == tar.TypeReg {
			t.Fatal(err)
		}
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Compress compresses data as its name says.
func Compress(t testing.TB, how string, data []byte) []byte {
	t.Helper()
	var b bytes.Buffer
	var w io.WriteCloser
	var err error
	switch how {
	case "":
		return data
	case "gz":
		w = gzip.NewWriter(&b)
	case "xz":
		w, err = xz.NewWriter(&b)
	case "zst":
		w, err = zstd.NewWriter(&b)
	default:
		t.Fatalf("compression %q", how)
	}
	if err != nil {
		t.Fatal(err)
	}
	if _, err := w.Write(data); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Member is a member of an ar archive.
type Member struct {
	Name string
	Data []byte
}

// Ar returns an ar archive.
func Ar(ms ...Member) []byte {
	b := bytes.NewBufferString("!<arch>\n")
	for _, m := range ms {
		fmt.Fprintf(b, "%-16s%-12d%-6d%-6d%-8s%-10d`\n", m.Name, 0, 0, 0, "100644", len(m.Data))
		b.Write(m.Data)
		if len(m.Data)%2 == 1 {
			b.WriteByte('\n')
		}
	}
	return b.Bytes()
}
