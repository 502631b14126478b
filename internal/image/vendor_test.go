package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/cas"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/manifest"
)

// aPackage puts a package into a store.
func aPackage(t *testing.T, s *cas.Store, name, content string) lock.Package {
	t.Helper()
	sum := sha256.Sum256([]byte(content))
	p := lock.Package{Name: name, Version: "1:2+b~1", Architecture: "amd64", Source: "src-" + name,
		URI: "http://gone.invalid/debian/pool/" + name + "_2+b~1_amd64.deb", SizeBytes: int64(len(content)), SHA256: hex.EncodeToString(sum[:])}
	if err := s.Put(context.Background(), p.SHA256, p.SizeBytes, strings.NewReader(content)); err != nil {
		t.Fatal(err)
	}
	return p
}

func testLock(t *testing.T, s *cas.Store) *lock.File {
	t.Helper()
	kernel := aPackage(t, s, "linux-image-6.1.0-1-amd64", "kernel")
	return &lock.File{
		Version: lock.Version, Recipe: "sha256:" + strings.Repeat("0", 64), Name: "demo", Architecture: "amd64", SourceDateEpoch: 1,
		Indexes: []lock.Index{{URI: "http://gone.invalid/debian", Suite: "bookworm", Date: "Sat, 01 Jan 2000 00:00:00 UTC", SHA256: strings.Repeat("0", 64), Key: strings.Repeat("AB", 20)}},
		Kernel:  kernel.Name, Packages: []lock.Package{kernel}, Tools: []lock.Package{aPackage(t, s, "systemd-boot-efi", "stub")},
		Build: []lock.Package{aPackage(t, s, "gcc-12", "compiler"), kernel},
	}
}

// TestVendor: a folder that was vendored into serves a build without a
// network, and repairs itself.
func TestVendor(t *testing.T) {
	store, err := cas.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f := testLock(t, store)
	dir := t.TempDir()
	vendor := func() {
		t.Helper()
		files, bytes, err := Vendor(t.Context(), store, f, dir, "demo.lock.json", nil)
		if err != nil || files != 3 || bytes != int64(len("kernelstubcompiler")) {
			t.Fatalf("Vendor = %d files, %d bytes, %v", files, bytes, err)
		}
	}
	vendor()
	got, err := lock.Read(filepath.Join(dir, "demo.lock.json"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(f, got); diff != "" {
		t.Errorf("lock (-want +got):\n%s", diff)
	}
	fetch := func() error {
		t.Helper()
		other, err := cas.Open(t.TempDir())
		if err != nil {
			t.Fatal(err)
		}
		other.Mirrors, other.Offline = []string{"http://gone.invalid/", dir}, true
		return Fetch(t.Context(), other, got, nil)
	}
	if err := fetch(); err != nil {
		t.Errorf("fetching from the folder: %v", err)
	}
	bad := filepath.Join(dir, "sha256", f.Packages[0].SHA256[:2], f.Packages[0].SHA256)
	if err := os.Chmod(bad, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(bad, []byte("KERNEL"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := fetch(); err == nil {
		t.Error("a package that went bad was taken")
	}
	vendor()
	if err := fetch(); err != nil {
		t.Errorf("after vendoring again: %v", err)
	}
}

func TestCycloneDX(t *testing.T) {
	store, err := cas.Open(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f := testLock(t, store)
	m := &manifest.Manifest{Name: "demo", Version: "1", SourceDateEpoch: 86400, Tools: map[string]string{"imgbuild": "v1"}}
	raw, err := CycloneDX("sha256:aa", m, f.Packages)
	if err != nil {
		t.Fatal(err)
	}
	var doc cdxDocument
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	want := cdxComponent{Type: "library", Name: "linux-image-6.1.0-1-amd64", Version: "1:2+b~1",
		Ref: "pkg:deb/debian/linux-image-6.1.0-1-amd64@1%3A2%2Bb~1?arch=amd64", PURL: "pkg:deb/debian/linux-image-6.1.0-1-amd64@1%3A2%2Bb~1?arch=amd64",
		Hashes:     []cdxHash{{"SHA-256", f.Packages[0].SHA256}},
		Properties: []cdxProperty{{"turnout:source", "src-linux-image-6.1.0-1-amd64"}}}
	if diff := cmp.Diff([]cdxComponent{want}, doc.Components); diff != "" {
		t.Errorf("components (-want +got):\n%s", diff)
	}
	if doc.SpecVersion != "1.5" || doc.Metadata.Timestamp != "1970-01-02T00:00:00Z" || doc.Metadata.Component.Name != "demo" || len(doc.Dependencies) != 1 || len(doc.SerialNumber) != 45 {
		t.Errorf("document = %+v", doc)
	}
}
