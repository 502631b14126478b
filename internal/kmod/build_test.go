package kmod

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/apt"
	"github.com/turnout-project/turnout/internal/cas"
	"github.com/turnout-project/turnout/internal/deb/debtest"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/recipe"
)

// real resolves and fetches the root that the recipe's driver is compiled in.
// It needs root and the package archive; in CI both must be there.
func real(t *testing.T) (*lock.File, *cas.Store) {
	t.Helper()
	skip := func(err error) {
		t.Helper()
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if os.Geteuid() != 0 {
		skip(errors.New("compiling modules needs root"))
	}
	dir := os.Getenv("TURNOUT_TEST_STORE")
	if dir == "" {
		cache, err := os.UserCacheDir()
		if err != nil {
			cache = t.TempDir()
		}
		dir = filepath.Join(cache, "turnout-test", "store")
	}
	store, err := cas.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	r, err := recipe.Load("../../recipes/nvidia-535-open.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f, err := apt.Resolve(t.Context(), r, apt.Options{CacheDir: filepath.Join(dir, "apt")})
	var gone *recipe.Error
	if errors.As(err, &gone) {
		t.Skipf("the archive no longer has what the recipe pins: %v", err)
	}
	if err != nil {
		skip(err)
	}
	var items []cas.Item
	for _, p := range f.Build {
		items = append(items, cas.Item{Name: p.Name, URI: p.URI, SHA256: p.SHA256, Size: p.SizeBytes})
	}
	if err := store.Fetch(t.Context(), items, 0, nil); err != nil {
		skip(err)
	}
	return f, store
}

// hello are DKMS sources that compile in a second.
func hello(source string) debtest.Package {
	const dir = "./usr/src/hello-1.0/"
	files := map[string]string{
		dir + "dkms.conf": `PACKAGE_NAME="hello"
PACKAGE_VERSION="1.0"
MAKE[0]="make -C ${kernel_source_dir} M=${dkms_tree}/hello/1.0/build modules"
CLEAN="true"
BUILT_MODULE_NAME[0]="hello"
DEST_MODULE_NAME[0]="hello-current"
DEST_MODULE_LOCATION[0]="/updates/dkms"
`,
		dir + "Makefile": "obj-m := hello.o\n",
		dir + "hello.c":  "#include <linux/module.h>\nMODULE_LICENSE(\"GPL\");\nMODULE_VERSION(\"1.0\");\n" + source,
	}
	p := debtest.Package{Name: "hello-dkms", Contents: files, Data: []tar.Header{debtest.Dir("./usr/"), debtest.Dir("./usr/src/"), debtest.Dir(dir)}}
	for _, name := range []string{dir + "dkms.conf", dir + "Makefile", dir + "hello.c"} {
		p.Data = append(p.Data, debtest.File(name, 0o644))
	}
	return p
}

// TestCompile compiles small sources for the pinned kernel, in the very root
// that NVIDIA's are compiled in.
func TestCompile(t *testing.T) {
	f, store := real(t)
	build := func(source string) ([]byte, error) {
		path := hello(source).Write(t)
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		sum := sha256.Sum256(raw)
		own := lock.Package{Name: "hello-dkms", Version: "1.0-1", Architecture: "all", SizeBytes: int64(len(raw)), SHA256: hex.EncodeToString(sum[:])}
		s := Spec{
			Packages: append(slices.DeleteFunc(slices.Clone(f.Build), func(p lock.Package) bool { return strings.HasSuffix(p.Name, "-dkms") }), own),
			Sources:  []string{"hello-dkms"}, Kernel: strings.TrimPrefix(f.Kernel, "linux-image-"), Architecture: f.Architecture,
			Driver: "1.0", SourceDateEpoch: f.SourceDateEpoch, WorkDir: t.TempDir(),
			DebPath: func(sum string) string {
				if sum == own.SHA256 {
					return path
				}
				return store.Path(sum)
			},
		}
		dir := filepath.Join(t.TempDir(), "modules")
		if err := Compile(t.Context(), s, dir); err != nil {
			if _, statErr := os.Stat(dir); !errors.Is(statErr, os.ErrNotExist) {
				t.Errorf("a folder is left beside the error: %v", statErr)
			}
			return nil, err
		}
		out := dir + ".deb"
		if err := Pack(s, dir, out); err != nil {
			return nil, err
		}
		return os.ReadFile(out)
	}
	const good = "static int __init start(void) { return 0; }\nmodule_init(start);\n"
	first, err := build(good)
	if err != nil {
		t.Fatal(err)
	}
	t.Setenv("TZ", "Asia/Tokyo")
	t.Setenv("KBUILD_BUILD_HOST", "other")
	second, err := build(good)
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(first, second) {
		t.Error("compiled twice, the bytes differ")
	}
	if !bytes.Contains(first, []byte("hello-current.ko")) {
		t.Error("the package has no hello-current.ko")
	}

	_, err = build("int broken(void) { return pci_resize_resource(1); }\n")
	var ce *CompileError
	if !errors.As(err, &ce) || !strings.HasPrefix(ce.First, "hello.c:4:") || ce.Kernel != strings.TrimPrefix(f.Kernel, "linux-image-") {
		t.Fatalf("Compile of broken sources = %v, want a CompileError at hello.c:4", err)
	}
	if log, err := os.ReadFile(ce.Log); err != nil || !bytes.Contains(log, []byte("pci_resize_resource")) {
		t.Errorf("the kept log is %d bytes, %v", len(log), err)
	}
}
