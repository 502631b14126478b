package fatdir_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/disk/fatdir"
)

// volume makes a file system with dosfstools and mtools: names as other
// implementations write them.
func volume(t testing.TB, files map[string][]byte) []byte {
	t.Helper()
	dir := t.TempDir()
	img := filepath.Join(dir, "fat.img")
	if err := os.WriteFile(img, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(img, 34<<20); err != nil {
		t.Fatal(err)
	}
	run(t, "mkfs.vfat", "-F", "32", "-s", "1", img)
	run(t, "mmd", "-i", img, "::EFI", "::EFI/Linux")
	n := 0
	for name, b := range files {
		n++
		src := filepath.Join(dir, fmt.Sprint(n))
		if err := os.WriteFile(src, b, 0o600); err != nil {
			t.Fatal(err)
		}
		run(t, "mcopy", "-i", img, src, "::EFI/Linux/"+name)
	}
	b, err := os.ReadFile(img)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func run(t testing.TB, name string, args ...string) {
	t.Helper()
	for _, dir := range []string{"", "/usr/sbin/"} {
		bin, err := exec.LookPath(dir + name)
		if err != nil {
			continue
		}
		if out, err := exec.Command(bin, args...).CombinedOutput(); err != nil {
			t.Fatalf("%s %q: %v\n%s", name, args, err, out)
		}
		return
	}
	if os.Getenv("CI") != "" {
		t.Fatalf("%s is not installed", name)
	}
	t.Skipf("%s is not installed", name)
}

func TestList(t *testing.T) {
	files := map[string][]byte{
		"g000001-aaaaaaaaaaaa.efi":        bytes.Repeat([]byte("A"), 100_000),
		"g000002-bbbbbbbbbbbb+1-1.efi":    bytes.Repeat([]byte("B"), 512),
		"SHORT.EFI":                       []byte("C"),
		"lower.efi":                       []byte("D"),
		"a name with spaces, and comma.x": []byte("E"),
		"empty.new":                       nil,
	}
	for i := range 40 { // a folder of several clusters
		files[fmt.Sprintf("filler-%02d-with-a-long-name.txt", i)] = []byte{byte(i)}
	}
	v, err := fatdir.Open(bytes.NewReader(volume(t, files)), 0)
	if err != nil {
		t.Fatal(err)
	}
	entries, err := v.List("efi/LINUX")
	if err != nil {
		t.Fatal(err)
	}
	got := map[string][]byte{}
	for _, e := range entries {
		b, err := v.ReadFile(e)
		if err != nil || e.IsDir || len(e.Slots) == 0 {
			t.Errorf("%+v: %v", e, err)
		}
		got[e.Name] = b
	}
	if diff := cmp.Diff(files, got); diff != "" {
		t.Errorf("List() (-want +got):\n%s", diff)
	}
	if _, err := v.List("EFI/Windows"); err == nil {
		t.Error("List of a missing folder: no error")
	}
}

func TestOpenDamaged(t *testing.T) {
	good := volume(t, nil)
	for name, spoil := range map[string]func([]byte){
		"signature":            func(b []byte) { b[510] = 0 },
		"sector size":          func(b []byte) { b[11], b[12] = 3, 0 },
		"sectors per cluster":  func(b []byte) { b[13] = 3 },
		"no reserved sectors":  func(b []byte) { b[14], b[15] = 0, 0 },
		"no table":             func(b []byte) { clear(b[36:40]) },
		"FAT16":                func(b []byte) { b[22] = 1 },
		"smaller than its FAT": func(b []byte) { b[32], b[33], b[34], b[35] = 10, 0, 0, 0 },
	} {
		b := bytes.Clone(good[:512])
		spoil(b)
		if _, err := fatdir.Open(bytes.NewReader(b), 0); !errors.Is(err, fatdir.ErrDamaged) {
			t.Errorf("%s: error %v; want ErrDamaged", name, err)
		}
	}
	if _, err := fatdir.Open(bytes.NewReader(good[:100]), 0); err == nil {
		t.Error("short boot sector: no error")
	}
}

// Whatever is on the disk, reading ends.
func FuzzVolume(f *testing.F) {
	b := volume(f, map[string][]byte{"g000001-aaaaaaaaaaaa+2-1.efi": []byte("content"), "SHORT.EFI": nil})
	f.Add(uint32(0), []byte{})
	f.Add(uint32(32*512), []byte{2, 0, 0, 0}) // a chain that loops
	f.Fuzz(func(t *testing.T, at uint32, patch []byte) {
		image := &patched{b, int64(at) % int64(len(b)), patch}
		v, err := fatdir.Open(image, 0)
		if err != nil {
			return
		}
		for _, dir := range []string{"", "EFI", "EFI/Linux"} {
			entries, err := v.List(dir)
			if err != nil {
				continue
			}
			for _, e := range entries {
				if got, err := v.ReadFile(e); err == nil && len(got) != int(e.Size) {
					t.Errorf("%s: %d bytes; entry says %d", e.Name, len(got), e.Size)
				}
			}
		}
	})
}

// patched is an image with some bytes replaced.
type patched struct {
	base  []byte
	at    int64
	patch []byte
}

func (p *patched) ReadAt(b []byte, off int64) (int, error) {
	n, err := bytes.NewReader(p.base).ReadAt(b, off)
	for i := range p.patch {
		if at := p.at + int64(i) - off; at >= 0 && at < int64(n) {
			b[at] = p.patch[i]
		}
	}
	return n, err
}
