package recipe

import (
	"errors"
	"os"
	"path/filepath"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/manifest"
)

// minimal is the shortest recipe that is whole; tests add to it or change it.
const minimal = `name: tiny
version: "1"
base:
  distribution: debian
  release: bookworm
  sources:
    - uri: http://deb.debian.org/debian
      suites: [bookworm]
      components: [main]
kernel:
  package: linux-image-6.1.0-50-amd64
`

// write puts files into a new folder and returns it.
func write(t *testing.T, files map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, text := range files {
		p := filepath.Join(dir, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

// load loads r.yaml with that text.
func load(t *testing.T, text string) (*Recipe, error) {
	t.Helper()
	return Load(filepath.Join(write(t, map[string]string{"r.yaml": text}), "r.yaml"))
}

func TestLoadDefaults(t *testing.T) {
	r, err := load(t, minimal+`files:
  - {path: /etc/motd, content: ""}
  - {path: /srv/data/}
  - {path: /etc/localtime, link: /usr/share/zoneinfo/UTC}
users:
  - {name: operator, uid: 1000}
boot:
  watchdog: 1m
health:
  soak: 5s
  checks:
    - {name: net, unit: systemd-networkd.service, timeout: 90s, advisory: true}
labels:
  mac: 52:54:00:12:34:56
`)
	if err != nil {
		t.Fatal(err)
	}
	if r.Architecture != "amd64" || r.Updates != "disabled" || r.Base.Keyring != defaultKeyring || r.Boot.Verify != "full" {
		t.Errorf("defaults are architecture %q, updates %q, keyring %q, verify %q", r.Architecture, r.Updates, r.Base.Keyring, r.Boot.Verify)
	}
	wantFiles := []File{
		{Path: "/etc/motd", Mode: "0644", Owner: "root:root"},
		{Path: "/srv/data/", Mode: "0755", Owner: "root:root"},
		{Path: "/etc/localtime", Link: "/usr/share/zoneinfo/UTC", Owner: "root:root"},
	}
	if d := cmp.Diff(wantFiles, r.Files); d != "" {
		t.Errorf("files (-want +got):\n%s", d)
	}
	wantHealth := manifest.Health{Soak: manifest.Duration(5 * time.Second), Checks: []manifest.Check{
		{Name: "net", Unit: "systemd-networkd.service", Timeout: manifest.Duration(90 * time.Second), Advisory: true}}}
	if d := cmp.Diff(wantHealth, r.Health); d != "" {
		t.Errorf("health (-want +got):\n%s", d)
	}
	if want := manifest.Duration(time.Minute); r.Boot.Watchdog != want {
		t.Errorf("watchdog = %v, want %v", r.Boot.Watchdog, want)
	}
	// YAML 1.1 would read this address as a number to base 60.
	if got, want := r.Labels["mac"], "52:54:00:12:34:56"; got != want {
		t.Errorf("label mac = %q, want %q", got, want)
	}
	for _, d := range []string{r.Digest, r.Request} {
		if err := manifest.CheckDigest(d); err != nil {
			t.Error(err)
		}
	}
}

// with replaces the first line of minimal that starts with prefix.
func with(prefix, line string) string {
	lines := strings.SplitAfter(minimal, "\n")
	for i, l := range lines {
		if strings.HasPrefix(strings.TrimSpace(l), prefix) {
			indent := l[:len(l)-len(strings.TrimLeft(l, " "))]
			lines[i] = ""
			if line != "" {
				lines[i] = indent + line + "\n"
			}
			return strings.Join(lines, "")
		}
	}
	panic("no line " + prefix)
}

func TestLoadErrors(t *testing.T) {
	tests := []struct{ name, text, want string }{
		{"empty", "", `:1:1: recipe is empty`},
		{"comment only", "# nothing\n", `:1:1: recipe is empty`},
		{"a list", "- name: x\n", `:1:1: want keys with values, got a list (start with "name: …")`},
		{"not YAML", "name: [a\nversion: b\n", `:1:1: not YAML: did not find expected ',' or ']'`},
		{"tab", "name: a\n\tversion: b\n", `:2:1: not YAML: found a tab character that violates indentation`},
		{"two documents", minimal + "---\nname: b\n", `:12:1: a second YAML document (a recipe is one document; use extends to share)`},
		{"anchor", minimal + "labels: &a {x: y}\n", `:12:9: anchors and aliases are not supported (use extends to share)`},
		{"duplicate key", minimal + "name: again\n", `:12:1: key "name" was given already on line 1`},
		{"number as key", minimal + "labels: {1: a}\n", `:12:10: want a word as a key, got the number 1`},
		{"unknown key", minimal + "kernal: {}\n", `:12:1: unknown key "kernal" in recipe (did you mean "kernel"?)`},
		{"unknown key inside", minimal + "  pakage: x\n", `:12:3: unknown key "pakage" in kernel (did you mean "package"?)`},
		{"unknown key far off", minimal + "  colour: x\n", `:12:3: unknown key "colour" in kernel (known keys: cmdline, exclude_modules, package, version)`},
		{"unknown key of a check", minimal + "health:\n  checks:\n    - {name: a, exce: [/bin/true]}\n", `:14:17: unknown key "exce" in health.checks[0] (did you mean "exec"?)`},
		{"digest is no key", minimal + "digest: x\n", `:12:1: unknown key "digest" in recipe`},
		{"number for text", with("version:", "version: 1.10"), `:2:10: version: want text, got the number 1.10 (put quotes around it: "1.10")`},
		{"truth for text", with("name:", "name: true"), `:1:7: name: want text, got the truth value true (put quotes around it: "true")`},
		{"date for text", with("version:", "version: 2026-12-01"), `:2:10: version: want text, got the date 2026-12-01 (put quotes around it: "2026-12-01")`},
		{"MAC that is a number", minimal + "labels:\n  mac: 525400123456\n", `:13:8: labels.mac: want text, got the number 525400123456 (put quotes around it: "525400123456")`},
		{"text for list", minimal + "packages: udev\n", `:12:11: packages: want a list, got the text "udev" (write [udev])`},
		{"nothing for list", minimal + "packages:\n", `:12:10: packages: want a list, got nothing (start each item with "- ")`},
		{"list for text", with("name:", "name: [a]"), `:1:7: name: want text, got a list`},
		{"text for map", minimal + "sysctl: x=y\n", `:12:9: sysctl: want keys with values, got the text "x=y" (write "key: value" lines)`},
		{"number in map", minimal + "sysctl:\n  vm.swappiness: 10\n", `:13:18: sysctl.vm.swappiness: want text, got the number 10 (put quotes around it: "10")`},
		{"text for number", minimal + "users:\n  - {name: a, uid: one}\n", `:13:20: users[0].uid: want a whole number, got the text "one"`},
		{"text for truth", minimal + "health:\n  checks:\n    - {name: a, unit: a.service, advisory: maybe}\n", `:14:44: health.checks[0].advisory: want true or false, got the text "maybe"`},
		{"duration without unit", minimal + "boot: {watchdog: 60}\n", `:12:18: boot.watchdog: duration "60": want a number with a unit such as 30s or 5m`},
		{"no name", with("name:", ""), `:1:1: name is missing (for example name: rack-base)`},
		{"bad name", with("name:", "name: Rack"), `:1:7: name: "Rack" is not up to 63 lower-case letters`},
		{"no version", with("version:", ""), `:1:1: version is missing (for example version: "1.0")`},
		{"no kernel", strings.Split(minimal, "kernel:")[0], `:1:1: kernel.package is missing (for example package: linux-image-6.1.0-50-amd64)`},
		{"kernel without package", minimal[:strings.Index(minimal, "  package")] + "  version: \"6\"\n", `:11:3: kernel.package is missing`},
		{"metapackage", with("package:", "package: linux-image-amd64"), `:11:12: kernel.package "linux-image-amd64" does not pin a kernel (name the kernel itself, such as linux-image-6.1.0-50-amd64, or linux-image-6.1.0-*-amd64 for the newest of a series)`},
		{"not a kernel", with("package:", "package: vim"), `:11:12: kernel.package "vim" is not for architecture amd64`},
		{"other architecture", minimal + "architecture: arm64\n", `:11:12: kernel.package "linux-image-6.1.0-50-amd64" is not for architecture arm64`},
		{"unknown architecture", minimal + "architecture: x86\n", `:12:15: architecture "x86" is not amd64 or arm64`},
		{"two kernels", minimal + "packages:\n  - udev\n  - linux-image-6.1.0-57-amd64\n", `:14:5: two kernels: linux-image-6.1.0-57-amd64 beside kernel.package linux-image-6.1.0-50-amd64 (an image has one kernel; take the package out of the list)`},
		{"package twice", minimal + "packages: [udev, udev=1]\n", `:12:18: package udev is listed twice`},
		{"bad package", minimal + "packages: [\"ude v\"]\n", `:12:12: packages[0]: "ude v" is not a Debian package name`},
		{"option as package", minimal + "packages: [\"-oFoo=bar\"]\n", `:12:12: packages[0]: "-oFoo" is not a Debian package name`},
		{"bad pin", minimal + "packages: [\"udev=*\"]\n", `:12:12: packages[0]: "*" is not a Debian version`},
		{"latest", minimal + "packages: [udev=latest]\n", `:12:12: packages[0]: "latest" is not a Debian version (write udev: the lock takes the newest, and keeps it)`},
		{"text of words for list", minimal + "packages: udev kmod\n", `:12:11: packages: want a list, got the text "udev kmod" (write [udev, kmod])`},
		{"reporter", minimal + "packages: [popularity-contest]\n", `:12:12: package popularity-contest sends reports to its maker (nodes tell nobody`},
		{"updater", minimal + "packages: [unattended-upgrades]\n", `:12:12: package unattended-upgrades changes a running system`},
		{"updates", minimal + "updates: weekly\n", `:12:10: updates: "weekly" is not accepted, only "disabled"`},
		{"no sources", strings.Replace(minimal, minimal[strings.Index(minimal, "  sources"):strings.Index(minimal, "kernel:")], "", 1), `:4:3: base.sources is missing`},
		{"ftp", strings.Replace(minimal, "http:", "ftp:", 1), `:7:12: base.sources[0].uri: "ftp://deb.debian.org/debian" is not the http or https address of an archive`},
		{"password", strings.Replace(minimal, "http://", "http://u:p@", 1), `:7:12: base.sources[0].uri has a user name or password in it`},
		{"source without suites", with("suites", ""), `:7:7: base.sources[0].suites is missing`},
		{"distribution", with("distribution", "distribution: fedora"), `:4:17: base.distribution "fedora" is not supported, only debian`},
		{"relative keyring", with("release", "release: bookworm\n  keyring: k.gpg"), `:6:12: base.keyring "k.gpg" is not an absolute path`},
		{"relative path", minimal + "files:\n  - {path: etc/motd, content: a}\n", `:13:12: files[0].path: "etc/motd" is not an absolute path without ".", ".." and "//"`},
		{"dots in path", minimal + "files:\n  - {path: /etc/../motd, content: a}\n", `:13:12: files[0].path: "/etc/../motd" is not an absolute path`},
		{"path over the builder's", minimal + "files:\n  - {path: /usr/lib/turnout/trust.json, content: a}\n", `:13:12: files[0].path: /usr/lib/turnout is written by imgbuild`},
		{"file without kind", minimal + "files:\n  - {path: /etc/motd}\n", `:13:5: /etc/motd has none of source, content and link (end the path with "/" for a folder)`},
		{"file of two kinds", minimal + "files:\n  - {path: /etc/motd, content: a, link: b}\n", `:13:41: /etc/motd has both content and link`},
		{"folder with content", minimal + "files:\n  - {path: /etc/a/, content: a}\n", `:13:30: /etc/a/ is a folder and has no content`},
		{"mode", minimal + "files:\n  - {path: /etc/a, content: a, mode: \"0999\"}\n", `:13:38: files[0].mode: "0999" is not an octal mode such as "0644"`},
		{"mode without quotes", minimal + "files:\n  - {path: /etc/a, content: a, mode: 0644}\n", `:13:38: files[0].mode: want text, got the number 0644 (put quotes around it: "0644")`},
		{"file twice", minimal + "files:\n  - {path: /etc/a, content: a}\n  - {path: /etc/a/}\n", `:14:12: file /etc/a/ is listed twice`},
		{"no such source", minimal + "files:\n  - {path: /etc/a, source: missing}\n", `:13:28: source missing: no such file or directory (the path is relative to the folder of this file)`},
		{"source is a folder", minimal + "files:\n  - {path: /etc/a, source: .}\n", `:13:28: source . is not a regular file`},
		{"unit without suffix", minimal + "services: {mask: [apt-daily]}\n", `:12:19: services.mask[0]: "apt-daily" is not a systemd unit with its suffix`},
		{"enabled and masked", minimal + "services: {enable: [a.service], mask: [a.service]}\n", `:12:40: a.service is both enabled and masked`},
		{"modprobe", minimal + "modprobe: [nouveau]\n", `:12:12: modprobe[0]: "nouveau" is not a modprobe.d line`},
		{"user without uid", minimal + "users:\n  - {name: a}\n", `:13:5: user a: uid 0 cannot be used`},
		{"uid twice", minimal + "users:\n  - {name: a, uid: 1000}\n  - {name: b, uid: 1000}\n", `:14:20: users a and b have the same uid 1000`},
		{"verify", minimal + "boot: {verify: maybe}\n", `:12:16: boot.verify "maybe" is not full or lazy`},
		{"check of no kind", minimal + "health:\n  checks:\n    - {name: a}\n", `:14:7: health check a does not say what to check (add one of exec, unit, units, module, file, kernel)`},
		{"check of two kinds", minimal + "health:\n  checks:\n    - {name: a, unit: a.service, kernel: pinned}\n", `:14:42: health check a has both unit and kernel (make them two checks)`},
		{"check twice", minimal + "health:\n  checks:\n    - {name: a, unit: a.service}\n    - {name: a, unit: b.service}\n", `:15:14: health check a is listed twice`},
		{"check class", minimal + "health:\n  checks:\n    - {name: a, unit: a.service, class: hard}\n", `:14:41: health check a: class "hard" is not software, hardware or environment`},
		{"relative exec", minimal + "health:\n  checks:\n    - {name: a, exec: [true-ish]}\n", `:14:24: health.checks[0].exec[0]: "true-ish" is not an absolute path`},
		{"remove without extends", minimal + "remove: [udev]\n", `:12:9: remove: this recipe extends no other`},
		{"extends nothing", minimal + "extends: missing.yaml\n", `:12:10: extends missing.yaml: recipe `},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, err := load(t, tt.text)
			if err == nil {
				t.Fatalf("Load = %+v, want the error %s", r, tt.want)
			}
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("Load = %v, which is a %T, want a *Error", err, err)
			}
			_, got, _ := strings.Cut(err.Error(), "r.yaml")
			if !strings.HasPrefix(got, tt.want) {
				t.Errorf("Load says\n  %s\nwant\n  %s", got, tt.want)
			}
			if strings.Contains(got, "\n") {
				t.Errorf("the message has more than one line: %q", got)
			}
		})
	}
}

func TestLoadMissingFile(t *testing.T) {
	_, err := Load(filepath.Join(t.TempDir(), "r.yaml"))
	if !errors.Is(err, os.ErrNotExist) {
		t.Errorf("Load of a missing file = %v, want %v", err, os.ErrNotExist)
	}
}

// The recipes of the repository are examples; they must all load.
func TestRepositoryRecipes(t *testing.T) {
	var paths []string
	for _, pattern := range []string{"../../recipes/*.yaml", "../../recipes/demo/*.yaml"} {
		found, err := filepath.Glob(pattern)
		if err != nil || len(found) == 0 {
			t.Fatalf("no recipe matches %s (%v)", pattern, err)
		}
		paths = append(paths, found...)
	}
	for _, p := range paths {
		if _, err := Load(p); err != nil {
			t.Error(err)
		}
	}
}

func FuzzLoad(f *testing.F) {
	f.Add([]byte(minimal))
	f.Add([]byte(gpuNode))
	f.Add([]byte("a: &a [*a]\n"))
	f.Add([]byte("<<: {a: b}\n"))
	f.Add([]byte("? [a]\n: b\n"))
	f.Add([]byte(minimal + "files:\n  - {path: /etc/a/, mode: \"0755\"}\nextends: .\n"))
	for _, p := range []string{"../../recipes/rack-base.yaml", "../../recipes/demo/v3.yaml"} {
		b, err := os.ReadFile(p)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(b)
	}
	path := filepath.Join(f.TempDir(), "r.yaml")
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := os.WriteFile(path, b, 0o644); err != nil {
			t.Fatal(err)
		}
		r, err := Load(path)
		if err != nil {
			if r != nil {
				t.Errorf("Load returned a recipe beside the error %v", err)
			}
			return
		}
		again, err := Load(path)
		if err != nil || again.Digest != r.Digest {
			t.Errorf("a second Load gives %v, digest %v; want digest %v", err, again, r.Digest)
		}
	})
}

// docs/recipe.md promises to name every field.
func TestDocumentation(t *testing.T) {
	b, err := os.ReadFile("../../docs/recipe.md")
	if err != nil {
		t.Fatal(err)
	}
	for _, typ := range []any{Recipe{}, Base{}, Source{}, Kernel{}, File{}, Services{}, User{}, manifest.Boot{}, manifest.Disk{}, manifest.Update{}, manifest.Health{}, manifest.Check{},
		Driver{}, Accept{}, Firmware{}, FirmwareRequire{}, GPU{}, MIG{}, MIGLayout{}, MIGEntry{}, Sharing{}, SharedDevices{},
		DevicePlugin{}, VGPU{}, IMEX{}, Clocks{}, Egress{}, EgressRule{}} {
		for key := range fieldsOf(reflect.TypeOf(typ)) {
			if s := string(b); !strings.Contains(s, "`"+key+"`") && !strings.Contains(s, "]."+key+"`") && !strings.Contains(s, "."+key+"`") {
				t.Errorf("docs/recipe.md does not name %s of %T", key, typ)
			}
		}
	}
}
