package rootfs

import (
	"archive/tar"
	"bytes"
	"encoding/binary"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/fstest"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/deb/debtest"
	"github.com/turnout-project/turnout/internal/recipe"
)

// system is a package with the files that applying a recipe works on.
func system(files map[string]string, more ...tar.Header) debtest.Package {
	p := debtest.Package{Name: "system", Contents: map[string]string{
		"./etc/passwd":  "root:x:0:0:root:/root:/bin/bash\ndaemon:x:1:1::/:/usr/sbin/nologin\n",
		"./etc/shadow":  "root:*:20000:0:99999:7:::\ndaemon:!:20000:0:99999:7:::\n",
		"./etc/group":   "root:x:0:\ndaemon:x:1:\nvideo:x:44:\ndisk:x:6:root\n",
		"./etc/gshadow": "root:*::\nvideo:*::\ndisk:*::root\n",
	}}
	for name, text := range files {
		p.Contents["."+name] = text
	}
	for name := range p.Contents {
		p.Data = append(p.Data, debtest.File(name, 0o644))
	}
	slices.SortFunc(p.Data, func(x, y tar.Header) int { return strings.Compare(x.Name, y.Name) })
	p.Data = append(p.Data, more...)
	return p
}

func unpackedBuild(t *testing.T, r *recipe.Recipe, p ...debtest.Package) *build {
	t.Helper()
	b := newBuild(t, r, p...)
	if err := b.unpack(t.Context()); err != nil {
		t.Fatal(err)
	}
	return b
}

func (b *build) text(t *testing.T, name string) string {
	t.Helper()
	text, err := b.tree.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func TestApply(t *testing.T) {
	source := filepath.Join(t.TempDir(), "source")
	if err := os.WriteFile(source, []byte("from a file"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := &recipe.Recipe{
		Files: []recipe.File{
			{Path: "/etc/x/y.conf", Content: "y\n"},
			{Path: "/lib/z", Source: source, Mode: "4755", Owner: "daemon:video"},
			{Path: "/etc/link", Link: "/somewhere"},
			{Path: "/srv/data/", Mode: "1770", Owner: "workload:disk"},
		},
		Users:    []recipe.User{{Name: "workload", UID: 900, Groups: []string{"video", "disk"}, Shell: "/bin/sh", Home: "/var/lib/workload"}},
		Sysctl:   map[string]string{"kernel.panic": "10", "a.b": "c"},
		Modprobe: []string{"blacklist nouveau", "options x y=1"},
	}
	b := unpackedBuild(t, r, system(nil))
	b.ExtraFiles = []File{{Path: "/etc/x/y.conf", Content: []byte("replaced\n"), Mode: 0o600}, {Path: "/empty", Dir: true}}
	if err := b.apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		"etc/x/y.conf":                   "replaced\n",
		"usr/lib/z":                      "from a file",
		"etc/sysctl.d/50-turnout.conf":   "# Written by imgbuild from the recipe.\na.b = c\nkernel.panic = 10\n",
		"etc/modprobe.d/50-turnout.conf": "# Written by imgbuild from the recipe.\nblacklist nouveau\noptions x y=1\n",
		"etc/group":                      "root:x:0:\ndaemon:x:1:\nvideo:x:44:workload\ndisk:x:6:root,workload\nworkload:x:900:\n",
		"etc/gshadow":                    "root:*::\nvideo:*::workload\ndisk:*::root,workload\nworkload:!::\n",
	} {
		if got := b.text(t, name); got != want {
			t.Errorf("%s = %q; want %q", name, got, want)
		}
	}
	if got, want := b.text(t, "etc/passwd"), "workload:x:900:900::/var/lib/workload:/bin/sh\n"; !strings.HasSuffix(got, want) {
		t.Errorf("passwd = %q; want %q at its end", got, want)
	}
	if got, want := b.text(t, "etc/shadow"), "workload:!:19675:0:99999:7:::\n"; !strings.HasSuffix(got, want) {
		t.Errorf("shadow = %q; want %q at its end", got, want)
	}
	for name, want := range map[string]struct {
		mode     uint32
		uid, gid uint32
	}{
		"etc/x/y.conf":     {unix.S_IFREG | 0o600, 0, 0},
		"usr/lib/z":        {unix.S_IFREG | 0o4755, 1, 44},
		"srv/data":         {unix.S_IFDIR | 0o1770, 900, 6},
		"empty":            {unix.S_IFDIR | 0o755, 0, 0},
		"var/lib/workload": {unix.S_IFDIR | 0o700, 900, 900},
	} {
		var st unix.Stat_t
		if err := unix.Lstat(filepath.Join(b.dir, name), &st); err != nil {
			t.Fatal(err)
		}
		if st.Mode != want.mode || st.Uid != want.uid || st.Gid != want.gid {
			t.Errorf("%s: mode %o, owner %d:%d; want %+v", name, st.Mode, st.Uid, st.Gid, want)
		}
	}
	if target, err := b.tree.Readlink("etc/link"); err != nil || target != "/somewhere" {
		t.Errorf("etc/link -> %q, %v", target, err)
	}
}

func TestApplyErrors(t *testing.T) {
	tests := map[string]*recipe.Recipe{
		"unknown owner":      {Files: []recipe.File{{Path: "/x", Owner: "nobody-here"}}},
		"relative path":      {Files: []recipe.File{{Path: "x"}}},
		"the root":           {Files: []recipe.File{{Path: "/"}}},
		"mode":               {Files: []recipe.File{{Path: "/x", Mode: "rw"}}},
		"user of a package":  {Users: []recipe.User{{Name: "daemon", UID: 900}}},
		"unknown group":      {Users: []recipe.User{{Name: "u", UID: 900, Groups: []string{"none"}}}},
		"line break in user": {Users: []recipe.User{{Name: "u", UID: 900, Home: "/x\nroot2::0:0"}}},
		"unit of no package": {Services: recipe.Services{Enable: []string{"none.service"}}},
		"no unit":            {Services: recipe.Services{Enable: []string{"../x.service"}}},
		"mask no unit":       {Services: recipe.Services{Mask: []string{"a/b"}}},
		"no [Install]":       {Services: recipe.Services{Enable: []string{"static.service"}}},
		"bare template":      {Services: recipe.Services{Enable: []string{"t@.service"}}},
		"masked and enabled": {Services: recipe.Services{Enable: []string{"a.service"}, Mask: []string{"a.service"}}},
		"an updater":         {Services: recipe.Services{Enable: []string{"apt-daily.timer"}}},
	}
	for name, r := range tests {
		t.Run(name, func(t *testing.T) {
			b := unpackedBuild(t, r, system(map[string]string{
				"/lib/systemd/system/static.service":  "[Service]\nExecStart=/bin/true\n",
				"/lib/systemd/system/t@.service":      "[Install]\nWantedBy=multi-user.target\n",
				"/lib/systemd/system/a.service":       "[Install]\nWantedBy=multi-user.target\n",
				"/lib/systemd/system/apt-daily.timer": "[Install]\nWantedBy=timers.target\n",
			}))
			if err := b.apply(t.Context()); !errors.Is(err, ErrSpec) {
				t.Errorf("apply = %v; want ErrSpec", err)
			}
		})
	}
}

func TestUnits(t *testing.T) {
	r := &recipe.Recipe{Services: recipe.Services{
		Enable: []string{"a.service", "t@one.service", "d@.service"},
		Mask:   []string{"old.service"},
	}}
	b := unpackedBuild(t, r, system(map[string]string{
		"/lib/systemd/system/a.service": "[Unit]\nWantedBy=not-this.target\n[Install]\n# WantedBy=nor-this.target\nWantedBy=multi-user.target \\\n  other.target\n" +
			"RequiredBy=need.target\nAlias=alias.service\nAlso=b.socket missing.socket old.service\n",
		"/lib/systemd/system/b.socket":    "[Install]\nWantedBy=gone.target\nWantedBy=\nWantedBy=sockets.target\n",
		"/lib/systemd/system/t@.service":  "[Install]\nWantedBy=multi-user.target\n",
		"/lib/systemd/system/d@.service":  "[Install]\nWantedBy=multi-user.target\nDefaultInstance=two\n",
		"/lib/systemd/system/old.service": "[Install]\nWantedBy=multi-user.target\n",
	}, debtest.Link("./etc/systemd/system/multi-user.target.wants/old.service", "/lib/systemd/system/old.service")))
	b.EnableUnits = []string{"b.socket"}
	if err := b.apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, line := range describe(t, filepath.Join(b.dir, systemUnits)) {
		if mode, link, ok := strings.Cut(line, " "); ok && mode[0] == 'L' && !slices.ContainsFunc(updaters, func(u string) bool { return strings.HasPrefix(link, u+" ") }) {
			got = append(got, link)
		}
	}
	want := []string{
		"alias.service -> /usr/lib/systemd/system/a.service",
		"multi-user.target.wants/a.service -> /usr/lib/systemd/system/a.service",
		"multi-user.target.wants/d@two.service -> /usr/lib/systemd/system/d@.service",
		"multi-user.target.wants/t@one.service -> /usr/lib/systemd/system/t@.service",
		"need.target.requires/a.service -> /usr/lib/systemd/system/a.service",
		"old.service -> /dev/null",
		"other.target.wants/a.service -> /usr/lib/systemd/system/a.service",
		"sockets.target.wants/b.socket -> /usr/lib/systemd/system/b.socket",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("links (-want +got):\n%s", diff)
	}
	for _, u := range updaters {
		if target, err := b.tree.Readlink(systemUnits + "/" + u); err != nil || target != "/dev/null" {
			t.Errorf("%s -> %q, %v; want it masked", u, target, err)
		}
	}
}

func TestClean(t *testing.T) {
	const release = "6.1.0-50-amd64"
	b := unpackedBuild(t, nil, system(map[string]string{
		"/boot/vmlinuz-" + release:                 "kernel",
		"/boot/config-" + release:                  "config",
		"/lib/modules/" + release + "/modules.dep": "",
		"/etc/machine-id":                          "0123\n",
		"/etc/ssh/ssh_host_rsa_key":                "secret",
		"/etc/ssh/ssh_config":                      "stays",
		"/etc/passwd-":                             "old",
		"/etc/hostname":                            "builder\n",
		"/etc/kernel/postinst.d/initramfs-tools":   "#!/bin/sh",
		"/etc/nvme/hostid":                         "uuid",
		"/var/log/apt/history.log":                 "dates",
		"/var/lib/dpkg/status":                     "stays",
		"/var/lib/dpkg/status-old":                 "old",
		"/var/lib/systemd/random-seed":             "random",
		"/usr/lib/python3/__pycache__/x.pyc":       "times",
		"/usr/lib/python3/x.py":                    "stays",
		"/tmp/left":                                "",
	}, debtest.Link("./vmlinuz", "boot/vmlinuz-"+release)))
	if err := b.clean(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"boot/vmlinuz-" + release, "boot/config-" + release, "vmlinuz", "etc/ssh/ssh_host_rsa_key", "etc/passwd-", "etc/hostname",
		"etc/kernel/postinst.d/initramfs-tools", "etc/nvme/hostid", "var/log/apt/history.log", "var/lib/dpkg/status-old", "var/lib/systemd/random-seed",
		"usr/lib/python3/__pycache__", "tmp/left"} {
		if _, err := b.tree.Lstat(name); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("%s is still there (%v)", name, err)
		}
	}
	for _, name := range []string{"etc/ssh/ssh_config", "var/log/apt", "var/lib/dpkg/status", "usr/lib/python3/x.py", "boot", "tmp"} {
		if _, err := b.tree.Lstat(name); err != nil {
			t.Errorf("%s is gone: %v", name, err)
		}
	}
	if got := b.text(t, "etc/machine-id"); got != "" {
		t.Errorf("machine-id = %q; want it empty", got)
	}
	if got, want := b.text(t, "etc/shadow"), "root:*:19675:0:99999:7:::\ndaemon:!:19675:0:99999:7:::\n"; got != want {
		t.Errorf("shadow = %q; want %q", got, want)
	}
	if b.result.KernelRelease != release || b.result.ModulesDir != filepath.Join(b.dir, "usr/lib/modules", release) {
		t.Errorf("result = %+v", b.result)
	}
	if text, err := os.ReadFile(b.result.KernelImage); err != nil || string(text) != "kernel" {
		t.Errorf("kernel image %q = %q, %v", b.result.KernelImage, text, err)
	}
	if vs := Policy(os.DirFS(b.dir)); len(vs) != 0 {
		t.Errorf("Policy after clean = %v", vs)
	}
}

func TestTwoKernels(t *testing.T) {
	b := unpackedBuild(t, nil, system(map[string]string{"/boot/vmlinuz-1": "", "/boot/vmlinuz-2": ""}))
	if err := b.clean(t.Context()); !errors.Is(err, ErrSpec) {
		t.Errorf("clean with two kernels = %v; want %v", err, ErrSpec)
	}
	b = unpackedBuild(t, nil, system(map[string]string{"/boot/vmlinuz-1": ""}))
	if err := b.clean(t.Context()); err == nil || !strings.Contains(err.Error(), "modules.dep") {
		t.Errorf("clean of a kernel without modules.dep = %v", err)
	}
}

// module is an ELF file with a section .modinfo, as far as ours are read.
func module(firmware ...string) string {
	info := "license=GPL\x00"
	for _, f := range firmware {
		info += "firmware=" + f + "\x00"
	}
	names := "\x00.modinfo\x00.shstrtab\x00"
	var b bytes.Buffer
	le := binary.LittleEndian
	head := make([]byte, 64)
	copy(head, "\x7fELF\x02\x01\x01")
	le.PutUint16(head[16:], 1)    // relocatable
	le.PutUint16(head[18:], 0x3e) // x86-64
	le.PutUint32(head[20:], 1)
	le.PutUint64(head[40:], uint64(64+len(info)+len(names))) // section headers
	le.PutUint16(head[52:], 64)
	le.PutUint16(head[58:], 64) // size of one
	le.PutUint16(head[60:], 3)
	le.PutUint16(head[62:], 2) // names
	b.Write(head)
	b.WriteString(info + names)
	section := func(name, kind uint32, offset, size int) {
		s := make([]byte, 64)
		le.PutUint32(s, name)
		le.PutUint32(s[4:], kind)
		le.PutUint64(s[24:], uint64(offset))
		le.PutUint64(s[32:], uint64(size))
		b.Write(s)
	}
	section(0, 0, 0, 0)
	section(1, 1, 64, len(info))
	section(10, 3, 64+len(info), len(names))
	return b.String()
}

func TestExcludeModules(t *testing.T) {
	const k = "/lib/modules/6.1.0/kernel/"
	r := &recipe.Recipe{Kernel: recipe.Kernel{ExcludeModules: []string{"drivers/gpu/", "sound/"}}}
	b := unpackedBuild(t, r, system(map[string]string{
		k + "drivers/gpu/drm/gpu.ko":        module("gpu/a.bin", "gpu/many/*.bin", "shared.bin", "missing.bin", "[bad"),
		k + "sound/s.ko":                    module(),
		k + "drivers/net/n.ko":              module("net.bin", "shared.bin"),
		"/lib/firmware/gpu/a.bin":           "",
		"/lib/firmware/gpu/a.bin.sig":       "",
		"/lib/firmware/gpu/many/one.bin":    "",
		"/lib/firmware/gpu/many/two.bin.xz": "",
		"/lib/firmware/net.bin":             "",
		"/lib/firmware/shared.bin":          "",
		"/lib/firmware/nobody.bin":          "",
	}))
	if err := b.pruneFirmware(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := b.apply(t.Context()); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]bool{
		"usr" + k + "drivers/gpu/drm/gpu.ko": false, "usr" + k + "sound/s.ko": false, "usr" + k + "drivers/net/n.ko": true,
		"usr/lib/firmware/gpu/a.bin": false, "usr/lib/firmware/gpu/a.bin.sig": true, "usr/lib/firmware/gpu/many/one.bin": false,
		"usr/lib/firmware/gpu/many/two.bin.xz": false, "usr/lib/firmware/net.bin": true, "usr/lib/firmware/shared.bin": true, "usr/lib/firmware/nobody.bin": true,
	} {
		if got := b.tree.Exists(name); got != want {
			t.Errorf("%s is there: %v; want %v", name, got, want)
		}
	}
	broken := newBuild(t, r, system(map[string]string{k + "sound/s.ko": "this is no module"}))
	if err := broken.unpack(t.Context()); err == nil {
		t.Error("a module that is no ELF file was passed over in silence")
	}
}

func TestPolicy(t *testing.T) {
	clean := func() fstest.MapFS {
		return fstest.MapFS{
			"etc/machine-id":                         {Mode: 0o444},
			"etc/shadow":                             {Data: []byte("root:*:1::::::\nu:!:1::::::\nv:!$y$x:1::::::\n")},
			"etc/passwd":                             {Data: []byte("root:x:0:0::/root:/bin/sh\n")},
			"usr/bin/su":                             {Mode: 0o755 | fs.ModeSetuid},
			"usr/bin/make-first-existing-target":     {Mode: 0o755},
			"usr/share/doc/gcc":                      {},
			"usr/lib/systemd/system/apt-daily.timer": {},
			"etc/systemd/system/apt-daily.timer":     {Data: []byte("/dev/null"), Mode: fs.ModeSymlink},
		}
	}
	if vs := Policy(clean()); len(vs) != 0 {
		t.Errorf("Policy of a clean image = %v", vs)
	}
	tests := []struct {
		name, path string
		file       *fstest.MapFile
		want       string
	}{
		{"timer", "usr/lib/systemd/system/fwupd-refresh.timer", &fstest.MapFile{}, "updater"},
		{"timer unmasked", "etc/systemd/system/apt-daily.timer", &fstest.MapFile{Data: []byte("/lib/x"), Mode: fs.ModeSymlink}, "updater"},
		{"cron job", "etc/cron.daily/apt-compat", &fstest.MapFile{}, "updater"},
		{"gcc", "usr/bin/gcc", &fstest.MapFile{}, "compiler"},
		{"cc link", "usr/bin/cc", &fstest.MapFile{Data: []byte("/etc/alternatives/cc"), Mode: fs.ModeSymlink}, "compiler"},
		{"gcc with a target", "usr/bin/x86_64-linux-gnu-gcc-12", &fstest.MapFile{}, "compiler"},
		{"cc1", "usr/lib/gcc/x86_64-linux-gnu/12/cc1", &fstest.MapFile{}, "compiler"},
		{"make", "usr/bin/make", &fstest.MapFile{}, "compiler"},
		{"host key", "etc/ssh/ssh_host_ed25519_key", &fstest.MapFile{}, "ssh-host-key"},
		{"machine id", "etc/machine-id", &fstest.MapFile{Data: []byte("0123456789abcdef0123456789abcdef\n")}, "machine-id"},
		{"no machine id", "etc/machine-id", nil, "machine-id"},
		{"setuid", "usr/bin/python3", &fstest.MapFile{Mode: 0o755 | fs.ModeSetuid}, "setuid"},
		{"setgid", "opt/x", &fstest.MapFile{Mode: 0o755 | fs.ModeSetgid}, "setuid"},
		{"empty password", "etc/shadow", &fstest.MapFile{Data: []byte("root::1::::::\n")}, "password"},
		{"password", "etc/shadow", &fstest.MapFile{Data: []byte("root:$y$abc:1::::::\n")}, "password"},
		{"device", "dev/sda", &fstest.MapFile{Mode: fs.ModeDevice}, "device"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			fsys := clean()
			if tt.file == nil {
				delete(fsys, tt.path)
			} else {
				fsys[tt.path] = tt.file
			}
			vs := Policy(fsys)
			if len(vs) != 1 || vs[0].Rule != tt.want || !strings.Contains(vs[0].String(), tt.want) {
				t.Errorf("Policy = %v; want one of rule %q", vs, tt.want)
			}
		})
	}
}
