package recipe

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/manifest"
)

func TestExtends(t *testing.T) {
	dir := write(t, map[string]string{
		"base/base.yaml": minimal + `packages: [udev, systemd, kmod]
sysctl: {a.b: "1", c.d: "2"}
files:
  - {path: /etc/a, source: a.txt}
  - {path: /etc/b, content: base}
services: {enable: [a.service, b.service], mask: [c.service, d.service]}
boot: {watchdog: 60s, verify: lazy}
health:
  checks:
    - {name: x, unit: a.service}
    - {name: y, unit: b.service}
`,
		"base/a.txt": "A",
		"demo/mid.yaml": `extends: ../base/base.yaml
name: mid
version: "2"
packages: [iproute2, systemd=252*]
`,
		"demo/top.yaml": `extends: mid.yaml
version: "3"
remove: [udev]
kernel: {cmdline: [quiet]}
services: {enable: [c.service], mask: [b.service]}
sysctl: {c.d: "3"}
files:
  - {path: /etc/b, content: top}
  - {path: /etc/c, source: c.txt}
boot: {watchdog: 0s}
health:
  checks:
    - {name: y, file: /etc/y}
`,
		"demo/c.txt": "C",
	})
	r, err := Load(filepath.Join(dir, "demo/top.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if r.Name != "mid" || r.Version != "3" || r.Kernel.Package != "linux-image-6.1.0-50-amd64" {
		t.Errorf("name %q, version %q, kernel %q", r.Name, r.Version, r.Kernel.Package)
	}
	if d := cmp.Diff([]string{"systemd=252*", "kmod", "iproute2"}, r.Packages); d != "" {
		t.Errorf("packages (-want +got):\n%s", d)
	}
	if d := cmp.Diff(map[string]string{"a.b": "1", "c.d": "3"}, r.Sysctl); d != "" {
		t.Errorf("sysctl (-want +got):\n%s", d)
	}
	wantFiles := []File{
		{Path: "/etc/a", Source: "../base/a.txt", Mode: "0644", Owner: "root:root"},
		{Path: "/etc/b", Content: "top", Mode: "0644", Owner: "root:root"},
		{Path: "/etc/c", Source: "c.txt", Mode: "0644", Owner: "root:root"},
	}
	if d := cmp.Diff(wantFiles, r.Files); d != "" {
		t.Errorf("files (-want +got):\n%s", d)
	}
	if d := cmp.Diff(manifest.Boot{Verify: "lazy"}, r.Boot); d != "" {
		t.Errorf("boot (-want +got):\n%s", d)
	}
	if d := cmp.Diff(Services{Enable: []string{"a.service", "c.service"}, Mask: []string{"d.service", "b.service"}}, r.Services); d != "" {
		t.Errorf("services (-want +got):\n%s", d)
	}
	wantChecks := []manifest.Check{{Name: "x", Unit: "a.service"}, {Name: "y", File: "/etc/y"}}
	if d := cmp.Diff(wantChecks, r.Health.Checks); d != "" {
		t.Errorf("checks (-want +got):\n%s", d)
	}
}

func TestExtendsErrors(t *testing.T) {
	tests := []struct {
		name  string
		files map[string]string
		want  string // after the folder
	}{
		{"cycle", map[string]string{"r.yaml": "extends: b.yaml\n", "b.yaml": "extends: r.yaml\n"},
			"/r.yaml:1:1: recipe extends itself: "},
		{"itself", map[string]string{"r.yaml": "extends: ./r.yaml\n"}, "/r.yaml:1:1: recipe extends itself: "},
		{"fault in the base", map[string]string{"r.yaml": "extends: sub/b.yaml\n", "sub/b.yaml": minimal + "kernal: {}\n"},
			`/sub/b.yaml:12:1: unknown key "kernal" in recipe`},
		{"fault in the base's source", map[string]string{"r.yaml": "extends: sub/b.yaml\n", "sub/b.yaml": minimal + "files: [{path: /a, source: no}]\n"},
			`/sub/b.yaml:12:28: source sub/no: no such file or directory`},
		{"other kind", map[string]string{"r.yaml": "extends: b.yaml\npackages: {}\n", "b.yaml": minimal + "packages: [udev]\n"},
			`/r.yaml:2:11: packages: got keys with values, but the recipe it extends has a list (`},
		{"remove what is not there", map[string]string{"r.yaml": "extends: b.yaml\nremove: [vim]\n", "b.yaml": minimal},
			`/r.yaml:2:10: remove: package "vim" is not in it`},
		{"two kernels", map[string]string{"r.yaml": "extends: b.yaml\npackages: [linux-image-6.1.0-57-amd64]\n", "b.yaml": minimal},
			`/r.yaml:2:12: two kernels: `},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			dir := write(t, tt.files)
			_, err := Load(filepath.Join(dir, "r.yaml"))
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("Load = %v, want a *Error", err)
			}
			if got := strings.TrimPrefix(err.Error(), dir); !strings.HasPrefix(got, tt.want) {
				t.Errorf("Load says\n  %s\nwant\n  %s", got, tt.want)
			}
		})
	}
}

func TestDigests(t *testing.T) {
	text := minimal + "files:\n  - {path: /etc/a, source: a.txt}\n"
	digests := func(recipe, source string) (digest, request string) {
		t.Helper()
		dir := write(t, map[string]string{"r.yaml": recipe, "a.txt": source})
		r, err := Load(filepath.Join(dir, "r.yaml"))
		if err != nil {
			t.Fatal(err)
		}
		return r.Digest, r.Request
	}
	d0, q0 := digests(text, "A")
	tests := []struct {
		name                     string
		recipe, source           string
		digestMoves, requestMove bool
	}{
		{"another folder", text, "A", false, false},
		{"a comment", "# hello\n" + text, "A", false, false},
		{"a default spelled out", text + "architecture: amd64\n", "A", false, false},
		{"an embedded file", text, "B", true, false},
		{"a sysctl", text + "sysctl: {a.b: \"1\"}\n", "A", true, false},
		{"a package", text + "packages: [udev]\n", "A", true, true},
		{"the kernel's version", text[:strings.Index(text, "files:")] + "  version: 6.1.176-1\n" + text[strings.Index(text, "files:"):], "A", true, true},
	}
	for _, tt := range tests {
		d, q := digests(tt.recipe, tt.source)
		if moved := d != d0; moved != tt.digestMoves {
			t.Errorf("%s: Digest moved is %v, want %v", tt.name, moved, tt.digestMoves)
		}
		if moved := q != q0; moved != tt.requestMove {
			t.Errorf("%s: Request moved is %v, want %v", tt.name, moved, tt.requestMove)
		}
	}
}

func TestNearest(t *testing.T) {
	tests := []struct{ word, want string }{
		{"kernal", "kernel"}, {"package", "packages"}, {"helth", "health"}, {"fiels", "files"}, {"ngnix", "nginx"}, {"colour", ""}, {"", ""},
	}
	words := []string{"kernel", "packages", "health", "files", "afnix", "nginx"}
	for _, tt := range tests {
		if got := Nearest(tt.word, words); got != tt.want {
			t.Errorf("Nearest(%q) = %q, want %q", tt.word, got, tt.want)
		}
	}
}
