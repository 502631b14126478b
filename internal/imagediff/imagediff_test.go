package imagediff

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
)

var hexRE = regexp.MustCompile(`\b[0-9a-f]{12}\b`)

// file is a file of a test's root: a link if target is set.
type file struct {
	content, target string
	mode            os.FileMode
}

// spec is a test's image.
type spec struct {
	files    map[string]file
	packages []lock.Package
	level    string // of compression
	change   func(*manifest.Manifest)
}

// makeImage packs a root and puts it into a layout with its manifest.
func makeImage(t *testing.T, s spec) Source {
	t.Helper()
	if _, err := exec.LookPath("mksquashfs"); err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	dir := t.TempDir()
	root := filepath.Join(dir, "root")
	for name, f := range s.files {
		p := filepath.Join(root, name)
		must(t, os.MkdirAll(filepath.Dir(p), 0o755))
		if f.target != "" {
			must(t, os.Symlink(f.target, p))
			continue
		}
		must(t, os.WriteFile(p, []byte(f.content), 0o644))
		must(t, os.Chmod(p, f.mode))
	}
	packed := filepath.Join(dir, "root.squashfs")
	args := []string{root, packed, "-quiet", "-no-progress", "-noappend", "-all-root", "-mkfs-time", "1", "-all-time", "1", "-comp", "zstd", "-Xcompression-level", s.level}
	if out, err := exec.Command("mksquashfs", args...).CombinedOutput(); err != nil {
		t.Fatalf("mksquashfs: %v: %s", err, out)
	}
	l, err := oci.Create(filepath.Join(dir, "image"))
	must(t, err)
	f, err := os.Open(packed)
	must(t, err)
	defer f.Close()
	blob, err := l.PutBlob(context.Background(), f, oci.Descriptor{MediaType: manifest.MediaRoot})
	must(t, err)
	list, err := json.Marshal(s.packages)
	must(t, err)
	packages, err := l.PutBytes(manifest.MediaPackageList, list)
	must(t, err)
	m := &manifest.Manifest{SchemaVersion: manifest.Version, Name: "demo", Version: "1", LockDigest: "sha256:1", Root: manifest.Blob{Digest: blob.Digest, SizeBytes: blob.Size}}
	if s.change != nil {
		s.change(m)
	}
	raw, err := m.Encode()
	must(t, err)
	config, err := l.PutBytes(manifest.MediaConfig, raw)
	must(t, err)
	d, err := l.PutManifest(oci.Manifest{ArtifactType: manifest.ArtifactType, Config: config, Layers: []oci.Descriptor{blob, packages}})
	must(t, err)
	return Source{l, d.Digest}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func baseFiles() map[string]file {
	return map[string]file{
		"etc/motd":                     {content: "hello\n", mode: 0o644},
		"etc/a file with -> in it":     {content: "x", mode: 0o600},
		"etc/mtab":                     {target: "../proc/self/mounts"},
		"usr/bin/su":                   {content: strings.Repeat("su", 5000), mode: 0o755 | os.ModeSetuid},
		"usr/lib/modules/6.1/a-b.ko":   {content: "module", mode: 0o644},
		"usr/lib/modules/6.1/c.ko.xz":  {content: "module c", mode: 0o644},
		"var/lib/dpkg/info/login.list": {content: "/.\n/bin\n/bin/su\n", mode: 0o644},
	}
}

func TestCompare(t *testing.T) {
	old := spec{files: baseFiles(), level: "3", packages: []lock.Package{{Name: "login", Version: "1", SHA256: "aa"}, {Name: "kmod", Version: "30", SHA256: "bb"}}}
	new := spec{files: baseFiles(), level: "3", packages: []lock.Package{{Name: "login", Version: "2", SHA256: "cc"}, {Name: "vim", Version: "9", SHA256: "dd"}}}
	new.files["usr/bin/su"] = file{content: strings.Repeat("su", 5000), mode: 0o755}
	new.files["etc/mtab"] = file{target: "elsewhere"}
	new.files["etc/motd"] = file{content: "hullo\n", mode: 0o644}
	new.files["usr/lib/modules/6.1/a-b.ko"] = file{content: "MODULE", mode: 0o644}
	new.files["usr/lib/modules/6.1/d.ko"] = file{content: "module d", mode: 0o644}
	delete(new.files, "usr/lib/modules/6.1/c.ko.xz")
	new.change = func(m *manifest.Manifest) {
		m.Version = "2"
		m.Health.Checks = []manifest.Check{{Name: "units", Units: "no-failed"}}
	}
	d, err := Compare(t.Context(), makeImage(t, old), makeImage(t, new), Options{})
	must(t, err)
	if d.Same() {
		t.Error("the images are one")
	}
	var got []string
	for _, f := range d.Files {
		got = append(got, f.String())
	}
	want := []string{
		"/etc/motd: content 5891b5b522d5 → 6c55e3b9ef36",
		"/etc/mtab: target ../proc/self/mounts → elsewhere",
		"/usr/bin/su (package login): mode -rwsr-xr-x → -rwxr-xr-x",
		"/usr/lib/modules/6.1/a-b.ko: content 15a61c51cb87 → 8a3f8fea8b35",
		"/usr/lib/modules/6.1/c.ko.xz was removed: -rw-r--r-- 0:0, 8 bytes, 7eaf1d79a7c7",
		"/usr/lib/modules/6.1/d.ko was added: -rw-r--r-- 0:0, 8 bytes, d3ac6e0ac1fb",
	}
	mask := func(ss []string) (masked []string) { // digests are compared by whether they are there
		for _, s := range ss {
			masked = append(masked, hexRE.ReplaceAllString(s, "H"))
		}
		return masked
	}
	if diff := cmp.Diff(mask(want), mask(got)); diff != "" {
		t.Errorf("files (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Module{{"a_b", "changed"}, {"c", "removed"}, {"d", "added"}}, d.Modules); diff != "" {
		t.Errorf("modules (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([]Change{{"kmod", "30", ""}, {"login", "1", "2"}, {"vim", "", "9"}}, d.Packages); diff != "" {
		t.Errorf("packages (-want +got):\n%s", diff)
	}
	if len(d.Health) != 1 || d.Health[0].Name != "units" {
		t.Errorf("health = %v", d.Health)
	}
	var text, markdown, js bytes.Buffer
	must(t, d.WriteText(&text, 2))
	must(t, d.WriteMarkdown(&markdown, 0))
	must(t, d.WriteJSON(&js))
	for _, want := range []string{"\nfiles (6)\n  ! /etc/motd: ", "… and 4 more; --all shows them", "both are of one lock", "first difference of the roots: /etc/motd: content"} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("text has no %q:\n%s", want, text.String())
		}
	}
	if !strings.Contains(markdown.String(), "<summary>files (6)</summary>") || strings.Count(markdown.String(), "```")%2 != 0 {
		t.Errorf("markdown:\n%s", markdown.String())
	}
	var back Diff
	if err := json.Unmarshal(js.Bytes(), &back); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(*d, back); diff != "" {
		t.Errorf("JSON does not carry all of it (-want +got):\n%s", diff)
	}
}

// TestSameFiles: when only the packing differs, the tool is named.
func TestSameFiles(t *testing.T) {
	tool := func(v string) func(*manifest.Manifest) {
		return func(m *manifest.Manifest) { m.Tools = map[string]string{"mksquashfs": v} }
	}
	a := makeImage(t, spec{files: baseFiles(), level: "1", change: tool("4.5.1")})
	b := makeImage(t, spec{files: baseFiles(), level: "19", change: tool("4.6.1")})
	d, err := Compare(t.Context(), a, b, Options{})
	must(t, err)
	if len(d.Files) > 0 || d.First != "the files are the same but packed otherwise: by mksquashfs 4.5.1 and 4.6.1" {
		t.Errorf("files %v, first %q", d.Files, d.First)
	}
	d, err = Compare(t.Context(), a, a, Options{})
	must(t, err)
	if !d.Same() || d.First != "" || len(d.sections(0)) > 0 {
		t.Errorf("an image differs from itself: %+v", d)
	}
}
