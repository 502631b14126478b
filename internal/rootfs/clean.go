package rootfs

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// emptied are folders whose contents no image keeps.
var emptied = []string{
	"boot", "dev", "run", "tmp", "proc", "sys", "var/tmp",
	"var/cache/ldconfig", "var/cache/man", "var/lib/initramfs-tools", "var/lib/systemd/catalog",
	"etc/kernel/postinst.d", "etc/kernel/postrm.d", "etc/kernel/preinst.d", "etc/kernel/prerm.d",
}

// pruned are folders that keep their folders, with their owners, and lose
// every file below.
var pruned = []string{"var/log", "var/cache/apt", "var/lib/apt/lists"}

// removed are patterns of files that differ from build to build, belong to
// one machine, or run updates.
var removed = []struct{ dir, pattern string }{
	{"etc", "passwd-"}, {"etc", "group-"}, {"etc", "shadow-"}, {"etc", "gshadow-"}, {"etc", "subuid-"}, {"etc", "subgid-"},
	{"etc", ".pwd.lock"}, {"etc", "mtab"}, {"etc", "hostname.dpkg-*"}, {"etc/ssh", "ssh_host_*"},
	{"etc/nvme", "hostid"}, {"etc/nvme", "hostnqn"}, {"etc/iscsi", "initiatorname.iscsi"},
	{"etc/cron.daily", "apt-compat"}, {"etc/cron.daily", "dpkg"}, {"etc/cron.daily", "man-db"}, {"etc/cron.daily", "apt"},
	{".", "vmlinuz*"}, {".", "initrd.img*"},
	{"root", ".bash_history"}, {"root", ".wget-hsts"}, {"root", ".rnd"},
	{"var/lib/dpkg", "*-old"}, {"var/lib/dpkg", "lock*"}, {"var/lib/dpkg", "available"}, {"var/lib/dpkg/triggers", "Lock"},
	{"var/lib/apt", "extended_states"}, {"var/cache/debconf", "*-old"},
	{"var/lib/systemd", "credential.secret"}, {"var/lib/systemd", "random-seed"}, {"var/lib/dbus", "machine-id"},
	{"var/lib/ucf", "*.[0-9]*"}, {"var/lib/shells.state", "*"},
}

// clean takes the kernel out and removes what must not be in an image: what
// belongs to one machine, changes from build to build, or could change the
// image later.
func (b *build) clean(context.Context) error {
	if err := b.takeKernel(); err != nil {
		return err
	}
	for _, dir := range emptied {
		if err := b.empty(dir); err != nil {
			return err
		}
	}
	for _, r := range removed {
		names, err := b.tree.Glob(r.dir, r.pattern)
		if err != nil {
			return err
		}
		for _, name := range names {
			if err := b.tree.RemoveAll(name); err != nil {
				return err
			}
		}
	}
	for _, dir := range pruned {
		if err := b.prune(dir); err != nil {
			return err
		}
	}
	if err := b.removeCaches(); err != nil {
		return err
	}
	if err := b.fixShadow(); err != nil {
		return err
	}
	return b.fixIdentity()
}

// takeKernel moves the kernel's image out of the tree. An image without a
// kernel is allowed: a container's, or a test's.
func (b *build) takeKernel() error {
	release, err := b.kernel()
	if err != nil || release == "" {
		return err
	}
	old, err := filepath.Glob(filepath.Join(b.WorkDir, "vmlinuz-*"))
	if err != nil {
		return err
	}
	for _, name := range old {
		if err := os.Remove(name); err != nil {
			return err
		}
	}
	images, err := b.tree.Glob("boot", "vmlinu*-"+release)
	if err != nil {
		return err
	}
	data, err := b.tree.ReadFile(images[0])
	if err != nil {
		return err
	}
	b.result.KernelRelease = release
	b.result.KernelImage = filepath.Join(b.WorkDir, "vmlinuz-"+release)
	if err := os.WriteFile(b.result.KernelImage, data, 0o644); err != nil {
		return err
	}
	modules := "usr/lib/modules/" + release
	if !b.tree.Exists(modules + "/modules.dep") {
		return fmt.Errorf("no /%s/modules.dep: depmod did not run for kernel %s; see %q", modules, release, b.logPath())
	}
	b.result.ModulesDir = filepath.Join(b.dir, modules)
	return nil
}

func (b *build) empty(dir string) error {
	if !b.tree.IsDir(dir) {
		return nil
	}
	names, err := b.tree.Glob(dir, "*")
	if err != nil {
		return err
	}
	for _, name := range names {
		if err := b.tree.RemoveAll(name); err != nil {
			return err
		}
	}
	return nil
}

// prune removes the files below dir and leaves its folders.
func (b *build) prune(dir string) error {
	return b.walk(dir, func(name string, d fs.DirEntry) error {
		if d.IsDir() {
			return nil
		}
		return b.tree.Remove(name)
	})
}

// removeCaches removes compiled Python: it holds times, and costs space.
func (b *build) removeCaches() error {
	return b.walk("usr", func(name string, d fs.DirEntry) error {
		if !d.IsDir() || d.Name() != "__pycache__" {
			return nil
		}
		if err := b.tree.RemoveAll(name); err != nil {
			return err
		}
		return fs.SkipDir
	})
}

// walk visits what is below dir, which may be missing, without following links.
func (b *build) walk(dir string, fn func(name string, d fs.DirEntry) error) error {
	if !b.tree.IsDir(dir) {
		return nil
	}
	return filepath.WalkDir(filepath.Join(b.dir, dir), func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(b.dir, p)
		if err != nil {
			return err
		}
		return fn(name, d)
	})
}

// fixShadow sets the date of the last password change, the day of the build
// otherwise, to the day of SourceDateEpoch.
func (b *build) fixShadow() error {
	text, err := b.tree.ReadFile("etc/shadow")
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	var out strings.Builder
	for line := range strings.Lines(string(text)) {
		if f := strings.Split(line, ":"); len(f) > 3 && f[2] != "" {
			f[2] = fmt.Sprint(b.SourceDateEpoch / 86400)
			line = strings.Join(f, ":")
		}
		out.WriteString(line)
	}
	return b.tree.Update("etc/shadow", []byte(out.String()))
}

// fixIdentity leaves an image that takes its machine id and its resolvers at
// boot, though its /etc cannot be written then.
func (b *build) fixIdentity() error {
	if err := b.tree.WriteFile("etc/machine-id", nil, 0o444); err != nil {
		return err
	}
	links := []struct{ name, target string }{{"etc/mtab", "../proc/self/mounts"}}
	if b.tree.IsDir("var/lib/dbus") {
		links = append(links, struct{ name, target string }{"var/lib/dbus/machine-id", "/etc/machine-id"})
	}
	if !b.ships("/etc/resolv.conf") {
		target := "../run/resolv.conf"
		if b.tree.Exists("usr/lib/systemd/systemd-resolved") {
			target = "../run/systemd/resolve/stub-resolv.conf"
		}
		links = append(links, struct{ name, target string }{"etc/resolv.conf", target})
	}
	if !b.ships("/etc/hostname") {
		if err := b.tree.Remove("etc/hostname"); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	for _, l := range links {
		if err := b.tree.Symlink(l.target, l.name); err != nil {
			return err
		}
	}
	return b.tree.Chmod("tmp", 0o777|fs.ModeSticky)
}

// ships reports whether the recipe or the caller puts a file at that path.
func (b *build) ships(name string) bool {
	for _, f := range b.Recipe.Files {
		if path.Clean(f.Path) == name {
			return true
		}
	}
	for _, f := range b.ExtraFiles {
		if path.Clean(f.Path) == name {
			return true
		}
	}
	return false
}

// collect finishes the result, and makes sure that nothing is mounted in the
// tree that would be packed with it.
func (b *build) collect(context.Context) error {
	var err error
	if b.result.Installed, err = b.installed(); err != nil {
		return err
	}
	b.result.Dir = b.dir
	var root, st unix.Stat_t
	if err := unix.Lstat(b.dir, &root); err != nil {
		return err
	}
	for _, name := range []string{"proc", "dev", "run", "tmp"} {
		if err := unix.Lstat(filepath.Join(b.dir, name), &st); err == nil && st.Dev != root.Dev {
			return fmt.Errorf("something is mounted on %q", filepath.Join(b.dir, name))
		}
	}
	return nil
}
