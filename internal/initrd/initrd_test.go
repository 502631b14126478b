package initrd

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/klauspost/compress/zstd"
	"github.com/ulikunitz/xz"
)

// fakeTree writes a module tree: the files of dep (compressed by suffix, each
// holding its own name), and the given tables.
func fakeTree(t *testing.T, tables map[string]string) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "6.1.0-test")
	for name, text := range tables {
		writeFile(t, filepath.Join(dir, name), []byte(text))
	}
	for l := range strings.Lines(tables["modules.dep"]) {
		file, _, _ := strings.Cut(l, ":")
		var b bytes.Buffer
		switch filepath.Ext(file) {
		case ".xz":
			w, err := xz.NewWriter(&b)
			if err != nil {
				t.Fatal(err)
			}
			closeAfter(t, w, file)
		case ".zst":
			w, err := zstd.NewWriter(&b)
			if err != nil {
				t.Fatal(err)
			}
			closeAfter(t, w, file)
		default:
			b.WriteString(file)
		}
		writeFile(t, filepath.Join(dir, file), b.Bytes())
	}
	return dir
}

func closeAfter(t *testing.T, w io.WriteCloser, s string) {
	t.Helper()
	if _, err := io.WriteString(w, s); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
}

func writeFile(t *testing.T, name string, b []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, b, 0o600); err != nil {
		t.Fatal(err)
	}
}

var tables = map[string]string{
	"modules.dep": `kernel/fs/ext4.ko: kernel/lib/libcrc32c.ko kernel/fs/jbd2.ko kernel/fs/mbcache.ko
kernel/fs/jbd2.ko: kernel/lib/libcrc32c.ko
kernel/fs/mbcache.ko:
kernel/lib/libcrc32c.ko:
kernel/crypto/crc32c_generic.ko:
kernel/arch/crc32c-intel.ko:
kernel/net/mlx5_core.ko.xz: kernel/net/tls.ko.zst
kernel/net/tls.ko.zst:
kernel/md/dm-verity.ko: kernel/md/dm-mod.ko
kernel/md/dm-mod.ko:
kernel/a/loop-a.ko:
kernel/a/loop_b.ko:
`,
	"modules.builtin": "kernel/drivers/nvme/nvme.ko\n",
	"modules.softdep": "# soft\nsoftdep libcrc32c pre: crc32c\nsoftdep loop_a pre: loop_b post: mbcache not-there\nsoftdep loop_b pre: loop_a\n",
	"modules.alias":   "alias crc32c crc32c_intel\nalias crc32c crc32c_generic\nalias pci:v*d*sv* mbcache\n",
}

func TestModules(t *testing.T) {
	dir := fakeTree(t, tables)
	tests := []struct {
		name string
		set  Set
		want string
	}{
		{"dependencies first", Set{Required: []string{"dm-verity"}}, "dm_mod dm_verity"},
		{"soft dependency by alias", Set{Required: []string{"ext4"}}, "crc32c_intel crc32c_generic libcrc32c jbd2 mbcache ext4"},
		{"built in", Set{Required: []string{"nvme"}}, ""},
		{"each once", Set{Required: []string{"dm_verity", "dm-verity", "dm_mod"}}, "dm_mod dm_verity"},
		{"optional and missing", Set{Required: []string{"tls"}, Optional: []string{"igb", "mbcache"}}, "tls mbcache"},
		{"soft circle, post and a missing one", Set{Required: []string{"loop-a"}}, "loop_b loop_a mbcache"},
		{"compressed", Set{Required: []string{"mlx5_core"}}, "tls mlx5_core"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			ms, err := Modules(dir, tt.set)
			if err != nil {
				t.Fatal(err)
			}
			var names []string
			for _, m := range ms {
				names = append(names, m.Name)
			}
			if got := strings.Join(names, " "); got != tt.want {
				t.Errorf("Modules = %q; want %q", got, tt.want)
			}
		})
	}
}

func TestSubset(t *testing.T) {
	dir := fakeTree(t, tables)
	set := Set{Required: []string{"ext4", "mlx5_core"}}
	want, err := Modules(dir, set)
	if err != nil {
		t.Fatal(err)
	}
	dst := filepath.Join(t.TempDir(), "subset")
	if err := Subset(dst, dir, set); err != nil {
		t.Fatal(err)
	}
	got, err := Modules(dst, set)
	if err != nil {
		t.Fatal(err)
	}
	if len(got) != len(want) {
		t.Fatalf("%d modules in the subset; want %d", len(got), len(want))
	}
	for i := range want {
		w, err := want[i].read()
		if err != nil {
			t.Fatal(err)
		}
		g, err := got[i].read()
		if err != nil || string(g) != string(w) || got[i].Path != want[i].Path {
			t.Errorf("module %d is %s %q, %v; want %s %q", i, got[i].Path, g, err, want[i].Path, w)
		}
	}
	if _, err := os.Stat(filepath.Join(dst, "kernel/md/dm-verity.ko")); err == nil {
		t.Error("a module that was not asked for was copied")
	}
}

func TestModulesMissing(t *testing.T) {
	dir := fakeTree(t, tables)
	if _, err := Modules(dir, Set{Required: []string{"dm-crypt"}}); !errors.Is(err, ErrNoModule) || !strings.Contains(err.Error(), "dm-crypt in 6.1.0-test") {
		t.Errorf("Modules = %v; want ErrNoModule with name and release", err)
	}
	if err := os.Remove(filepath.Join(dir, "kernel/md/dm-mod.ko")); err != nil {
		t.Fatal(err)
	}
	if _, err := Modules(dir, Set{Required: []string{"dm-verity"}}); err == nil {
		t.Error("a module file that modules.dep names and that is gone was accepted")
	}
	if _, err := Modules(t.TempDir(), Slot); err == nil {
		t.Error("a tree without modules.dep was accepted")
	}
}

func buildFake(t *testing.T) []byte {
	t.Helper()
	ms, err := Modules(fakeTree(t, tables), Set{Required: []string{"mlx5_core", "dm-verity"}})
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	c := Contents{
		Init: []byte("\x7fELF agent"), Release: "6.1.0-test", Modules: ms,
		Files: []File{{"/usr/lib/turnout/trust.json", 0o600, []byte("{}\n")}},
	}
	if err := Build(&b, c); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// TestBuild lets zstd and cpio, which share no code with this package, read
// the archive.
func TestBuild(t *testing.T) {
	file := filepath.Join(t.TempDir(), "initrd")
	writeFile(t, file, buildFake(t))
	dir := t.TempDir()
	out, err := exec.Command("sh", "-c", `cd "$2" && zstd -qdc "$1" | cpio --quiet -idv 2>&1`, "sh", file, dir).CombinedOutput()
	if err != nil {
		if os.Getenv("CI") == "" {
			t.Skipf("zstd and cpio (both packages) are needed, as root: %v: %s", err, out)
		}
		t.Fatalf("%v: %s", err, out)
	}
	want := `dev
proc
sys
run
sysroot
tmp
dev/console
dev/null
init
usr
usr/lib
usr/lib/turnout
usr/lib/turnout/modules.list
usr/lib/turnout/trust.json
usr/lib/modules
usr/lib/modules/6.1.0-test
usr/lib/modules/6.1.0-test/kernel
usr/lib/modules/6.1.0-test/kernel/net
usr/lib/modules/6.1.0-test/kernel/net/tls.ko
usr/lib/modules/6.1.0-test/kernel/net/mlx5_core.ko
usr/lib/modules/6.1.0-test/kernel/md
usr/lib/modules/6.1.0-test/kernel/md/dm-mod.ko
usr/lib/modules/6.1.0-test/kernel/md/dm-verity.ko
`
	if d := cmp.Diff(want, string(out)); d != "" {
		t.Errorf("archive (-want +got):\n%s", d)
	}
	for name, want := range map[string]string{
		"init":                       "\x7fELF agent",
		"usr/lib/turnout/trust.json": "{}\n",
		"usr/lib/turnout/modules.list": `/usr/lib/modules/6.1.0-test/kernel/net/tls.ko
/usr/lib/modules/6.1.0-test/kernel/net/mlx5_core.ko
/usr/lib/modules/6.1.0-test/kernel/md/dm-mod.ko
/usr/lib/modules/6.1.0-test/kernel/md/dm-verity.ko
`,
		"usr/lib/modules/6.1.0-test/kernel/net/tls.ko":       "kernel/net/tls.ko.zst",
		"usr/lib/modules/6.1.0-test/kernel/net/mlx5_core.ko": "kernel/net/mlx5_core.ko.xz",
	} {
		got, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || string(got) != want {
			t.Errorf("%s = %q, %v; want %q", name, got, err, want)
		}
	}
	for name, want := range map[string]os.FileMode{
		"init": 0o755, "usr/lib/turnout/trust.json": 0o600, "dev/console": os.ModeDevice | os.ModeCharDevice | 0o600,
	} {
		if fi, err := os.Stat(filepath.Join(dir, name)); err != nil || fi.Mode() != want {
			t.Errorf("%s: %v, %v; want mode %v", name, fi, err, want)
		}
	}
}

func TestBuildTwice(t *testing.T) {
	if !bytes.Equal(buildFake(t), buildFake(t)) {
		t.Error("the same contents in another folder give other bytes")
	}
}

func TestBuildRefuses(t *testing.T) {
	for name, c := range map[string]Contents{
		"no init":       {},
		"script":        {Init: []byte("#!/bin/sh")},
		"relative path": {Init: []byte("\x7fELF"), Files: []File{{Path: "x"}}},
	} {
		if err := Build(io.Discard, c); err == nil {
			t.Errorf("%s: Build succeeded", name)
		}
	}
}
