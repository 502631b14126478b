package kmod

import (
	"bytes"
	"debug/elf"
	"encoding/binary"
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/deb"
	"github.com/turnout-project/turnout/internal/lock"
)

// module returns a relocatable ELF file with a section .modinfo, which is all
// of a kernel module that anything here looks at.
func module(t *testing.T, fields ...string) []byte {
	t.Helper()
	info := []byte(strings.Join(fields, "\x00") + "\x00")
	names := "\x00.modinfo\x00.shstrtab\x00"
	const head = 64
	var b bytes.Buffer
	put := func(v any) {
		if err := binary.Write(&b, binary.LittleEndian, v); err != nil {
			t.Fatal(err)
		}
	}
	namesAt := head + len(info)
	sectionsAt := namesAt + len(names)
	put(elf.Header64{
		Ident: [16]byte{0x7f, 'E', 'L', 'F', byte(elf.ELFCLASS64), byte(elf.ELFDATA2LSB), byte(elf.EV_CURRENT)},
		Type:  uint16(elf.ET_REL), Machine: uint16(elf.EM_X86_64), Version: 1, Shoff: uint64(sectionsAt),
		Ehsize: head, Shentsize: 64, Shnum: 3, Shstrndx: 2,
	})
	b.Write(info)
	b.WriteString(names)
	put(elf.Section64{})
	put(elf.Section64{Name: 1, Type: uint32(elf.SHT_PROGBITS), Off: head, Size: uint64(len(info))})
	put(elf.Section64{Name: 10, Type: uint32(elf.SHT_STRTAB), Off: uint64(namesAt), Size: uint64(len(names))})
	return b.Bytes()
}

const release = "6.1.0-50-amd64"

func vermagic(release string) string {
	return "vermagic=" + release + " SMP preempt mod_unload modversions "
}

func TestRead(t *testing.T) {
	good := module(t, "version=535.261.03", "depends=nvidia,ib_core", "name=nvidia_peermem", vermagic(release))
	m, err := Read("nvidia-current-open-peermem.ko", good)
	if err != nil {
		t.Fatal(err)
	}
	m.data = nil
	want := Module{File: "nvidia-current-open-peermem.ko", Name: "nvidia-peermem", Version: "535.261.03", Kernel: release, Depends: []string{"nvidia", "ib_core"}}
	if d := cmp.Diff(want, m, cmp.AllowUnexported(Module{})); d != "" {
		t.Errorf("Read (-want +got):\n%s", d)
	}
	for name, data := range map[string][]byte{
		"empty": nil, "text": []byte("not a module"), "cut off": good[:70], "signed": append(bytes.Clone(good), signature...),
		"no modinfo": bytes.Replace(bytes.Clone(good), []byte(".modinfo"), []byte(".nodinfo"), 1),
	} {
		if m, err := Read("x.ko", data); err == nil || !strings.Contains(err.Error(), "x.ko") {
			t.Errorf("%s: Read = %+v, %v; want an error that names the file", name, m, err)
		}
	}
}

func TestSign(t *testing.T) {
	good := func() []Module { return []Module{{File: "n.ko", data: []byte("module")}} }
	ms := good()
	s := Spec{Sign: func(b []byte) ([]byte, error) { return append(append(bytes.Clone(b), "sig"...), signature...), nil }}
	if err := s.sign(ms); err != nil || string(ms[0].data) != "modulesig"+signature {
		t.Errorf("sign = %v, %q", err, ms[0].data)
	}
	for name, f := range map[string]func([]byte) ([]byte, error){
		"a key that fails":      func([]byte) ([]byte, error) { return nil, errors.New("no token") },
		"nothing signed":        func(b []byte) ([]byte, error) { return b, nil },
		"another module signed": func([]byte) ([]byte, error) { return []byte("other" + signature), nil },
	} {
		s.Sign = f
		if err := s.sign(good()); err == nil || !strings.Contains(err.Error(), "n.ko") {
			t.Errorf("%s: sign = %v, want an error that names the module", name, err)
		}
	}
}

func FuzzRead(f *testing.F) {
	f.Add([]byte("\x7fELF"))
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, name := range []string{"x.ko", "x.ko.xz"} {
			_, _ = Read(name, b) // must not panic
		}
	})
}

// write puts modules into a folder and returns their paths.
func write(t *testing.T, modules map[string][]byte) []string {
	t.Helper()
	dir := t.TempDir()
	var paths []string
	for name, data := range modules {
		p := filepath.Join(dir, name)
		if err := os.WriteFile(p, data, 0o644); err != nil {
			t.Fatal(err)
		}
		paths = append(paths, p)
	}
	return paths
}

func TestVerify(t *testing.T) {
	good := module(t, "version=535.261.03", "name=nvidia", vermagic(release))
	uvm := module(t, "version=535.261.03", "name=nvidia_uvm", vermagic(release))
	spec := Spec{Kernel: release, Driver: "535.261.03"}
	for _, tt := range []struct {
		name    string
		modules map[string][]byte
		wanted  []string
		want    []string // files that are packed
		err     string
	}{
		{"all", map[string][]byte{"nvidia-current-open.ko": good}, nil, []string{"nvidia-current-open.ko"}, ""},
		{"the wanted one", map[string][]byte{"nvidia-current-open.ko": good, "nvidia-current-open-uvm.ko": uvm}, []string{"nvidia-uvm"}, []string{"nvidia-current-open-uvm.ko"}, ""},
		{"wanted by the kernel's name", map[string][]byte{"nvidia-current-open-uvm.ko": uvm}, []string{"nvidia_uvm"}, []string{"nvidia-current-open-uvm.ko"}, ""},
		{"one is missing", map[string][]byte{"nvidia-current-open.ko": good}, []string{"nvidia", "nvidia-uvm"}, nil, "module nvidia-uvm was not built; driver 535.261.03 for kernel 6.1.0-50-amd64 has nvidia"},
		{"another kernel", map[string][]byte{"n.ko": module(t, "version=535.261.03", "name=nvidia", vermagic("6.1.0-57-amd64"))}, nil, nil, `was compiled for kernel "6.1.0-57-amd64", the image has 6.1.0-50-amd64`},
		{"a kernel whose name begins alike", map[string][]byte{"n.ko": module(t, "version=535.261.03", "name=nvidia", vermagic(release+"-rt"))}, nil, nil, "was compiled for kernel"},
		{"another version in the last field", map[string][]byte{"n.ko": module(t, "version=535.261.04", "name=nvidia", vermagic(release))}, nil, nil, `is of version "535.261.04", the recipe pins driver 535.261.03`},
		{"no version", map[string][]byte{"n.ko": module(t, "name=nvidia", vermagic(release))}, nil, nil, `is of version ""`},
	} {
		s := spec
		s.Modules = tt.wanted
		got, err := s.verify(write(t, tt.modules))
		if err == nil {
			got, err = s.choose(got)
		}
		if (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: verify = %v; want %q", tt.name, err, tt.err)
			continue
		}
		var files []string
		for _, m := range got {
			files = append(files, m.File)
		}
		if d := cmp.Diff(tt.want, files); d != "" {
			t.Errorf("%s: packed files (-want +got):\n%s", tt.name, d)
		}
	}
}

// What is packed is what is asked for, from a folder of everything.
func TestPackChooses(t *testing.T) {
	dir := t.TempDir()
	for name, data := range map[string][]byte{
		"nvidia-current.ko": module(t, "version=1.0", "name=nvidia", vermagic(release)), "nvidia-current-drm.ko": module(t, "version=1.0", "name=nvidia_drm", vermagic(release)),
	} {
		if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	s := Spec{Kernel: release, Architecture: "amd64", Driver: "1.0", Sources: []string{"a"}, Packages: []lock.Package{{Name: "a", Version: "1.0-1"}}, Modules: []string{"nvidia"}}
	out := filepath.Join(t.TempDir(), "x.deb")
	if err := Pack(s, dir, out); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	if err != nil || !bytes.Contains(b, []byte("dkms/nvidia-current.ko")) || bytes.Contains(b, []byte("nvidia-current-drm.ko")) {
		t.Errorf("the package holds other modules than nvidia (%v)", err)
	}
	for name, change := range map[string]func(*Spec){
		"a module that is not there": func(s *Spec) { s.Modules = []string{"nvidia-uvm"} }, "another driver": func(s *Spec) { s.Driver = "1.1" },
		"a key that fails": func(s *Spec) { s.Sign = func([]byte) ([]byte, error) { return nil, errors.New("no token") } },
	} {
		s, out := s, filepath.Join(t.TempDir(), "x.deb")
		change(&s)
		if err := Pack(s, dir, out); err == nil {
			t.Errorf("%s: Pack succeeded", name)
		}
		if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: something was written: %v", name, err)
		}
	}
}

func TestFirstError(t *testing.T) {
	// What the open driver 535.261.03 says with kernel 6.1.0-57-amd64.
	const resize = `  cc -Wp,-MMD,/var/lib/dkms/nvidia-current-open/535.261.03/build/nvidia/.nv-pci.o.d -c -o x.o
/var/lib/dkms/nvidia-current-open/535.261.03/build/nvidia/nv-pci.c: In function 'nv_resize_pcie_bars':
/var/lib/dkms/nvidia-current-open/535.261.03/build/nvidia/nv-pci.c:238:9: error: too few arguments to function 'pci_resize_resource'
  238 |     r = pci_resize_resource(pci_dev, NV_GPU_BAR1, requested_size);
make[3]: *** [/usr/src/linux-headers-6.1.0-57-common/scripts/Makefile.build:250: /var/lib/dkms/x.o] Error 1
`
	for _, tt := range []struct{ name, log, want string }{
		{"compiler", resize, "nvidia/nv-pci.c:238:9: error: too few arguments to function 'pci_resize_resource'"},
		{"header", "/var/lib/dkms/a/1/build/x.c:3:10: fatal error: linux/of_gpio.h: No such file or directory\n", "x.c:3:10: fatal error: linux/of_gpio.h: No such file or directory"},
		{"modpost", "  MODPOST Module.symvers\nERROR: modpost: GPL-incompatible module nvidia.ko uses GPL-only symbol 'rcu_read_unlock'\n", "ERROR: modpost: GPL-incompatible module nvidia.ko uses GPL-only symbol 'rcu_read_unlock'"},
		{"make", "make: *** No rule to make target 'modules'.  Stop.\n", "make: *** No rule to make target 'modules'.  Stop."},
		{"warnings only", "x.c:1:1: warning: unused\n-Werror=strict-prototypes error=x\n", ""},
	} {
		if got := firstError([]byte(tt.log)); got != tt.want {
			t.Errorf("%s: firstError = %q, want %q", tt.name, got, tt.want)
		}
	}
}

func TestFailed(t *testing.T) {
	root := t.TempDir()
	dir := filepath.Join(root, "var/lib/dkms/n/1/build")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "make.log"), []byte("x.c:1:2: error: no\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	s := Spec{Kernel: release, LogPath: filepath.Join(t.TempDir(), "kept.log")}
	err := s.failed(root, source{"n", "1"}, []byte("Building module:\nBad return status\n"), errors.New("exit status 10"))
	var ce *CompileError
	if !errors.As(err, &ce) || ce.First != "x.c:1:2: error: no" || ce.Kernel != release || ce.Driver != "n 1" {
		t.Fatalf("failed = %v", err)
	}
	for _, want := range []string{"n 1", release, "x.c:1:2: error: no", s.LogPath} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error lacks %q: %v", want, err)
		}
	}
	if b, err := os.ReadFile(s.LogPath); err != nil || !strings.Contains(string(b), "Bad return status") || !strings.Contains(string(b), "x.c:1:2") {
		t.Errorf("the kept log is %q, %v", b, err)
	}
	// dkms itself refused: its last line is all there is.
	err = s.failed(t.TempDir(), source{"n", "1"}, []byte("Error! Your kernel headers cannot be found\n"), errors.New("exit status 21"))
	if !strings.Contains(err.Error(), "exit status 21: Error! Your kernel headers cannot be found") {
		t.Errorf("failed without a log = %v", err)
	}
}

func TestSources(t *testing.T) {
	for name, tt := range map[string]struct {
		conf string
		ok   bool
	}{
		"quoted":            {"PACKAGE_NAME=\"nv\"\nPACKAGE_VERSION=\"1.2\"\n", true},
		"bare":              {"PACKAGE_NAME=nv\nPACKAGE_VERSION=1.2\n", true},
		"of another folder": {"PACKAGE_NAME=nv\nPACKAGE_VERSION=1.3\n", false},
		"a command":         {"PACKAGE_NAME=\"$(id)\"\nPACKAGE_VERSION=1.2\n", false},
	} {
		root := t.TempDir()
		dir := filepath.Join(root, "usr/src/nv-1.2")
		if err := os.MkdirAll(dir, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, "dkms.conf"), []byte(tt.conf), 0o644); err != nil {
			t.Fatal(err)
		}
		got, err := sources(root)
		if tt.ok != (err == nil) || tt.ok && (len(got) != 1 || got[0] != source{"nv", "1.2"}) {
			t.Errorf("%s: sources = %v, %v", name, got, err)
		}
	}
	if _, err := sources(t.TempDir()); !errors.Is(err, ErrSpec) {
		t.Errorf("sources of nothing = %v, want %v", err, ErrSpec)
	}
}

// The package must be one that dpkg and our own reader take, and the same
// bytes each time.
func TestPack(t *testing.T) {
	s := Spec{Kernel: release, Architecture: "amd64", Driver: "535.261.03", SourceDateEpoch: 1_700_000_000, Sources: []string{"nvidia-open-kernel-dkms"},
		Packages: []lock.Package{{Name: "nvidia-open-kernel-dkms", Version: "535.261.03-1"}}}
	modules := []Module{{File: "nvidia-current-open.ko", data: []byte("odd")}, {File: "nvidia-current-open-uvm.ko", data: []byte("even")}}
	dir := t.TempDir()
	var all [][]byte
	for _, name := range []string{"a.deb", "b.deb"} {
		path := filepath.Join(dir, name)
		if err := s.pack(path, "535.261.03-1", modules); err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b)
	}
	if !bytes.Equal(all[0], all[1]) {
		t.Error("packed twice, the bytes differ")
	}
	path := filepath.Join(dir, "a.deb")
	p, err := deb.Open(path, deb.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	got := map[string]string{}
	if err := p.Walk(t.Context(), func(e deb.Entry, r io.Reader) error {
		if e.Type == deb.File {
			b, err := io.ReadAll(r)
			got[e.Name] = string(b)
			return err
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{
		"usr/lib/modules/6.1.0-50-amd64/updates/dkms/nvidia-current-open.ko":     "odd",
		"usr/lib/modules/6.1.0-50-amd64/updates/dkms/nvidia-current-open-uvm.ko": "even",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("files (-want +got):\n%s", d)
	}
	d, err := s.Describe(path)
	if err != nil || d.Name != "turnout-modules-"+release || d.Version != "535.261.03-1" || d.SizeBytes != int64(len(all[0])) {
		t.Errorf("Describe = %+v, %v", d, err)
	}
	if out, err := exec.Command("dpkg-deb", "--info", path).CombinedOutput(); err != nil || !strings.Contains(string(out), "Package: turnout-modules-"+release) {
		t.Errorf("dpkg-deb: %v\n%s", err, out)
	}
}

// The key must move with everything that the modules are made from.
func TestKey(t *testing.T) {
	base := func() Spec {
		return Spec{Kernel: release, Architecture: "amd64", Driver: "1", Sources: []string{"a"}, Packages: []lock.Package{{Name: "a", Version: "1", SHA256: "x"}}}
	}
	s := base()
	key := s.Key()
	for name, change := range map[string]func(*Spec){
		"kernel": func(s *Spec) { s.Kernel = "6" }, "driver": func(s *Spec) { s.Driver = "2" }, "compiler": func(s *Spec) { s.Packages[0].SHA256 = "y" }, "date": func(s *Spec) { s.SourceDateEpoch = 1 }, "architecture": func(s *Spec) { s.Architecture = "arm64" },
	} {
		s := base()
		change(&s)
		if s.Key() == key {
			t.Errorf("another %s gives the same key", name)
		}
	}
	s = base()
	s.WorkDir, s.LogPath, s.Modules = "elsewhere", "log", []string{"nvidia"}
	if s.Key() != key {
		t.Error("another folder or choice of modules gives another key")
	}
}

// A driver whose image lacks a module of the kernel would be found on the
// node only.
func TestCheckDepends(t *testing.T) {
	nvidia := module(t, "name=nvidia", "depends=drm", vermagic(release))
	uvm := module(t, "name=nvidia_uvm", "depends=nvidia", vermagic(release))
	drm := module(t, "name=drm", "depends=i2c-core,quirks", vermagic(release))
	quirks := module(t, "name=quirks", "depends=", vermagic(release))
	signed := append(bytes.Clone(nvidia), signature...)
	const updates = "updates/dkms/nvidia-current-open"
	for _, tt := range []struct {
		name  string
		files map[string][]byte
		want  string
	}{
		{"whole", map[string][]byte{updates + ".ko": signed, updates + "-uvm.ko": uvm, "kernel/drm.ko": drm, "kernel/quirks.ko": quirks}, ""},
		{"without drm", map[string][]byte{updates + ".ko": nvidia}, "kernel module nvidia_current_open cannot be loaded: the image has no module drm"},
		{"the module's own dependency is without", map[string][]byte{updates + "-uvm.ko": uvm, updates + ".ko": nvidia, "kernel/drm.ko": drm}, "the image has no module quirks, which drm depends on"},
		{"without its sibling", map[string][]byte{updates + "-uvm.ko": uvm}, "the image has no module nvidia"},
		{"no driver", map[string][]byte{"kernel/drm.ko": drm}, ""},
	} {
		dir := t.TempDir()
		dep := ""
		for name, data := range tt.files {
			if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(filepath.Join(dir, name), data, 0o644); err != nil {
				t.Fatal(err)
			}
			dep += name + ":\n"
		}
		for name, text := range map[string]string{"modules.dep": dep, "modules.builtin": "kernel/drivers/i2c/i2c-core.ko\n"} {
			if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		err := CheckDepends(dir)
		var missing *MissingError
		if (err == nil) != (tt.want == "") || err != nil && (!errors.As(err, &missing) || !strings.Contains(err.Error(), tt.want)) {
			t.Errorf("%s: CheckDepends = %v, want %q", tt.name, err, tt.want)
		}
	}
}

func TestCompileRefuses(t *testing.T) {
	for name, s := range map[string]Spec{
		"nothing":      {},
		"no sources":   {Kernel: release, Driver: "1", Architecture: "amd64", WorkDir: t.TempDir(), Sources: []string{"a"}},
		"architecture": {Kernel: release, Driver: "1", Architecture: "sparc", WorkDir: t.TempDir()},
	} {
		out := filepath.Join(t.TempDir(), "modules")
		if err := Compile(t.Context(), s, out); !errors.Is(err, ErrSpec) {
			t.Errorf("%s: Compile = %v, want %v", name, err, ErrSpec)
		}
		if _, err := os.Stat(out); !errors.Is(err, os.ErrNotExist) {
			t.Errorf("%s: something was written: %v", name, err)
		}
	}
}
