package rootfs

import (
	"archive/tar"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/deb"
	"github.com/turnout-project/turnout/internal/deb/debtest"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/recipe"
	"github.com/turnout-project/turnout/internal/rootfs/tree"
)

// needRoot skips where there is no root, and fails in CI, which has it.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatal("this test needs root")
	}
	t.Skip("this test needs root")
}

// newBuild returns a build of packages made by a test, prepared.
func newBuild(t *testing.T, r *recipe.Recipe, pkgs ...debtest.Package) *build {
	t.Helper()
	needRoot(t)
	paths := map[string]string{}
	b := &build{Spec: Spec{Recipe: r, WorkDir: t.TempDir(), Jobs: 4, SourceDateEpoch: 1_700_000_000,
		Log: slog.New(slog.DiscardHandler), DebPath: func(sum string) string { return paths[sum] }}}
	if r == nil {
		b.Recipe = &recipe.Recipe{}
	}
	b.dir = filepath.Join(b.WorkDir, "root")
	for _, p := range pkgs {
		file := p.Write(t)
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(raw)
		l := lock.Package{Name: p.Name, Version: "1", Architecture: "all", SizeBytes: int64(len(raw)), SHA256: hex.EncodeToString(sum[:])}
		if p.Architecture != "" {
			l.Architecture = p.Architecture
		}
		paths[l.SHA256] = file
		b.Packages = append(b.Packages, l)
	}
	if err := b.prepare(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(b.close)
	return b
}

// describe lists a tree, one line for each file.
func describe(t *testing.T, dir string) []string {
	t.Helper()
	var lines []string
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, p)
		st, err := d.Info()
		if err != nil {
			return err
		}
		line := fmt.Sprintf("%v %s", st.Mode(), name)
		switch {
		case st.Mode().IsRegular():
			text, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			line += fmt.Sprintf(" %q", text)
		case st.Mode()&fs.ModeSymlink != 0:
			target, _ := os.Readlink(p)
			line += " -> " + target
		}
		lines = append(lines, line)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return lines
}

func TestUnpack(t *testing.T) {
	private := debtest.Dir("./usr/share/")
	private.Mode = 0o700
	a := debtest.Package{Name: "a", Compression: "xz",
		Data: []tar.Header{debtest.Dir("./"), debtest.Dir("./bin/"), debtest.File("./bin/a", 0o4755), debtest.Dir("./usr/share/"),
			{Name: "./bin/a2", Typeflag: tar.TypeLink, Linkname: "./bin/a"}, debtest.Link("./usr/share/link", "/etc/passwd")},
		Contents: map[string]string{"./bin/a": "program"}}
	b := debtest.Package{Name: "b",
		Data:     []tar.Header{debtest.Dir("./usr/bin/"), debtest.File("./usr/bin/b", 0o755), private, debtest.File("./lib64/x", 0o644), debtest.Link("./sbin", "usr/sbin")},
		Contents: map[string]string{"./usr/bin/b": "other", "./lib64/x": ""}}
	want := []string{
		"drwxr-xr-x .",
		"Lrwxrwxrwx bin -> usr/bin",
		"Lrwxrwxrwx lib -> usr/lib",
		"Lrwxrwxrwx lib64 -> usr/lib64",
		"Lrwxrwxrwx sbin -> usr/sbin",
		"drwxr-xr-x usr",
		"drwxr-xr-x usr/bin",
		`urwxr-xr-x usr/bin/a "program"`,
		`urwxr-xr-x usr/bin/a2 "program"`,
		`-rwxr-xr-x usr/bin/b "other"`,
		"drwxr-xr-x usr/lib",
		"drwxr-xr-x usr/lib64",
		`-rw-r--r-- usr/lib64/x ""`,
		"drwxr-xr-x usr/sbin",
		"drwxr-xr-x usr/share",
		"Lrwxrwxrwx usr/share/link -> /etc/passwd",
	}
	for range 5 { // the packages are unpacked at once: in any order
		bd := newBuild(t, nil, b, a)
		if err := bd.unpack(t.Context()); err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff(want, describe(t, bd.dir)); diff != "" {
			t.Fatalf("tree (-want +got):\n%s", diff)
		}
		if diff := cmp.Diff([]string{"/.", "/bin", "/bin/a", "/usr/share", "/bin/a2", "/usr/share/link"}, bd.debs[0].list); diff != "" {
			t.Errorf("list of a (-want +got):\n%s", diff)
		}
	}
}

// TestUnpackConflict has packages that cannot share a tree, or must agree.
func TestUnpackConflict(t *testing.T) {
	one := func(name, fields string, hs ...tar.Header) debtest.Package {
		contents := map[string]string{}
		for _, h := range hs {
			contents[h.Name] = name
		}
		return debtest.Package{Name: name, Fields: fields, Data: hs, Contents: contents}
	}
	tests := []struct {
		name string
		a, b debtest.Package
		want error
		text string // of ./usr/x if there is no error
	}{
		{"same file", one("a", "", debtest.File("./usr/x", 0o644)), one("b", "", debtest.File("./usr/x", 0o644)), ErrSpec, ""},
		{"same file by its alias", one("a", "", debtest.File("./bin/x", 0o644)), one("b", "", debtest.File("./usr/bin/x", 0o644)), ErrSpec, ""},
		{"a replaces b", one("a", "Replaces: z (<< 1), b\n", debtest.File("./usr/x", 0o644)), one("b", "", debtest.File("./usr/x", 0o644)), nil, "a"},
		{"b replaces a", one("a", "", debtest.File("./usr/x", 0o644)), one("b", "Replaces: a\n", debtest.File("./usr/x", 0o644)), nil, "b"},
		{"each the other", one("a", "Replaces: b\n", debtest.File("./usr/x", 0o644)), one("b", "Replaces: a\n", debtest.File("./usr/x", 0o644)), ErrSpec, ""},
		{"folder and file", one("a", "", debtest.Dir("./usr/x")), one("b", "", debtest.File("./usr/x", 0o644)), ErrSpec, ""},
		{"folder and link", one("a", "", debtest.Dir("./usr/x")), one("b", "", debtest.Link("./usr/x", "/")), ErrSpec, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for range 3 {
				b := newBuild(t, nil, tt.a, tt.b)
				err := b.unpack(t.Context())
				if !errors.Is(err, tt.want) {
					t.Fatalf("unpack = %v; want %v", err, tt.want)
				}
				if tt.want != nil {
					continue
				}
				if got, err := b.tree.ReadFile("usr/x"); err != nil || string(got) != tt.text {
					t.Errorf("/usr/x = %q, %v; want %q", got, err, tt.text)
				}
				loser := b.debs[0]
				if tt.text == "a" {
					loser = b.debs[1]
				}
				if strings.Contains(string(loser.listFile()), "/usr/x") {
					t.Errorf("package %s still lists the file it lost", loser.Name)
				}
			}
		})
	}
}

// TestUnpackHostile has archives that try to write outside the tree. Nothing
// outside may change, and the build must stop.
func TestUnpackHostile(t *testing.T) {
	outside := t.TempDir()
	link := debtest.Link("./moo", outside)
	tests := []struct {
		name string
		pkgs []debtest.Package
	}{
		{"link, then a file of its name", []debtest.Package{{Name: "a", Data: []tar.Header{link, debtest.File("./moo", 0o644)}}}},
		{"link, then a file below it", []debtest.Package{{Name: "a", Data: []tar.Header{link, debtest.File("./moo/x", 0o644)}}}},
		{"link, then a folder below it", []debtest.Package{{Name: "a", Data: []tar.Header{link, debtest.Dir("./moo/x/")}}}},
		{"link, then a folder of its name", []debtest.Package{{Name: "a", Data: []tar.Header{link, debtest.Dir("./moo/")}}}},
		{"link, then a link below it", []debtest.Package{{Name: "a", Data: []tar.Header{link, debtest.Link("./moo/x", "y")}}}},
		{"hard link through it", []debtest.Package{{Name: "a", Data: []tar.Header{link, {Name: "./x", Typeflag: tar.TypeLink, Linkname: "./moo/secret"}}}}},
		{"hard link to the link", []debtest.Package{{Name: "a", Data: []tar.Header{link, {Name: "./x", Typeflag: tar.TypeLink, Linkname: "./moo"}}}}},
		{"hard link to another's file", []debtest.Package{
			{Name: "a", Data: []tar.Header{debtest.File("./x", 0o644)}},
			{Name: "b", Data: []tar.Header{{Name: "./y", Typeflag: tar.TypeLink, Linkname: "./x"}}}}},
		{"link of one, file of another", []debtest.Package{
			{Name: "a", Data: []tar.Header{link}}, {Name: "b", Data: []tar.Header{debtest.File("./moo/x", 0o644)}}}},
		{"link up", []debtest.Package{{Name: "a", Data: []tar.Header{debtest.Link("./moo", ".."), debtest.File("./moo/x", 0o644)}}}},
		{"alias as a link out", []debtest.Package{{Name: "a", Data: []tar.Header{debtest.Link("./bin", outside), debtest.File("./bin/x", 0o644)}}}},
		{"file twice", []debtest.Package{{Name: "a", Data: []tar.Header{debtest.File("./x", 0o644), debtest.File("./x", 0o644)}}}},
	}
	if err := os.WriteFile(outside+"/secret", []byte("secret"), 0o600); err != nil {
		t.Fatal(err)
	}
	before := describe(t, outside)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			for range 3 {
				b := newBuild(t, nil, tt.pkgs...)
				if err := b.unpack(t.Context()); err == nil {
					t.Errorf("it was unpacked: %q", describe(t, b.dir))
				}
				if diff := cmp.Diff(before, describe(t, outside)); diff != "" {
					t.Fatalf("something outside changed (-before +after):\n%s", diff)
				}
				if around, err := os.ReadDir(b.WorkDir); err != nil || len(around) != 1 {
					t.Fatalf("beside the tree: %v, %v", around, err)
				}
			}
		})
	}
}

func TestUnpackLock(t *testing.T) {
	b := newBuild(t, nil, debtest.Package{Name: "a"})
	b.Packages[0].Version = "2"
	if err := b.unpack(t.Context()); err == nil || !strings.Contains(err.Error(), `the lock says Version "2"`) {
		t.Errorf("unpack with another version in the lock = %v", err)
	}
	b = newBuild(t, nil, debtest.Package{Name: "a"}, debtest.Package{Name: "a", Fields: "X: y\n"})
	if err := b.unpack(t.Context()); !errors.Is(err, ErrSpec) {
		t.Errorf("unpack of a package twice = %v; want %v", err, ErrSpec)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := newBuild(t, nil, debtest.Package{Name: "a"}).unpack(ctx); !errors.Is(err, context.Canceled) {
		t.Errorf("unpack = %v; want %v", err, context.Canceled)
	}
}

// TestDatabase checks the files that dpkg reads.
func TestDatabase(t *testing.T) {
	a := debtest.Package{Name: "a", Architecture: "amd64", Fields: "Multi-Arch: same\n",
		Control:  map[string]string{"conffiles": "/etc/a.conf\n", "postinst": "#!/bin/sh\n", "triggers": "interest-noawait /usr/lib/x\ninterest named # why\nactivate other\n"},
		Data:     []tar.Header{debtest.Dir("./"), debtest.Dir("./etc/"), debtest.File("./etc/a.conf", 0o644), debtest.File("./etc/a.data", 0o644)},
		Contents: map[string]string{"./etc/a.conf": "x\n", "./etc/a.data": "y\n"}}
	b := newBuild(t, nil, a)
	for _, stage := range []func(context.Context) error{b.unpack, b.writeDatabase} {
		if err := stage(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	for name, want := range map[string]string{
		"status": "Package: a\nStatus: install ok unpacked\nVersion: 1\nArchitecture: amd64\nMaintainer: A <a@example.org>\nMulti-Arch: same\n" +
			"Description: for a test\n more of it\nConffiles:\n /etc/a.conf 401b30e3b8b5d629635a5c613cdb7919\n\n",
		"info/format":           "1\n",
		"info/a:amd64.list":     "/.\n/etc\n/etc/a.conf\n/etc/a.data\n",
		"info/a:amd64.md5sums":  "009520053b00386d1173f3988c55d192  etc/a.data\n",
		"info/a:amd64.postinst": "#!/bin/sh\n",
		"triggers/File":         "/usr/lib/x a:amd64/noawait\n",
		"triggers/named":        "a:amd64\n",
	} {
		if got, err := b.tree.ReadFile(adminDir + "/" + name); err != nil || string(got) != want {
			t.Errorf("%s = %q, %v; want %q", name, got, err, want)
		}
	}
	hostile := debtest.Package{Name: "a", Control: map[string]string{"triggers": "interest ../../../etc/x\n"}}
	b = newBuild(t, nil, hostile)
	if err := b.unpack(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.writeDatabase(t.Context()); !errors.Is(err, deb.ErrHostile) {
		t.Errorf("writeDatabase with a trigger that is a path = %v; want %v", err, deb.ErrHostile)
	}
}

// TestTree checks that links lead nowhere but into the tree.
func TestTree(t *testing.T) {
	outside, dir := t.TempDir(), t.TempDir()
	if err := os.WriteFile(outside+"/f", []byte("outside"), 0o644); err != nil {
		t.Fatal(err)
	}
	for name, target := range map[string]string{"abs": outside, "up": "../../../../../../" + outside, "f": outside + "/f"} {
		if err := os.Symlink(target, dir+"/"+name); err != nil {
			t.Fatal(err)
		}
	}
	d, err := tree.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	for _, name := range []string{"f", "abs/f", "up/f", "../../" + outside + "/f"} {
		if text, err := d.ReadFile(name); err == nil {
			t.Errorf("ReadFile(%q) = %q; want an error", name, text)
		}
	}
	if err := d.WriteFile("f", []byte("inside"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := d.WriteFile("/new/dir/g", []byte("inside"), 0o640); err != nil {
		t.Fatal(err)
	}
	if text, _ := os.ReadFile(outside + "/f"); string(text) != "outside" {
		t.Errorf("the file outside now is %q", text)
	}
	if err := os.Symlink("/new", dir+"/in"); err != nil { // an absolute link means the tree's own
		t.Fatal(err)
	}
	if text, err := d.ReadFile("in/dir/g"); err != nil || string(text) != "inside" {
		t.Errorf("ReadFile through a link inside = %q, %v", text, err)
	}
	if err := d.RemoveAll("abs"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(outside + "/f"); err != nil {
		t.Errorf("removing a link removed what it named: %v", err)
	}
	if names, err := d.Glob("new", "d*"); err != nil || !slices.Equal(names, []string{"new/dir"}) {
		t.Errorf("Glob = %q, %v", names, err)
	}
}

// What scripts need to run at all is unpacked before any script runs, even if
// it diverts, as Debian 13's libc6 and base-files do.
func TestDiverts(t *testing.T) {
	diverting := map[string]deb.ControlFile{"preinst": {Data: []byte("#!/bin/sh\ndpkg-divert --add /x\n")}}
	for _, tt := range []struct {
		name, control string
		files         map[string]deb.ControlFile
		want          bool
	}{
		{"zutils", "Package: zutils\n", diverting, true},
		{"gzip", "Package: gzip\nEssential: yes\n", diverting, false},
		{"libc6", "Package: libc6\n", diverting, false},
		{"libcap2", "Package: libcap2\n", nil, false},
	} {
		ps, err := deb.ParseParagraphs([]byte(tt.control))
		if err != nil || len(ps) != 1 {
			t.Fatal(err)
		}
		p := unpacked{Package: lock.Package{Name: tt.name}, control: &deb.Control{Paragraph: ps[0], Files: tt.files}}
		if got := p.diverts(); got != tt.want {
			t.Errorf("%s diverts: %v, want %v", tt.name, got, tt.want)
		}
	}
}
