package squashfs

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

func need(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
}

func check(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

// noise returns n bytes that compress to about half.
func noise(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 1))
	b := make([]byte, n)
	for i := range b {
		b[i] = "0123456789abcdef"[r.IntN(16)]
	}
	return b
}

// sample makes a tree with one of everything that is in a root file system.
func sample(t *testing.T) string {
	t.Helper()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for _, d := range []string{"empty", "usr/bin", "many", "mixed/deep/deeper"} {
		check(t, os.MkdirAll(at(d), 0o755))
	}
	random := make([]byte, BlockBytes+17) // cannot be compressed
	_, _ = rand.NewChaCha8([32]byte{1}).Read(random)
	for name, data := range map[string][]byte{
		"usr/bin/large": noise(1, 5*BlockBytes+1234), "usr/bin/copy": noise(1, 5*BlockBytes+1234),
		"usr/bin/exact": noise(2, 2*BlockBytes), "usr/bin/random": random, "usr/bin/short": noise(3, 77),
		"mixed/zeroes": make([]byte, 3*BlockBytes+9), "mixed/little": make([]byte, 10), "mixed/none": nil,
		"mixed/hole": append(append(noise(4, BlockBytes), make([]byte, 2*BlockBytes)...), noise(5, BlockBytes+1)...),
	} {
		check(t, os.WriteFile(at(name), data, 0o640))
	}
	for i := range 1600 { // more than a listing of a small inode can hold
		check(t, os.WriteFile(at(fmt.Sprintf("many/a-rather-long-name-of-a-file-%05d", i)), noise(uint64(i), i%900), 0o600))
	}
	check(t, os.Symlink("large", at("usr/bin/link")), os.Symlink("/"+strings.Repeat("x", 300), at("mixed/far")),
		os.Link(at("usr/bin/large"), at("mixed/hard")), os.Chmod(at("usr/bin/short"), 0o755|fs.ModeSetuid),
		os.Chmod(at("empty"), 0o777|fs.ModeSticky), os.Chmod(dir, 0o755),
		unix.Setxattr(at("usr/bin/short"), "user.one", []byte("1"), 0))
	if os.Geteuid() == 0 {
		check(t, os.Lchown(at("usr/bin/link"), 33, 44), os.Chown(at("mixed"), 70000, 65534),
			unix.Setxattr(at("usr/bin/exact"), "security.capability", []byte("\x01\x00\x00\x02\x00\x04\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"), 0),
			unix.Setxattr(at("usr"), "user.two", bytes.Repeat([]byte("2"), 100), 0))
	}
	return dir
}

// listing describes all of a tree, by name.
func listing(t *testing.T, dir string) map[string]string {
	t.Helper()
	all := map[string]string{}
	first := map[uint64]string{}
	check(t, filepath.WalkDir(dir, func(p string, _ fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, _ := filepath.Rel(dir, p)
		var st unix.Stat_t
		if err := unix.Lstat(p, &st); err != nil {
			return err
		}
		text := fmt.Sprintf("%o %d:%d %d", st.Mode, st.Uid, st.Gid, st.Nlink)
		switch st.Mode & unix.S_IFMT {
		case unix.S_IFLNK:
			target, err := os.Readlink(p)
			if err != nil {
				return err
			}
			text += " to " + target
		case unix.S_IFREG:
			b, err := os.ReadFile(p)
			if err != nil {
				return err
			}
			text += fmt.Sprintf(" %d bytes %x", len(b), sha256.Sum256(b))
			if st.Nlink > 1 && first[st.Ino] == "" {
				first[st.Ino] = name
			} else if st.Nlink > 1 {
				text += " is " + first[st.Ino]
			}
		}
		xs, err := xattrs(p)
		all[name] = text + fmt.Sprint(xs)
		return err
	}))
	return all
}

func write(t *testing.T, dir, out string, o Options) ([]byte, Stats) {
	t.Helper()
	o.Epoch, o.Level, o.Tool = 1_700_000_000, 3, "test"
	st, err := Write(t.Context(), dir, out, o)
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(out)
	check(t, err)
	return b, st
}

// TestWrite packs a tree and lets unsquashfs, and the kernel where it may,
// say what is in it.
func TestWrite(t *testing.T) {
	need(t, "mksquashfs", "unsquashfs")
	dir := sample(t)
	out := filepath.Join(t.TempDir(), "out")
	b, _ := write(t, dir, out, Options{Processors: 2})
	if len(b)%4096 != 0 {
		t.Errorf("%d bytes are no whole number of pages", len(b))
	}
	want := listing(t, dir)
	to := filepath.Join(t.TempDir(), "x")
	if said, err := exec.Command("unsquashfs", "-q", "-n", "-strict-errors", "-d", to, out).CombinedOutput(); err != nil {
		t.Fatalf("unsquashfs: %v: %s", err, said)
	}
	if d := cmp.Diff(want, listing(t, to)); d != "" {
		t.Errorf("what unsquashfs read (-want +got):\n%s", d)
	}
	if st, err := os.Stat(filepath.Join(to, "mixed/hole")); err != nil || st.ModTime().Unix() != 1_700_000_000 {
		t.Errorf("time of a file: %v, %v", st.ModTime(), err)
	}
	said, err := exec.Command("unsquashfs", "-l", out).CombinedOutput()
	if err != nil || !bytes.Contains(said, []byte("squashfs-root/mixed/deep/deeper\n")) {
		t.Errorf("unsquashfs -l: %v: %.300s", err, said)
	}
	byKernel(t, out, want)
}

func byKernel(t *testing.T, image string, want map[string]string) {
	at := t.TempDir()
	if said, err := exec.Command("mount", "-o", "ro,loop", "-t", "squashfs", image, at).CombinedOutput(); err != nil {
		t.Logf("not looked at by the kernel: mount: %v: %s", err, said)
		return
	}
	defer func() { check(t, exec.Command("umount", at).Run()) }()
	if d := cmp.Diff(want, listing(t, at)); d != "" {
		t.Errorf("what the kernel read (-want +got):\n%s", d)
	}
}

// TestReuse: blocks come from an earlier file system, and the bytes are those
// of a file system made without.
func TestReuse(t *testing.T) {
	need(t, "mksquashfs")
	dir, tmp := sample(t), t.TempDir()
	at := func(name string) string { return filepath.Join(tmp, name) }
	first, st := write(t, dir, at("1"), Options{Processors: 1, Index: at("1.index")})
	if st.Reused != 0 || st.Blocks < 15 {
		t.Errorf("the first has %+v", st)
	}
	reuse := Options{Processors: 4, Reuse: at("1"), ReuseIndex: at("1.index")}
	if again, st := write(t, dir, at("again"), reuse); !bytes.Equal(first, again) || st.Reused != st.Blocks {
		t.Errorf("the same tree: equal %v, %+v", bytes.Equal(first, again), st)
	}
	check(t, os.WriteFile(filepath.Join(dir, "many/a-new-file"), []byte("new\n"), 0o644),
		os.Remove(filepath.Join(dir, "many/a-rather-long-name-of-a-file-00700")))
	cold, _ := write(t, dir, at("cold"), Options{Processors: 2})
	warm, st := write(t, dir, at("warm"), reuse)
	if !bytes.Equal(cold, warm) || bytes.Equal(cold, first) {
		t.Error("a file system with reused blocks differs from one without")
	}
	if st.Blocks-st.Reused > 4 {
		t.Errorf("%d blocks of %d are new after a change of two small files", st.Blocks-st.Reused, st.Blocks)
	}
	b := bytes.Clone(first)
	for i := 4096; i < len(b); i += 4096 {
		b[i] ^= 1
	}
	check(t, os.WriteFile(at("1"), b, 0o644))
	if _, err := Write(t.Context(), dir, at("bad"), Options{Epoch: 1_700_000_000, Level: 3, Tool: "test", Reuse: at("1"), ReuseIndex: at("1.index")}); !errors.Is(err, ErrReuse) {
		t.Errorf("damaged blocks: Write = %v; want %v", err, ErrReuse)
	}
	for name, o := range map[string]Options{
		"other level": {Level: 4, Tool: "test"}, "other tool": {Level: 3, Tool: "other"}, "no index": {Level: 3, Tool: "test", ReuseIndex: at("none")},
	} {
		o.Reuse = at("1")
		if o.ReuseIndex == "" {
			o.ReuseIndex = at("1.index")
		}
		if st, err := Write(t.Context(), dir, at("out"), o); err != nil || st.Reused != 0 {
			t.Errorf("%s: Write = %+v, %v; want nothing reused", name, st, err)
		}
	}
}

func TestWriteErrors(t *testing.T) {
	dir := t.TempDir()
	check(t, unix.Mkfifo(filepath.Join(dir, "pipe"), 0o600))
	for name, in := range map[string]string{"a pipe": dir, "missing": dir + "/none", "a file": os.Args[0]} {
		if _, err := Write(t.Context(), in, filepath.Join(t.TempDir(), "out"), Options{Level: 3}); err == nil {
			t.Errorf("%s was packed", name)
		}
	}
}
