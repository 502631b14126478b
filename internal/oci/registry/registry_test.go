package registry

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"errors"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/oci/registry/registrytest"
)

// newRegistry starts a registry; repo is where one pushes to.
func newRegistry(t *testing.T, referrers bool) (f *registrytest.Registry, repo string) {
	f = registrytest.New(referrers)
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return f, strings.TrimPrefix(s.URL, "http://") + "/turnout/demo"
}

// anImage makes a signed image.
func anImage(t *testing.T) (*oci.Layout, string, ed25519.PublicKey) {
	t.Helper()
	public, private, err := ed25519.GenerateKey(nil)
	must(t, err)
	l, err := oci.Create(t.TempDir())
	must(t, err)
	var layers []oci.Descriptor
	for _, mediaType := range []string{manifest.MediaRoot, manifest.MediaUKI, manifest.MediaLoader} {
		d, err := l.PutBytes(mediaType, bytes.Repeat([]byte(mediaType), 1000))
		must(t, err)
		layers = append(layers, d)
	}
	raw, err := (&manifest.Manifest{SchemaVersion: manifest.Version, Name: "demo", Version: "1"}).Encode()
	must(t, err)
	config, err := l.PutBytes(manifest.MediaConfig, raw)
	must(t, err)
	d, err := l.PutManifest(oci.Manifest{ArtifactType: manifest.ArtifactType, Config: config, Layers: layers})
	must(t, err)
	sig, err := manifest.Sign(private, d.Digest)
	must(t, err)
	must(t, l.PutSignature(d, sig))
	return l, d.Digest, public
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func TestPushPull(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	for name, referrers := range map[string]bool{"registry 1.1": true, "registry 1.0": false} {
		t.Run(name, func(t *testing.T) {
			f, repo := newRegistry(t, referrers)
			l, digest, key := anImage(t)
			var done, total int64
			o := Options{PlainHTTP: true, Progress: func(d, of int64) { done, total = d, of }}
			must(t, Push(t.Context(), l, digest, repo+":1", o))
			if done != total || total == 0 {
				t.Errorf("progress ended at %d of %d", done, total)
			}
			uploads := f.Uploads
			must(t, Push(t.Context(), l, digest, repo+":2", o))
			if f.Uploads != uploads {
				t.Errorf("%d blobs were sent again", f.Uploads-uploads)
			}
			for _, ref := range []string{repo + ":1", repo + ":2", repo + "@" + digest} {
				to, err := oci.Create(t.TempDir())
				must(t, err)
				got, err := Pull(t.Context(), to, ref, o)
				must(t, err)
				if got != digest {
					t.Errorf("Pull(%s) = %s; want %s", ref, got, digest)
				}
				img, err := to.Image(got)
				must(t, err)
				for _, d := range img.OCI.Layers {
					must(t, to.CheckBlob(context.Background(), d))
				}
				if _, err := to.Signature(got, []ed25519.PublicKey{key}); err != nil {
					t.Errorf("%s: %v", ref, err)
				}
			}
		})
	}
}

// TestCutOff: a push that was cut off shows no image, and goes on.
func TestCutOff(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	f, repo := newRegistry(t, true)
	l, digest, _ := anImage(t)
	o := Options{PlainHTTP: true}
	f.FailAfter = 2
	if err := Push(t.Context(), l, digest, repo+":1", o); err == nil {
		t.Fatal("the push went through")
	}
	to, err := oci.Create(t.TempDir())
	must(t, err)
	if _, err := Pull(t.Context(), to, repo+":1", o); err == nil {
		t.Error("half an image was pulled")
	}
	f.FailAfter, f.Uploads = 0, 0
	must(t, Push(t.Context(), l, digest, repo+":1", o))
	if f.Uploads != 4 { // two of the image, two of the signature
		t.Errorf("%d blobs were sent to finish", f.Uploads)
	}
}

// TestHostile: a registry that sends other bytes leaves no image behind.
func TestHostile(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	for name, spoil := range map[string]func(f *registrytest.Registry, digest string, layers []oci.Descriptor){
		"other blob": func(f *registrytest.Registry, _ string, ls []oci.Descriptor) { f.Blobs[ls[0].Digest][5] ^= 1 },
		"longer blob": func(f *registrytest.Registry, _ string, ls []oci.Descriptor) {
			f.Blobs[ls[0].Digest] = append(f.Blobs[ls[0].Digest], 'x')
		},
		"shorter blob": func(f *registrytest.Registry, _ string, ls []oci.Descriptor) {
			f.Blobs[ls[0].Digest] = f.Blobs[ls[0].Digest][1:]
		},
		"missing blob": func(f *registrytest.Registry, _ string, ls []oci.Descriptor) { delete(f.Blobs, ls[1].Digest) },
		"other manifest": func(f *registrytest.Registry, d string, _ []oci.Descriptor) {
			f.Manifests[d] = append(f.Manifests[d], ' ')
		},
		"no image": func(f *registrytest.Registry, d string, _ []oci.Descriptor) {
			f.Manifests["1"] = bytes.Replace(f.Manifests["1"], []byte(manifest.ArtifactType), []byte("application/x"), 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, repo := newRegistry(t, true)
			l, digest, _ := anImage(t)
			o := Options{PlainHTTP: true}
			must(t, Push(t.Context(), l, digest, repo+":1", o))
			img, err := l.Image(digest)
			must(t, err)
			f.Lock()
			spoil(f, digest, img.OCI.Layers)
			f.Unlock()
			to, err := oci.Create(t.TempDir())
			must(t, err)
			if got, err := Pull(t.Context(), to, repo+":1", o); err == nil && name != "other manifest" {
				t.Errorf("Pull = %s", got)
			}
			if name == "other manifest" {
				if got, err := Pull(t.Context(), to, repo+"@"+digest, o); err == nil {
					t.Errorf("Pull by digest = %s", got)
				}
				return
			}
			if images, err := to.Images(); err != nil || len(images) > 0 {
				t.Errorf("left images %v, %v", images, err)
			}
		})
	}
}

func TestReference(t *testing.T) {
	l, digest, _ := anImage(t)
	for _, ref := range []string{"", "demo", "registry.invalid/demo", "registry.invalid/Demo:1", "registry.invalid/demo:a b"} {
		if err := Push(t.Context(), l, digest, ref, Options{}); !errors.Is(err, ErrReference) {
			t.Errorf("Push to %q = %v; want %v", ref, err, ErrReference)
		}
	}
}
