package rootfs

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"slices"
	"strings"
)

// Violation is something a finished image must not have.
type Violation struct {
	Rule string // "updater", "compiler", "ssh-host-key", "machine-id", "setuid", "password", "device"
	Path string // in the image, without a leading slash
	Text string // what is wrong, for people
}

func (v Violation) String() string { return fmt.Sprintf("%s: /%s: %s", v.Rule, v.Path, v.Text) }

// compilers are programs that have no place in an image: what they would make
// was made when the image was built. Versions and targets may surround the
// names ("x86_64-linux-gnu-gcc-12").
var compilers = []string{"cc", "gcc", "g++", "c++", "clang", "clang++", "tcc", "make", "cc1", "cc1plus"}

// privileged are the programs of Debian that rightly run with other rights
// than their caller's.
var privileged = set(`
	usr/bin/chage usr/bin/chfn usr/bin/chsh usr/bin/crontab usr/bin/expiry usr/bin/fusermount usr/bin/fusermount3
	usr/bin/gpasswd usr/bin/mount usr/bin/newgidmap usr/bin/newgrp usr/bin/newuidmap usr/bin/nvidia-modprobe usr/bin/passwd usr/bin/pkexec
	usr/bin/ssh-agent usr/bin/su usr/bin/sudo usr/bin/umount usr/bin/wall usr/bin/write usr/bin/write.ul
	usr/lib/dbus-1.0/dbus-daemon-launch-helper usr/lib/openssh/ssh-keysign usr/lib/polkit-1/polkit-agent-helper-1
	usr/lib/x86_64-linux-gnu/utempter/utempter usr/lib/aarch64-linux-gnu/utempter/utempter
	usr/libexec/polkit-agent-helper-1 usr/sbin/mount.nfs usr/sbin/pam_extrausers_chkpwd usr/sbin/unix_chkpwd`)

func set(words string) map[string]bool {
	m := map[string]bool{}
	for _, w := range strings.Fields(words) {
		m[w] = true
	}
	return m
}

// Policy checks a finished root file system against what every image keeps
// to. fsys must tell modes with setuid bits and, to see masked units, read
// links (fs.ReadLinkFS): os.DirFS does both. A folder that cannot be read is
// a violation, since nothing is known about it.
func Policy(fsys fs.FS) []Violation {
	var vs []Violation
	add := func(rule, name, format string, args ...any) {
		vs = append(vs, Violation{rule, name, fmt.Sprintf(format, args...)})
	}
	checkUpdaters(fsys, add)
	checkIdentity(fsys, add)
	checkPasswords(fsys, add)
	err := fs.WalkDir(fsys, ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			add("unreadable", name, "%v", err)
			return nil
		}
		checkFile(name, d, add)
		return nil
	})
	if err != nil {
		add("unreadable", ".", "%v", err)
	}
	slices.SortFunc(vs, func(x, y Violation) int {
		return strings.Compare(x.Rule+"\x00"+x.Path, y.Rule+"\x00"+y.Path)
	})
	return vs
}

type adder func(rule, name, format string, args ...any)

// checkUpdaters finds units and cron jobs that would change the system.
func checkUpdaters(fsys fs.FS, add adder) {
	for _, unit := range updaters {
		if target, err := fs.ReadLink(fsys, systemUnits+"/"+unit); err == nil && target == "/dev/null" {
			continue
		}
		for _, dir := range unitDirs {
			if _, err := fs.Lstat(fsys, dir+"/"+unit); err == nil {
				add("updater", dir+"/"+unit, "this unit can run and is not masked")
				break
			}
		}
	}
	for _, job := range []string{"etc/cron.daily/apt-compat", "etc/cron.daily/apt", "etc/cron.d/unattended-upgrades"} {
		if _, err := fs.Lstat(fsys, job); err == nil {
			add("updater", job, "this cron job updates packages")
		}
	}
}

// checkIdentity finds what belongs to one machine alone.
func checkIdentity(fsys fs.FS, add adder) {
	keys, _ := fs.Glob(fsys, "etc/ssh/ssh_host_*")
	for _, key := range keys {
		add("ssh-host-key", key, "all machines of this image would share it")
	}
	id, err := fs.ReadFile(fsys, "etc/machine-id")
	switch {
	case errors.Is(err, fs.ErrNotExist):
		add("machine-id", "etc/machine-id", "it is missing; with a read-only /etc it must be there, empty")
	case err != nil:
		add("machine-id", "etc/machine-id", "%v", err)
	case len(id) > 0:
		add("machine-id", "etc/machine-id", "all machines of this image would share it")
	}
}

// checkPasswords finds accounts anyone can log in to, and hashes that would
// be in every copy of the image.
func checkPasswords(fsys fs.FS, add adder) {
	for _, file := range []string{"etc/shadow", "etc/passwd"} {
		text, err := fs.ReadFile(fsys, file)
		if err != nil {
			continue
		}
		for line := range strings.Lines(string(text)) {
			f := strings.Split(line, ":")
			switch {
			case len(f) < 2:
			case f[1] == "":
				add("password", file, "account %q has an empty password", f[0])
			case f[1] != "x" && !strings.HasPrefix(f[1], "!") && f[1] != "*":
				add("password", file, "account %q has a password in the image", f[0])
			}
		}
	}
}

// checkFile judges one file by its name and mode.
func checkFile(name string, d fs.DirEntry, add adder) {
	if d.Type()&(fs.ModeDevice|fs.ModeCharDevice|fs.ModeNamedPipe|fs.ModeSocket) != 0 {
		add("device", name, "a device, pipe or socket has no place in an image")
		return
	}
	if isCompiler(name) {
		add("compiler", name, "images hold no compiler")
	}
	if !d.Type().IsRegular() {
		return
	}
	info, err := d.Info()
	if err != nil {
		add("unreadable", name, "%v", err)
		return
	}
	if info.Mode()&(fs.ModeSetuid|fs.ModeSetgid) != 0 && !privileged[name] {
		add("setuid", name, "mode %v is not expected of this program", info.Mode())
	}
}

func isCompiler(name string) bool {
	dir, base := path.Split(name)
	switch {
	case dir == "usr/bin/", dir == "usr/local/bin/", dir == "usr/sbin/":
	case strings.HasPrefix(dir, "usr/lib/gcc/"), strings.HasPrefix(dir, "usr/libexec/gcc/"):
	default:
		return false
	}
	if _, rest, ok := strings.Cut(base, "-linux-gnu-"); ok {
		base = rest
	}
	stem, version, ok := strings.Cut(base, "-")
	if ok && strings.Trim(version, "0123456789.") != "" {
		return false // "make-first-existing-target", "gcc-ar-12"
	}
	return slices.Contains(compilers, stem)
}
