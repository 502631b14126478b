package rootfs

import (
	"context"
	"fmt"
	"hash/fnv"
	"io/fs"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/lock"
)

// Packages take the numbers of their accounts as they come, so that they
// depend on which other packages are configured before. /var outlives a slot
// flip, and its files carry numbers: another image must mean the same
// accounts by them. So each dynamic account gets a number that depends on
// its name alone.

// The dynamic range of system accounts (Debian policy 9.2.2), and what of it
// is given by name.
const (
	dynamicFirst, dynamicLast = 100, 999
	namedFirst                = 200 // first of namedAccounts
	hashedFirst, hashedLast   = lock.AccountFirst, lock.AccountLast
)

// staticGroup is the one number in the range that base-passwd gives.
const staticGroup = "users" // 100

// namedAccounts have the number namedFirst plus their place. Names are only
// ever added at the end: a number that was in an image stays.
var namedAccounts = strings.Fields(`
	messagebus systemd-network systemd-resolve systemd-timesync systemd-journal systemd-journal-remote systemd-journal-upload
	systemd-coredump systemd-oom sshd _ssh ssh crontab polkitd netdev input sgx kvm render rdma tss uuidd _chrony ntp ntpsec ntpd
	_rpc statd _apt nvidia-persistenced nvpd dcgm docker containerd slurm munge _lldpd lldpd snmp Debian-snmp node_exporter
	prometheus tcpdump avahi rtkit pulse colord geoclue lpadmin scanner wireshark mlocate plocate ssl-cert
	dnsmasq postfix postdrop Debian-exim opensm ibacm vboxsf fwupd-refresh usbmux redis postgres mysql nginx haproxy zabbix
	telegraf fluentd td-agent rabbitmq etcd kube-proxy turnout`)

// accountNumber is the number of a dynamic account, by its name: that of
// accounts, of the table, or one that its hash gives.
func accountNumber(name string, accounts map[string]int) int {
	if id, ok := accounts[name]; ok {
		return id
	}
	if i := slices.Index(namedAccounts, name); i >= 0 {
		return namedFirst + i
	}
	h := fnv.New32a()
	h.Write([]byte(name)) //nolint:errcheck // never fails
	return hashedFirst + int(h.Sum32()%(hashedLast-hashedFirst+1))
}

// sameNumber is the error of two accounts whose names give one number. None
// of them silently gets another: which one that was could change with the
// next image, and files in /var would change hands.
func sameNumber(a, b string, id int, used map[int]bool, accounts map[string]int) error {
	given := map[int]bool{}
	for _, n := range accounts {
		given[n] = true
	}
	free := id
	for used[free] || given[free] {
		if free++; free > hashedLast {
			free = hashedFirst
		}
		if free == id {
			return fmt.Errorf("accounts %s and %s have the number %d, and no number is free", a, b, id)
		}
	}
	return fmt.Errorf("accounts %s and %s would have the number %d; give one of them another for good, in the lock file: \"accounts\": {%q: %d}", a, b, id, b, free)
}

// renumber maps the old numbers of dynamic accounts to the new ones, in the
// text of /etc/passwd or /etc/group. accounts are numbers that are given.
func renumber(file, text string, accounts map[string]int) (map[int]int, error) {
	lines := strings.Split(text, "\n")
	names := map[string]int{}
	for _, l := range lines {
		f := strings.Split(l, ":")
		if len(f) < 3 {
			continue
		}
		id, err := strconv.Atoi(f[2])
		if err != nil {
			return nil, fmt.Errorf("/%s: %q: %w", file, l, err)
		}
		if id >= dynamicFirst && id <= dynamicLast && (f[0] != staticGroup || id != dynamicFirst) {
			names[f[0]] = id
		}
	}
	sorted := make([]string, 0, len(names))
	for n := range names {
		sorted = append(sorted, n)
	}
	slices.Sort(sorted)
	used := map[int]bool{}
	for _, n := range sorted {
		used[accountNumber(n, accounts)] = true
	}
	out, owner := map[int]int{}, map[int]string{}
	for _, n := range sorted {
		id := accountNumber(n, accounts)
		if owner[id] != "" {
			return nil, fmt.Errorf("/%s: %w", file, sameNumber(owner[id], n, id, used, accounts))
		}
		if other, twice := out[names[n]]; twice && other != id {
			return nil, fmt.Errorf("/%s: two accounts have the number %d", file, names[n])
		}
		out[names[n]], owner[id] = id, n
	}
	return out, nil
}

// rewrite puts new numbers into fields of the lines of a file.
func rewrite(text string, fields map[int]map[int]int) string {
	lines := strings.Split(text, "\n")
	for i, l := range lines {
		f := strings.Split(l, ":")
		for at, ids := range fields {
			if at >= len(f) {
				continue
			}
			if old, err := strconv.Atoi(f[at]); err == nil {
				if id, ok := ids[old]; ok {
					f[at] = strconv.Itoa(id)
				}
			}
		}
		lines[i] = strings.Join(f, ":")
	}
	return strings.Join(lines, "\n")
}

// numberAccounts gives the dynamic accounts of the tree their own numbers, in
// the account files and on every file.
func (b *build) numberAccounts(ctx context.Context) error {
	text := map[string]string{}
	for _, f := range []string{"etc/passwd", "etc/group"} {
		if !b.tree.Exists(f) {
			return nil // a tree without accounts
		}
		t, err := b.tree.ReadFile(f)
		if err != nil {
			return err
		}
		text[f] = string(t)
	}
	uids, err := renumber("etc/passwd", text["etc/passwd"], b.Accounts)
	if err != nil {
		return err
	}
	gids, err := renumber("etc/group", text["etc/group"], b.Accounts)
	if err != nil {
		return err
	}
	for f, fields := range map[string]map[int]map[int]int{"etc/passwd": {2: uids, 3: gids}, "etc/group": {2: gids}} {
		if err := b.tree.WriteFile(f, []byte(rewrite(text[f], fields)), 0o644); err != nil {
			return err
		}
	}
	return chownTree(ctx, b.dir, uids, gids)
}

// chownTree changes the owners of everything in dir. What a change of owner
// takes away (set-id bits, capabilities) is put back.
func chownTree(ctx context.Context, dir string, uids, gids map[int]int) error {
	type inode struct{ dev, ino uint64 }
	done := map[inode]bool{}
	return filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err == nil {
			err = ctx.Err()
		}
		if err != nil {
			return err
		}
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return &fs.PathError{Op: "lstat", Path: p, Err: err}
		}
		uid, isUser := uids[int(st.Uid)]
		gid, isGroup := gids[int(st.Gid)]
		if !isUser && !isGroup {
			return nil
		}
		id := inode{st.Dev, st.Ino}
		if done[id] {
			return nil
		}
		done[id] = true
		if !isUser {
			uid = int(st.Uid)
		}
		if !isGroup {
			gid = int(st.Gid)
		}
		return chown(p, &st, uid, gid)
	})
}

const capabilities = "security.capability"

func chown(p string, st *unix.Stat_t, uid, gid int) error {
	caps := make([]byte, 64)
	n, err := unix.Lgetxattr(p, capabilities, caps)
	if err != nil {
		n = 0 // it has none
	}
	if err := unix.Lchown(p, uid, gid); err != nil {
		return &fs.PathError{Op: "chown", Path: p, Err: err}
	}
	if st.Mode&unix.S_IFMT == unix.S_IFLNK {
		return nil
	}
	if err := unix.Chmod(p, st.Mode&0o7777); err != nil {
		return &fs.PathError{Op: "chmod", Path: p, Err: err}
	}
	if n > 0 {
		if err := unix.Lsetxattr(p, capabilities, caps[:n], 0); err != nil {
			return &fs.PathError{Op: "setxattr", Path: p, Err: err}
		}
	}
	return nil
}
