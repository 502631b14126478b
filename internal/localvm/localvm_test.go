package localvm

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
)

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestWatcher(t *testing.T) {
	const text = "Reached target multi-user.target"
	for name, shown := range map[string]bool{
		"boot\n\x1b[0m Reached target \x1b[0;1;39mmulti-user.target\x1b[0m - x": true,
		"Reached target multi-user.targe":                                       false,
		strings.Repeat("x", 5000) + text:                                        true,
	} {
		for _, piece := range []int{1, 7, len(name)} {
			var out bytes.Buffer
			calls := 0
			w := &watcher{out: &out, text: text, seen: func() { calls++ }}
			for rest := name; rest != ""; rest = rest[min(piece, len(rest)):] {
				_, err := w.Write([]byte(rest[:min(piece, len(rest))]))
				must(t, err)
			}
			if w.found() != shown || calls != map[bool]int{true: 1}[shown] || out.String() != name {
				t.Errorf("%.40q in pieces of %d: found %v, %d calls, %d bytes copied", name, piece, w.found(), calls, out.Len())
			}
		}
	}
}

// anImage makes an image whose parts are of no use but to be copied.
func anImage(t *testing.T) (*oci.Layout, *oci.Image) {
	t.Helper()
	l, err := oci.Create(t.TempDir())
	must(t, err)
	put := func(what string) manifest.Blob {
		d, err := l.PutBytes("text/plain", bytes.Repeat([]byte(what), 1000))
		must(t, err)
		return manifest.Blob{Digest: d.Digest, SizeBytes: d.Size}
	}
	m := &manifest.Manifest{Name: "demo", Architecture: "amd64", Root: put("root"), UKI: put("uki"), Loader: put("loader")}
	m.Verity.Blob = put("tree")
	return l, &oci.Image{Digest: "sha256:" + strings.Repeat("ab", 32), Manifest: m}
}

func TestWriteDisk(t *testing.T) {
	l, img := anImage(t)
	name := filepath.Join(t.TempDir(), "disk")
	must(t, WriteDisk(t.Context(), l, img, name))
	d, err := disk.Open(name)
	must(t, err)
	raw, err := os.Open(name)
	must(t, err)
	defer raw.Close()
	for _, p := range d.Partitions {
		want := map[string]string{"root-a": "root", "verity-a": "tree"}[p.Label]
		if want == "" {
			continue
		}
		got := make([]byte, len(want)*1000)
		_, err := raw.ReadAt(got, p.StartBytes)
		must(t, err)
		if string(got) != strings.Repeat(want, 1000) {
			t.Errorf("partition %s holds %.20q", p.Label, got)
		}
	}
	esp, err := d.Partition(disk.LabelESP)
	must(t, err)
	fat, err := disk.OpenFAT(raw, esp.StartBytes, esp.SizeBytes, 512)
	must(t, err)
	for path, want := range map[string]string{"EFI/Linux/g000001-abababababab.efi": "uki", "EFI/BOOT/BOOTX64.EFI": "loader"} {
		size, err := fat.Stat(path)
		must(t, err)
		got, err := fat.ReadFile(path) // up to the end of a cluster
		must(t, err)
		if text := strings.Repeat(want, 1000); size != int64(len(text)) || !strings.HasPrefix(string(got), text) {
			t.Errorf("%s holds %d bytes, %.20q", path, size, got)
		}
	}
	// A part that went bad does not get onto a disk.
	blob, err := l.Blob(img.Manifest.Root.Digest)
	must(t, err)
	must(t, blob.Close())
	must(t, os.WriteFile(blob.Name(), bytes.Repeat([]byte("ROOT"), 1000), 0o644))
	if err := WriteDisk(t.Context(), l, img, name); err == nil {
		t.Error("a damaged root was written")
	}
}

func TestRunRefuses(t *testing.T) {
	l, img := anImage(t)
	img.Manifest.Architecture = "riscv64"
	if err := Run(t.Context(), l, img, Options{Dir: t.TempDir()}); err == nil || !strings.Contains(err.Error(), "riscv64") {
		t.Errorf("Run = %v", err)
	}
}
