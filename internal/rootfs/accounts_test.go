package rootfs

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/rootfs/tree"
)

// An account has the same number whatever order packages are configured in,
// and whichever others there are.
func TestAccountNumbersDependOnNames(t *testing.T) {
	one, err := renumber("etc/passwd", "root:x:0:0:::\nmessagebus:x:100:100:::\nsystemd-network:x:998:998:::\nacme:x:101:101:::\nnobody:x:65534:65534:::\nops:x:1000:1000:::\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	two, err := renumber("etc/passwd", "acme:x:100:100:::\nsshd:x:101:65534:::\nsystemd-network:x:999:999:::\nmessagebus:x:102:104:::\n", nil)
	if err != nil {
		t.Fatal(err)
	}
	if len(one) != 3 || one[100] != two[102] || one[998] != two[999] || one[101] != two[100] || one[100] != namedFirst {
		t.Errorf("%v\n%v", one, two)
	}
	if _, err := renumber("etc/passwd", "a:x:100:1:\nb:x:100:1:\n", nil); err == nil {
		t.Error("two accounts of one number are kept apart")
	}
}

// Two names of one number are told, with what settles it for good; no account
// moves because another one came.
func TestAccountsOfOneNumber(t *testing.T) {
	first, second := "", ""
	seen := map[int]string{}
	for i := 0; second == ""; i++ {
		n := fmt.Sprintf("acme%03d", i)
		id := accountNumber(n, nil)
		if seen[id] != "" {
			first, second = seen[id], n
		}
		seen[id] = n
	}
	text := first + ":x:101:101:::\n" + second + ":x:102:102:::\n"
	_, err := renumber("etc/passwd", text, nil)
	id := accountNumber(first, nil)
	entry := fmt.Sprintf(`"accounts": {%q: %d}`, second, id+1)
	if err == nil || !strings.Contains(err.Error(), first) || !strings.Contains(err.Error(), entry) {
		t.Fatalf("renumber = %v, want an error with %s", err, entry)
	}
	got, err := renumber("etc/passwd", text, map[string]int{second: id + 1})
	if err != nil || got[101] != id || got[102] != id+1 {
		t.Errorf("renumber with the entry = %v, %v", got, err)
	}
	alone, err := renumber("etc/passwd", second+":x:100:100:::\n", map[string]int{second: id + 1})
	if err != nil || alone[100] != id+1 {
		t.Errorf("without the other it has the number %v, %v; want %d as before", alone, err, id+1)
	}
}

// The table is only added to: these numbers are in images.
func TestNamedAccountsStay(t *testing.T) {
	for name, want := range map[string]int{"messagebus": 200, "systemd-network": 201, "sshd": 209, "tss": 220, "nvidia-persistenced": 229} {
		if got := accountNumber(name, nil); got != want {
			t.Errorf("%s has the number %d, had %d", name, got, want)
		}
	}
	sorted := slices.Clone(namedAccounts)
	slices.Sort(sorted)
	if len(slices.Compact(sorted)) != len(namedAccounts) || namedFirst+len(namedAccounts) > hashedFirst {
		t.Errorf("%d names, of which one is there twice, or too many", len(namedAccounts))
	}
}

// Files go with their accounts, with their set-id bits and capabilities; a
// number that is somebody's old and another's new one is not mixed up, nor a
// file with two names.
func TestNumberAccounts(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	dir := t.TempDir()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	put := func(name, text string, mode os.FileMode, uid, gid int) string {
		t.Helper()
		p := filepath.Join(dir, name)
		must(os.MkdirAll(filepath.Dir(p), 0o755))
		must(os.WriteFile(p, []byte(text), 0o600))
		must(os.Lchown(p, uid, gid))
		must(unix.Chmod(p, uint32(mode)))
		return p
	}
	// sshd has the number that messagebus is to get.
	put("etc/passwd", "root:x:0:0::/root:/bin/sh\nmessagebus:x:101:102::/nonexistent:/bin/false\nsshd:x:200:65534::/run/sshd:/bin/false\n", 0o644, 0, 0)
	put("etc/group", "root:x:0:\nusers:x:100:\nmessagebus:x:102:\ncrontab:x:103:ops\n", 0o644, 0, 0)
	helper := put("usr/lib/helper", "x", 0o4754, 0, 102)
	crontab := put("usr/bin/crontab", "x", 0o2755, 0, 103)
	bus := put("var/lib/dbus/f", "x", 0o600, 101, 102)
	ssh := put("var/lib/ssh/f", "x", 0o600, 200, 65534)
	must(os.Link(bus, bus+"-too"))
	must(os.Symlink("f", filepath.Join(dir, "var/lib/dbus/link")))
	must(os.Lchown(filepath.Join(dir, "var/lib/dbus/link"), 101, 102))
	caps := []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00") // cap_net_bind_service=ep
	capable := put("usr/bin/capable", "x", 0o755, 0, 102)
	must(unix.Lsetxattr(capable, capabilities, caps, 0))

	d, err := tree.Open(dir)
	must(err)
	defer d.Close()
	b := &build{dir: dir, tree: d}
	must(b.numberAccounts(t.Context()))

	text, err := os.ReadFile(filepath.Join(dir, "etc/passwd"))
	must(err)
	if want := "root:x:0:0::/root:/bin/sh\nmessagebus:x:200:200::/nonexistent:/bin/false\nsshd:x:209:65534::/run/sshd:/bin/false\n"; string(text) != want {
		t.Error(cmp.Diff(want, string(text)))
	}
	text, err = os.ReadFile(filepath.Join(dir, "etc/group"))
	must(err)
	if !strings.Contains(string(text), "users:x:100:\nmessagebus:x:200:\ncrontab:x:212:ops\n") {
		t.Errorf("group:\n%s", text)
	}
	for p, want := range map[string][3]uint32{
		helper: {0o4754, 0, 200}, crontab: {0o2755, 0, 212}, bus: {0o600, 200, 200}, bus + "-too": {0o600, 200, 200},
		ssh: {0o600, 209, 65534}, filepath.Join(dir, "var/lib/dbus/link"): {0o777, 200, 200}, capable: {0o755, 0, 200},
	} {
		var st unix.Stat_t
		must(unix.Lstat(p, &st))
		if got := [3]uint32{st.Mode & 0o7777, st.Uid, st.Gid}; got != want {
			t.Errorf("%s: %o %d %d, want %o %d %d", p, got[0], got[1], got[2], want[0], want[1], want[2])
		}
	}
	got := make([]byte, 64)
	n, err := unix.Lgetxattr(capable, capabilities, got)
	if err != nil || string(got[:n]) != string(caps) {
		t.Errorf("capabilities: %x, %v", got[:n], err)
	}
}
