package rootfs

import (
	"archive/tar"
	"flag"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/deb/debtest"
	"github.com/turnout-project/turnout/internal/recipe"
)

var update = flag.Bool("update", false, "write testdata/golden.txt anew")

// goldenEnv makes TestGolden print digests and look at nothing; its value is
// how many days old the files of the tree are made before they are packed.
const goldenEnv = "TURNOUT_TEST_GOLDEN_DAYS"

// goldenBuild makes a root file system of packages that the test makes
// itself, so that no archive is needed, by all stages but the configuring.
func goldenBuild(t *testing.T, days int) string {
	const release = "6.1.0-1-amd64"
	r := rand.New(rand.NewPCG(1, 2))
	large := make([]byte, 700<<10)
	for i := range large {
		large[i] = "abcdefgh"[r.IntN(8)]
	}
	files := map[string]string{
		"/boot/vmlinuz-" + release: "kernel", "/lib/modules/" + release + "/modules.dep": "", "/etc/machine-id": "0123\n",
		"/etc/ssh/ssh_host_rsa_key": "secret", "/etc/hostname": "builder\n", "/var/log/apt/history.log": "dates", "/usr/lib/large": string(large),
	}
	for i := range 200 {
		files[fmt.Sprintf("/usr/share/doc/p%03d/copyright", i)] = strings.Repeat(fmt.Sprintf("line of %d\n", i), i)
	}
	tools := debtest.Package{Name: "tools", Compression: "xz",
		Data: []tar.Header{debtest.Dir("./tmp/"), debtest.Dir("./var/tmp/"), debtest.Dir("./usr/bin/"), debtest.File("./usr/bin/su", 0o4755),
			{Name: "./usr/bin/hard", Typeflag: tar.TypeLink, Linkname: "./usr/bin/su"}, debtest.Link("./usr/bin/link", "/usr/bin/su")},
		Contents: map[string]string{"./usr/bin/su": "program"}}
	b := unpackedBuild(t, &recipe.Recipe{
		Files: []recipe.File{{Path: "/etc/x/y.conf", Content: "y\n"}, {Path: "/srv/data/", Mode: "1770", Owner: "workload:disk"}},
		Users: []recipe.User{{Name: "workload", UID: 900, Groups: []string{"video"}, Shell: "/bin/sh", Home: "/var/lib/workload"}}, Sysctl: map[string]string{"kernel.panic": "10"},
		Modprobe: []string{"blacklist nouveau"},
	}, system(files), tools)
	for _, stage := range []func() error{
		func() error { return b.writeDatabase(t.Context()) }, func() error { return b.apply(t.Context()) },
		func() error { return b.clean(t.Context()) }, func() error { return age(b.dir, days) },
	} {
		if err := stage(); err != nil {
			t.Fatal(err)
		}
	}
	sum, err := treeSum(t.Context(), b.dir, b.Jobs)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Pack(t.Context(), b.dir, filepath.Join(b.WorkDir, "packed"), PackOptions{SourceDateEpoch: 1_700_000_000})
	if err != nil {
		t.Fatal(err)
	}
	return fmt.Sprintf("tree %s\npacked by %s %s\n", sum, p.Tool, p.SHA256)
}

// age makes every file of a tree as old as if it had been made another day.
func age(dir string, days int) error {
	at := time.Now().AddDate(0, 0, -days)
	return filepath.WalkDir(dir, func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.Type() == fs.ModeSymlink {
			return err
		}
		return os.Chtimes(p, at, at)
	})
}

// TestGolden: the same packages and recipe give the same bytes in another
// folder, on another day, with another user's environment, umask, locale,
// time zone and number of processors, and the bytes of the commit before.
func TestGolden(t *testing.T) {
	needRoot(t)
	if days, err := strconv.Atoi(os.Getenv(goldenEnv)); err == nil {
		fmt.Print(goldenBuild(t, days))
		return
	}
	if _, err := exec.LookPath("mksquashfs"); err != nil && os.Getenv("CI") == "" {
		t.Skip(err)
	}
	got := goldenBuild(t, 0)
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	for name, v := range map[string]struct {
		umask string
		env   []string
	}{
		"another day and folder":             {"022", []string{goldenEnv + "=1234", "TMPDIR=" + t.TempDir()}},
		"a strict umask, one processor":      {"077", []string{goldenEnv + "=0", "GOMAXPROCS=1"}},
		"no umask, eight processors":         {"000", []string{goldenEnv + "=0", "GOMAXPROCS=8"}},
		"another locale, zone, user, epoch":  {"022", []string{goldenEnv + "=1", "LC_ALL=tr_TR.UTF-8", "LANG=ja_JP", "TZ=Pacific/Kiritimati", "USER=x", "HOME=/nowhere", "SOURCE_DATE_EPOCH=1"}},
		"options of compressors by variable": {"027", []string{goldenEnv + "=9", "XZ_OPT=-9", "XZ_DEFAULTS=-T1", "ZSTD_CLEVEL=1"}},
	} {
		t.Run(name, func(t *testing.T) {
			cmd := exec.CommandContext(t.Context(), "sh", "-c", `umask "$1"; exec "$2" -test.run='^TestGolden$'`, "sh", v.umask, exe)
			cmd.Env = append(os.Environ(), v.env...)
			out, err := cmd.Output()
			if err != nil {
				t.Fatalf("%v: %s", err, out)
			}
			if !strings.HasPrefix(string(out), got) {
				t.Errorf("other bytes:\n%swant\n%s", out, got)
			}
		})
	}
	checkGolden(t, got)
}

func checkGolden(t *testing.T, got string) {
	file := filepath.Join("testdata", "golden.txt")
	if *update {
		if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	raw, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	const help = "this changes the digest of every image that is built anew. If it is meant, run `go test ./internal/rootfs -run TestGolden -update`, and say so in changelog/unreleased"
	wantTree, wantPacked, _ := strings.Cut(string(raw), "\n")
	gotTree, gotPacked, _ := strings.Cut(got, "\n")
	if gotTree != wantTree {
		t.Errorf("the tree is %q; want %q: %s", gotTree, wantTree, help)
	}
	tool := func(line string) string { return line[:strings.LastIndex(strings.TrimSpace(line), " ")] }
	if tool(gotPacked) != tool(wantPacked) {
		t.Logf("the packed bytes are not compared: %s here, %s there", tool(gotPacked), tool(wantPacked))
	} else if gotPacked != wantPacked {
		t.Errorf("the packed root is %q; want %q: %s", gotPacked, wantPacked, help)
	}
}
