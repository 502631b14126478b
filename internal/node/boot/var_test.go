//go:build linux

package boot

import (
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// tree lists a folder: "mode owner size|target path".
func tree(t *testing.T, dir string) map[string]string {
	t.Helper()
	out := map[string]string{}
	err := filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		rel, _ := filepath.Rel(dir, p)
		fi, err := d.Info()
		if err != nil {
			return err
		}
		st := fi.Sys().(*syscall.Stat_t)
		what := ""
		switch {
		case fi.Mode().IsRegular():
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			what = string(b)
		case fi.Mode()&fs.ModeSymlink != 0:
			what, _ = os.Readlink(p)
		}
		out[rel] = strings.Join([]string{fi.Mode().String(), time.Unix(st.Mtim.Sec, 0).UTC().Format(time.RFC3339), what}, " ")
		if fi.Mode()&fs.ModeSymlink != 0 {
			out[rel] = "link " + what
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return out
}

func makeVar(t *testing.T, image string, files map[string]string) {
	t.Helper()
	for p, text := range files {
		full := filepath.Join(image, "var", p)
		if err := os.MkdirAll(filepath.Dir(full), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	old := time.Date(2020, 1, 2, 3, 4, 5, 0, time.UTC)
	_ = filepath.WalkDir(image, func(p string, _ fs.DirEntry, _ error) error { return os.Chtimes(p, old, old) })
}

func TestSeedVar(t *testing.T) {
	one, state := t.TempDir(), t.TempDir()
	makeVar(t, one, map[string]string{"lib/dpkg/status": "v1", "log/x": "", "spool/cron/y": "y"})
	if err := os.Symlink("/run", filepath.Join(one, "var", "run")); err != nil {
		t.Fatal(err)
	}
	if err := os.Chmod(filepath.Join(one, "var", "spool"), 0o1777); err != nil {
		t.Fatal(err)
	}
	if err := seedVar(one, state, "r1"); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(tree(t, filepath.Join(one, "var")), tree(t, filepath.Join(state, "var"))); d != "" {
		t.Errorf("first image (-image +state):\n%s", d)
	}

	// The system writes; another image comes with more.
	for p, text := range map[string]string{"lib/dpkg/status": "changed", "log/x": "lines"} {
		if err := os.WriteFile(filepath.Join(state, "var", p), []byte(text), 0o640); err != nil {
			t.Fatal(err)
		}
	}
	two := t.TempDir()
	makeVar(t, two, map[string]string{"lib/dpkg/status": "v2", "lib/new/z": "z", "log/x/y": "a folder where the state has a file"})
	if err := seedVar(two, state, "r2"); err != nil {
		t.Fatal(err)
	}
	for p, want := range map[string]string{"lib/dpkg/status": "changed", "lib/new/z": "z", "log/x": "lines"} {
		if b, err := os.ReadFile(filepath.Join(state, "var", p)); err != nil || string(b) != want {
			t.Errorf("/var/%s = %q, %v; want %q", p, b, err, want)
		}
	}

	// Once per image: what the system removed does not come back by itself.
	if err := os.Remove(filepath.Join(state, "var", "lib/new/z")); err != nil {
		t.Fatal(err)
	}
	if err := seedVar(two, state, "r2"); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(state, "var", "lib/new/z")); !os.IsNotExist(err) {
		t.Errorf("the removed file is back: %v", err)
	}
}

func TestModuleName(t *testing.T) {
	for path, want := range map[string]string{
		"/usr/lib/modules/6.1/kernel/fs/nls/nls_iso8859-1.ko": "nls_iso8859_1",
		"/x/softdog.ko.xz": "softdog",
	} {
		if got := moduleName(path); got != want {
			t.Errorf("moduleName(%q) = %q, want %q", path, got, want)
		}
	}
}

func TestReadModules(t *testing.T) {
	p := filepath.Join(t.TempDir(), "modules.list")
	if got, err := readModules(p); got != nil || err != nil {
		t.Errorf("readModules of no file = %v, %v; want none", got, err)
	}
	if err := os.WriteFile(p, []byte("# order matters\n/usr/a.ko\n\n  usr/b.ko\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	got, err := readModules(p)
	if d := cmp.Diff([]string{"/usr/a.ko", "/usr/b.ko"}, got); err != nil || d != "" {
		t.Errorf("readModules: %v (-want +got):\n%s", err, d)
	}
}
