package oci

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/manifest"
)

func newLayout(t *testing.T) *Layout {
	t.Helper()
	l, err := Create(filepath.Join(t.TempDir(), "layout"))
	if err != nil {
		t.Fatal(err)
	}
	return l
}

var key = ed25519.NewKeyFromSeed(make([]byte, 32))

// putImage stores an image with one layer, signed by key.
func putImage(t *testing.T, l *Layout, version string) Descriptor {
	t.Helper()
	m := manifest.Manifest{SchemaVersion: manifest.Version, Name: "test", Version: version}
	config, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	cd, err := l.PutBytes(manifest.MediaConfig, config)
	if err != nil {
		t.Fatal(err)
	}
	root, err := l.PutBytes(manifest.MediaRoot, []byte("root "+version))
	if err != nil {
		t.Fatal(err)
	}
	d, err := l.PutManifest(Manifest{ArtifactType: manifest.ArtifactType, Config: cd, Layers: []Descriptor{root}})
	if err != nil {
		t.Fatal(err)
	}
	sig, err := manifest.Sign(key, d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := l.PutSignature(d, sig); err != nil {
		t.Fatal(err)
	}
	return d
}

func TestImageRoundTrip(t *testing.T) {
	l := newLayout(t)
	d := putImage(t, l, "1")
	putImage(t, l, "2")
	img, err := l.Image(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if img.Manifest.Version != "1" || manifest.DigestOf(img.Raw) != d.Digest {
		t.Errorf("Image = %+v", img)
	}
	if layer, ok := img.OCI.Layer(manifest.MediaRoot); !ok || layer.Size != 6 {
		t.Errorf("Layer = %+v, %v; want 6 bytes", layer, ok)
	}
	pub := []ed25519.PublicKey{key.Public().(ed25519.PublicKey)}
	if _, err := l.Signature(d.Digest, pub); err != nil {
		t.Errorf("Signature: %v", err)
	}
	other := ed25519.NewKeyFromSeed(bytes.Repeat([]byte{1}, 32)).Public().(ed25519.PublicKey)
	if _, err := l.Signature(d.Digest, []ed25519.PublicKey{other}); !errors.Is(err, manifest.ErrSignature) {
		t.Errorf("Signature by another key = %v; want ErrSignature", err)
	}
	if err := l.CheckBlob(t.Context(), img.OCI.Layers[0]); err != nil {
		t.Errorf("CheckBlob: %v", err)
	}
}

func TestResolve(t *testing.T) {
	l := newLayout(t)
	one := putImage(t, l, "1").Digest
	if got, err := l.Resolve(""); err != nil || got != one {
		t.Errorf(`Resolve("") = %q, %v; want the only image`, got, err)
	}
	two := putImage(t, l, "2").Digest
	for ref, want := range map[string]string{one: one, manifest.Short(two): two, "sha256:" + manifest.Short(one): one} {
		if got, err := l.Resolve(ref); err != nil || got != want {
			t.Errorf("Resolve(%q) = %q, %v; want %q", ref, got, err, want)
		}
	}
	if _, err := l.Resolve(""); err == nil {
		t.Error(`Resolve("") among two images succeeded`)
	}
	if _, err := l.Resolve("ffffffffffff"); !errors.Is(err, ErrNotFound) {
		t.Errorf("Resolve of an unknown digest = %v; want ErrNotFound", err)
	}
}

func TestUnsignedImage(t *testing.T) {
	l := newLayout(t)
	d := putImage(t, l, "1")
	if err := l.Forget(d.Digest); err != nil {
		t.Fatal(err)
	}
	if x, err := l.Index(); err != nil || len(x.Manifests) != 0 {
		t.Errorf("index after Forget = %+v, %v; want it empty", x, err)
	}
	if _, err := l.Signature(d.Digest, nil); !errors.Is(err, manifest.ErrSignature) {
		t.Errorf("Signature = %v; want ErrSignature", err)
	}
}

func TestPutBlobChecks(t *testing.T) {
	l := newLayout(t)
	good := manifest.DigestOf([]byte("hello"))
	tests := []struct {
		name string
		want Descriptor
		ok   bool
	}{
		{"nothing known", Descriptor{}, true},
		{"digest and size", Descriptor{Digest: good, Size: 5}, true},
		{"wrong digest", Descriptor{Digest: manifest.DigestOf([]byte("x"))}, false},
		{"wrong size", Descriptor{Digest: good, Size: 6}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d, err := l.PutBlob(t.Context(), strings.NewReader("hello"), tt.want)
			if (err == nil) != tt.ok {
				t.Fatalf("PutBlob = %v; want success %v", err, tt.ok)
			}
			if tt.ok && (d.Digest != good || !l.Has(good)) {
				t.Errorf("PutBlob = %+v; want %s stored", d, good)
			}
		})
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := l.PutBlob(ctx, strings.NewReader("late"), Descriptor{}); !errors.Is(err, context.Canceled) {
		t.Errorf("PutBlob = %v; want context.Canceled", err)
	}
	names, err := os.ReadDir(filepath.Join(l.Dir(), "blobs", "sha256"))
	if err != nil || len(names) != 1 {
		t.Errorf("%d files below blobs, %v; want only the good blob", len(names), err)
	}
}

func TestDamageIsSeen(t *testing.T) {
	l := newLayout(t)
	d := putImage(t, l, "1")
	img, err := l.Image(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	for name, digest := range map[string]string{"config": img.OCI.Config.Digest, "manifest": d.Digest} {
		p, err := l.blobPath(digest)
		if err != nil {
			t.Fatal(err)
		}
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		b[len(b)/2] ^= 1
		if err := os.WriteFile(p, b, 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := l.Image(d.Digest); err == nil || !strings.Contains(err.Error(), "corrupt") {
			t.Errorf("%s damaged: Image = %v; want corrupt", name, err)
		}
	}
	for _, digest := range []string{"", "sha256:../../index", "md5:00", "sha256:" + strings.Repeat("A", 64)} {
		if _, err := l.Blob(digest); err == nil || l.Has(digest) {
			t.Errorf("Blob(%q) was accepted", digest)
		}
	}
	if _, err := l.Blob(manifest.DigestOf(nil)); !errors.Is(err, ErrNotFound) {
		t.Errorf("Blob = %v; want ErrNotFound", err)
	}
}

func TestConcurrentWriters(t *testing.T) {
	l := newLayout(t)
	const n = 20
	var wg sync.WaitGroup
	for i := range n {
		wg.Go(func() {
			own, err := Create(l.Dir()) // as another process would
			if err != nil {
				t.Error(err)
				return
			}
			putImage(t, own, fmt.Sprint(i%10))
		})
	}
	wg.Wait()
	ds, err := l.Images()
	if err != nil || len(ds) != 10 {
		t.Fatalf("%d images, %v; want 10", len(ds), err)
	}
	for _, d := range ds {
		if sigs, err := l.Signatures(d.Digest); err != nil || len(sigs) != 1 {
			t.Errorf("image %s: %d signatures, %v; want 1", d.Digest, len(sigs), err)
		}
	}
}

func TestCopy(t *testing.T) {
	src, dst := newLayout(t), newLayout(t)
	d := putImage(t, src, "1")
	var done int64
	img, err := dst.Copy(t.Context(), src, d.Digest, func(n int64) { done = n })
	if err != nil {
		t.Fatal(err)
	}
	if want := img.OCI.Config.Size + 6; done != want {
		t.Errorf("copied %d bytes; want %d", done, want)
	}
	got, err := dst.Image(d.Digest)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(img, got); diff != "" {
		t.Errorf("copied image (-want +got):\n%s", diff)
	}
	if _, err := dst.Signatures(d.Digest); err != nil {
		t.Error(err)
	}
	p, err := src.blobPath(img.OCI.Layers[0].Digest)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(p, []byte("rotten"), 0o600); err != nil {
		t.Fatal(err)
	}
	third := newLayout(t)
	if _, err := third.Copy(t.Context(), src, d.Digest, nil); err == nil {
		t.Error("a damaged blob was copied")
	}
	if ds, err := third.Images(); err != nil || len(ds) != 0 {
		t.Errorf("%d images listed after a failed copy, %v; want none", len(ds), err)
	}
}

func TestOpenRefuses(t *testing.T) {
	if _, err := Open(t.TempDir()); !errors.Is(err, ErrNotFound) {
		t.Errorf("Open of an empty folder = %v; want ErrNotFound", err)
	}
	l := newLayout(t)
	if err := os.WriteFile(filepath.Join(l.Dir(), layoutFile), []byte(`{"imageLayoutVersion":"2.0.0"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Open(l.Dir()); err == nil {
		t.Error("an unknown layout version was accepted")
	}
}
