package deb_test

import (
	"archive/tar"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/deb"
	"github.com/turnout-project/turnout/internal/deb/debtest"
)

func open(t *testing.T, raw []byte, o deb.Options) (*deb.Package, error) {
	t.Helper()
	return deb.NewPackage("test.deb", bytes.NewReader(raw), int64(len(raw)), o)
}

// list walks a package and describes its entries, one line each.
func list(p *deb.Package) ([]string, error) {
	var lines []string
	err := p.Walk(context.Background(), func(e deb.Entry, r io.Reader) error {
		content, err := io.ReadAll(r)
		lines = append(lines, fmt.Sprintf("%d %v %d:%d %s %s %q", e.Type, e.Mode, e.UID, e.GID, e.Name, e.Link, content))
		return err
	})
	return lines, err
}

var honest = debtest.Package{
	Name:    "honest",
	Fields:  "Depends: libc6 (>= 2.34),\n bash\n",
	Control: map[string]string{"postinst": "#!/bin/sh\n", "conffiles": "/etc/honest.conf\nremove-on-upgrade /etc/old.conf\n", "md5sums": ""},
	Data: []tar.Header{
		debtest.Dir("./"), debtest.Dir("./usr/"), debtest.Dir("./usr/bin/"),
		debtest.File("./usr/bin/su", 0o4755), debtest.File("./etc/honest.conf", 0o640),
		debtest.Link("./usr/bin/sux", "/usr/bin/su"),
		{Name: "./usr/bin/su2", Typeflag: tar.TypeLink, Linkname: "./usr/bin/su", Mode: 0o4755},
	},
	Contents: map[string]string{"./usr/bin/su": strings.Repeat("program", 20_000), "./etc/honest.conf": "x = 1\n"},
}

func TestPackage(t *testing.T) {
	for _, compression := range []string{"", "gz", "xz", "zst"} {
		for _, xz := range []string{"", "none"} {
			t.Run(fmt.Sprintf("compression=%s,xz=%s", compression, xz), func(t *testing.T) {
				pkg := honest
				pkg.Compression = compression
				p, err := deb.Open(pkg.Write(t), deb.Options{XZ: xz})
				if err != nil {
					t.Fatal(err)
				}
				defer p.Close()
				checkHonest(t, p)
			})
		}
	}
}

func checkHonest(t *testing.T, p *deb.Package) {
	t.Helper()
	c, err := p.Control()
	if err != nil {
		t.Fatal(err)
	}
	if got, want := c.Get("depends"), "libc6 (>= 2.34),\n bash"; got != want {
		t.Errorf("Depends = %q; want %q", got, want)
	}
	if got, want := string(c.Files["postinst"].Data), "#!/bin/sh\n"; got != want {
		t.Errorf("postinst = %q; want %q", got, want)
	}
	if diff := cmp.Diff([]string{"/etc/honest.conf"}, c.Conffiles()); diff != "" {
		t.Errorf("Conffiles (-want +got):\n%s", diff)
	}
	got, err := list(p)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{
		`1 -rwxr-xr-x 0:0 .  ""`,
		`1 -rwxr-xr-x 0:0 usr  ""`,
		`1 -rwxr-xr-x 0:0 usr/bin  ""`,
		fmt.Sprintf(`0 urwxr-xr-x 0:0 usr/bin/su  %q`, strings.Repeat("program", 20_000)),
		`0 -rw-r----- 0:0 etc/honest.conf  "x = 1\n"`,
		`2 -rwxrwxrwx 0:0 usr/bin/sux /usr/bin/su ""`,
		`3 urwxr-xr-x 0:0 usr/bin/su2 usr/bin/su ""`,
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("entries (-want +got):\n%s", diff)
	}
}

// TestDpkgDeb reads what dpkg-deb writes, in each compression it knows.
func TestDpkgDeb(t *testing.T) {
	if _, err := exec.LookPath("dpkg-deb"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip("no dpkg-deb: install dpkg")
	}
	src := t.TempDir()
	for name, text := range map[string]string{
		"DEBIAN/control": "Package: real\nVersion: 1:2.0-1\nArchitecture: all\nMaintainer: A <a@example.org>\nDescription: d\n",
		"usr/share/real": strings.Repeat("some text that compresses\n", 100_000),
	} {
		if err := os.MkdirAll(src+"/"+name[:strings.LastIndex(name, "/")], 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(src+"/"+name, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, how := range []string{"none", "gzip", "xz", "zstd"} {
		t.Run(how, func(t *testing.T) {
			out := t.TempDir() + "/real.deb"
			cmd := exec.Command("dpkg-deb", "--root-owner-group", "-Z"+how, "--build", src, out)
			if msg, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("dpkg-deb: %v: %s", err, msg)
			}
			p, err := deb.Open(out, deb.Options{})
			if err != nil {
				t.Fatal(err)
			}
			defer p.Close()
			c, err := p.Control()
			if err != nil || c.Get("Version") != "1:2.0-1" {
				t.Fatalf("Control() = %+v, %v", c, err)
			}
			var size int64
			if err := p.Walk(context.Background(), func(e deb.Entry, r io.Reader) error {
				n, err := io.Copy(io.Discard, r)
				size += n
				return err
			}); err != nil || size != 2_600_000 {
				t.Errorf("walked %d bytes, %v; want 2600000", size, err)
			}
		})
	}
}

// gzipBomb is a compressed tar archive with one file of n zero bytes.
func gzipBomb(t *testing.T, n int64) []byte {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	if err := w.WriteHeader(&tar.Header{Name: "./zeros", Typeflag: tar.TypeReg, Mode: 0o644, Size: n, Format: tar.FormatGNU}); err != nil {
		t.Fatal(err)
	}
	return debtest.Compress(t, "gz", append(b.Bytes(), make([]byte, n+1024)...))
}

// TestHostile has one fault in each package, and the member it is found in.
func TestHostile(t *testing.T) {
	data := func(hs ...tar.Header) []byte { return debtest.Package{Data: hs}.Bytes(t) }
	control := func(files map[string]string) []byte { return debtest.Package{Control: files}.Bytes(t) }
	raw := func(name string, b []byte) []byte {
		return debtest.Ar(debtest.Member{Name: "debian-binary", Data: []byte("2.0\n")},
			debtest.Member{Name: "control.tar", Data: debtest.Tar(t, nil, nil)}, debtest.Member{Name: name, Data: b})
	}
	huge := tar.Header{Name: "./big", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1 << 40, Format: tar.FormatGNU}
	var hugeTar bytes.Buffer
	if err := tar.NewWriter(&hugeTar).WriteHeader(&huge); err != nil {
		t.Fatal(err)
	}
	many := make([]tar.Header, 2000)
	for i := range many {
		many[i] = debtest.File(fmt.Sprintf("./f%d", i), 0o644)
	}
	xzWindow := debtest.Compress(t, "xz", make([]byte, 100))
	xzWindow[12+4] = 39 // the dictionary size of the first block's LZMA2 filter: 3 GiB

	tests := map[string][]byte{
		"dot-dot":             data(debtest.File("./pfx/../../../tmp/x", 0o644)),
		"dot-dot alone":       data(debtest.Dir("..")),
		"absolute":            data(debtest.File("/etc/passwd", 0o644)),
		"double slash":        data(debtest.File("./etc//passwd", 0o644)),
		"inner dot":           data(debtest.File("./etc/./passwd", 0o644)),
		"part too long":       data(debtest.File("./"+strings.Repeat("a", 256), 0o644)),
		"hard link out":       data(tar.Header{Name: "./x", Typeflag: tar.TypeLink, Linkname: "../../etc/passwd"}),
		"absolute hard link":  data(tar.Header{Name: "./x", Typeflag: tar.TypeLink, Linkname: "/etc/passwd"}),
		"character device":    data(tar.Header{Name: "./dev/null", Typeflag: tar.TypeChar, Devmajor: 1, Devminor: 3}),
		"block device":        data(tar.Header{Name: "./dev/sda", Typeflag: tar.TypeBlock, Devmajor: 8}),
		"pipe":                data(tar.Header{Name: "./pipe", Typeflag: tar.TypeFifo}),
		"root is a file":      data(debtest.File(".", 0o644)),
		"size 1 TiB":          raw("data.tar", hugeTar.Bytes()),
		"gzip bomb, skipped":  raw("data.tar.gz", gzipBomb(t, 100<<20)),
		"too many entries":    data(many...),
		"xz window":           raw("data.tar.xz", xzWindow),
		"control: folder":     control(map[string]string{"sub/postinst": ""}),
		"control: odd name":   control(map[string]string{"post inst": ""}),
		"control: name":       debtest.Package{Name: "../../etc/x"}.Bytes(t),
		"control: bomb":       control(map[string]string{"templates": strings.Repeat("0", 33<<20)}),
		"control: arch":       debtest.Package{Architecture: "a/b"}.Bytes(t),
		"too many ar members": debtest.Ar(slices.Repeat([]debtest.Member{{Name: "debian-binary", Data: []byte("2.0\n")}}, 100)...),
	}
	for name, b := range tests {
		t.Run(name, func(t *testing.T) {
			err := readAll(t, b, deb.Options{XZ: "none", Limits: deb.Limits{Entries: 1000, Ratio: 20}})
			if !errors.Is(err, deb.ErrHostile) {
				t.Errorf("error = %v; want ErrHostile", err)
			}
		})
	}
}

// readAll reads a package but for the contents of its files.
func readAll(t *testing.T, raw []byte, o deb.Options) error {
	p, err := open(t, raw, o)
	if err != nil {
		return err
	}
	_, cerr := p.Control()
	werr := p.Walk(context.Background(), func(deb.Entry, io.Reader) error { return nil })
	return errors.Join(cerr, werr)
}

// TestBroken has packages that are damaged rather than hostile.
func TestBroken(t *testing.T) {
	pkg := honest
	pkg.Compression = "xz"
	good := pkg.Bytes(t)
	for _, xz := range []string{"", "none"} {
		for n := range len(good) - 1 { // the last byte may be ar's padding
			if n%7 != 0 && n < len(good)-100 {
				continue
			}
			if err := readAll(t, good[:n], deb.Options{XZ: xz}); err == nil {
				t.Errorf("xz=%q: the first %d of %d bytes were read without an error", xz, n, len(good))
			}
		}
	}
	flipped := bytes.Clone(good)
	flipped[len(flipped)-60] ^= 1
	if err := readAll(t, flipped, deb.Options{}); err == nil {
		t.Error("a flipped bit in the data member was not noticed")
	}
	tests := map[string][]byte{
		"no ar":         []byte("PK\x03\x04 this is a zip"),
		"empty":         nil,
		"version 3":     debtest.Ar(debtest.Member{Name: "debian-binary", Data: []byte("3.0\n")}),
		"no data":       debtest.Ar(debtest.Member{Name: "debian-binary", Data: []byte("2.0\n")}, debtest.Member{Name: "control.tar"}),
		"other order":   debtest.Ar(debtest.Member{Name: "debian-binary", Data: []byte("2.0\n")}, debtest.Member{Name: "data.tar"}, debtest.Member{Name: "control.tar"}),
		"bzip2":         debtest.Ar(debtest.Member{Name: "debian-binary", Data: []byte("2.0\n")}, debtest.Member{Name: "control.tar.bz2"}, debtest.Member{Name: "data.tar"}),
		"field twice":   debtest.Package{Fields: "Version: 2\n"}.Bytes(t),
		"no field":      debtest.Package{Fields: "what is this\n"}.Bytes(t),
		"two of them":   debtest.Package{Fields: "\nPackage: b\n"}.Bytes(t),
		"NUL":           debtest.Package{Fields: "X: \x00\n"}.Bytes(t),
		"link to empty": debtest.Package{Data: []tar.Header{debtest.Link("./x", "")}}.Bytes(t),
	}
	for name, b := range tests {
		t.Run(name, func(t *testing.T) {
			if err := readAll(t, b, deb.Options{}); err == nil {
				t.Error("read without an error")
			}
		})
	}
}

func TestWalkEnds(t *testing.T) {
	p, err := open(t, honest.Bytes(t), deb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	stop := errors.New("stop")
	if err := p.Walk(context.Background(), func(deb.Entry, io.Reader) error { return stop }); err != stop {
		t.Errorf("Walk = %v; want the error of the function", err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := p.Walk(ctx, func(deb.Entry, io.Reader) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Errorf("Walk = %v; want %v", err, context.Canceled)
	}
	if _, err := deb.Open(t.TempDir()+"/missing.deb", deb.Options{}); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("Open = %v; want %v", err, fs.ErrNotExist)
	}
}

func TestParagraphs(t *testing.T) {
	const text = "Package: a\nDescription: short\n long\n .\n more\nEmpty:\n\n\nPackage: b\nConffiles:\n /etc/b 0123\n"
	ps, err := deb.ParseParagraphs([]byte(text))
	if err != nil || len(ps) != 2 {
		t.Fatalf("ParseParagraphs = %v, %v; want two", ps, err)
	}
	var out []string
	for _, p := range ps {
		out = append(out, p.String())
	}
	if got, want := strings.Join(out, "\n"), strings.Replace(text, "\n\n\n", "\n\n", 1); got != want {
		t.Errorf("written again: %q; want %q", got, want)
	}
}

// FuzzPackage: whatever the bytes, no panic, no name that leaves the root,
// and no more than the limits allow.
func FuzzPackage(f *testing.F) {
	for _, how := range []string{"", "gz", "xz", "zst"} {
		pkg := honest
		pkg.Contents = map[string]string{"./usr/bin/su": "program"}
		pkg.Compression = how
		f.Add(pkg.Bytes(f))
	}
	f.Fuzz(func(t *testing.T, raw []byte) { fuzz(t, raw) })
}

// FuzzData is FuzzPackage for the data member alone, so that the archive
// around it need not be guessed.
func FuzzData(f *testing.F) {
	hows := []string{"", "gz", "xz", "zst"}
	plain := debtest.Tar(f, honest.Data, map[string]string{"./usr/bin/su": "program"})
	for i, how := range hows {
		f.Add(uint8(i), debtest.Compress(f, how, plain))
	}
	f.Fuzz(func(t *testing.T, how uint8, raw []byte) {
		name := strings.TrimSuffix("data.tar."+hows[int(how)%len(hows)], ".")
		fuzz(t, debtest.Ar(debtest.Member{Name: "debian-binary", Data: []byte("2.0\n")},
			debtest.Member{Name: "control.tar", Data: debtest.Tar(t, nil, nil)}, debtest.Member{Name: name, Data: raw}))
	})
}

func fuzz(t *testing.T, raw []byte) {
	limits := deb.Limits{ControlBytes: 1 << 20, DataBytes: 1 << 20, Entries: 1000}
	p, err := open(t, raw, deb.Options{XZ: "none", Limits: limits})
	if err != nil {
		return
	}
	if c, err := p.Control(); err == nil && strings.ContainsAny(c.Get("Package"), "/ ") {
		t.Errorf("package named %q", c.Get("Package"))
	}
	var read int64
	_ = p.Walk(context.Background(), func(e deb.Entry, r io.Reader) error {
		if !fs.ValidPath(e.Name) || e.Type == deb.Hardlink && !fs.ValidPath(e.Link) {
			t.Errorf("entry %q, link %q", e.Name, e.Link)
		}
		n, err := io.Copy(io.Discard, r)
		read += n
		return err
	})
	if read > limits.DataBytes {
		t.Errorf("%d bytes came out; the limit is %d", read, limits.DataBytes)
	}
}
