package registry

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
)

// fake is a registry in memory with one repository, turnout/demo, by the OCI
// distribution specification 1.1. Without referrers it is one of version 1.0.
type fake struct {
	mu        sync.Mutex
	referrers bool
	blobs     map[string][]byte
	manifests map[string][]byte // by digest and by tag
	types     map[string]string // media types of manifests
	uploads   int
	failAfter int // uploads; 0 means never
}

func newFake(t *testing.T, referrers bool) (*fake, string) {
	f := &fake{referrers: referrers, blobs: map[string][]byte{}, manifests: map[string][]byte{}, types: map[string]string{}}
	s := httptest.NewServer(f)
	t.Cleanup(s.Close)
	return f, strings.TrimPrefix(s.URL, "http://") + "/turnout/demo"
}

func (f *fake) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.mu.Lock()
	defer f.mu.Unlock()
	kind, ref, _ := strings.Cut(strings.TrimPrefix(r.URL.Path, "/v2/turnout/demo/"), "/")
	switch {
	case kind == "manifests" && r.Method == http.MethodPut:
		raw, _ := io.ReadAll(r.Body)
		digest := manifest.DigestOf(raw)
		for _, name := range []string{ref, digest} {
			f.manifests[name], f.types[name] = raw, r.Header.Get("Content-Type")
		}
		var m oci.Manifest
		if f.referrers && json.Unmarshal(raw, &m) == nil && m.Subject != nil {
			w.Header().Set("OCI-Subject", m.Subject.Digest)
		}
		w.Header().Set("Docker-Content-Digest", digest)
		w.WriteHeader(http.StatusCreated)
	case kind == "manifests":
		f.send(w, r, f.manifests[ref], f.types[ref])
	case kind == "referrers" && f.referrers:
		f.refer(w, ref)
	case kind == "blobs" && r.Method == http.MethodPost:
		w.Header().Set("Location", "/v2/turnout/demo/blobs/uploads/1")
		w.WriteHeader(http.StatusAccepted)
	case kind == "blobs" && r.Method == http.MethodPut:
		raw, _ := io.ReadAll(r.Body)
		f.uploads++
		if digest := r.URL.Query().Get("digest"); manifest.DigestOf(raw) != digest || f.failAfter > 0 && f.uploads > f.failAfter {
			http.Error(w, "no", http.StatusBadRequest)
			return
		}
		f.blobs[manifest.DigestOf(raw)] = raw
		w.WriteHeader(http.StatusCreated)
	case kind == "blobs":
		f.send(w, r, f.blobs[ref], "application/octet-stream")
	default:
		http.NotFound(w, r)
	}
}

func (f *fake) send(w http.ResponseWriter, r *http.Request, raw []byte, mediaType string) {
	if raw == nil {
		http.NotFound(w, r)
		return
	}
	w.Header().Set("Content-Type", mediaType)
	w.Header().Set("Content-Length", fmt.Sprint(len(raw)))
	if strings.Contains(r.URL.Path, "/manifests/") {
		w.Header().Set("Docker-Content-Digest", manifest.DigestOf(raw))
	}
	if r.Method == http.MethodGet {
		_, _ = w.Write(raw)
	}
}

// refer answers a request for the referrers of a manifest.
func (f *fake) refer(w http.ResponseWriter, subject string) {
	x := oci.Index{SchemaVersion: 2, MediaType: oci.MediaIndex, Manifests: []oci.Descriptor{}}
	for name, raw := range f.manifests {
		var m oci.Manifest
		if strings.HasPrefix(name, "sha256:") && json.Unmarshal(raw, &m) == nil && m.Subject != nil && m.Subject.Digest == subject {
			x.Manifests = append(x.Manifests, oci.Descriptor{MediaType: oci.MediaManifest, Digest: name, Size: int64(len(raw)), ArtifactType: m.ArtifactType})
		}
	}
	w.Header().Set("Content-Type", oci.MediaIndex)
	_ = json.NewEncoder(w).Encode(x)
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
			f, repo := newFake(t, referrers)
			l, digest, key := anImage(t)
			var done, total int64
			o := Options{PlainHTTP: true, Progress: func(d, of int64) { done, total = d, of }}
			must(t, Push(t.Context(), l, digest, repo+":1", o))
			if done != total || total == 0 {
				t.Errorf("progress ended at %d of %d", done, total)
			}
			uploads := f.uploads
			must(t, Push(t.Context(), l, digest, repo+":2", o))
			if f.uploads != uploads {
				t.Errorf("%d blobs were sent again", f.uploads-uploads)
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
	f, repo := newFake(t, true)
	l, digest, _ := anImage(t)
	o := Options{PlainHTTP: true}
	f.failAfter = 2
	if err := Push(t.Context(), l, digest, repo+":1", o); err == nil {
		t.Fatal("the push went through")
	}
	to, err := oci.Create(t.TempDir())
	must(t, err)
	if _, err := Pull(t.Context(), to, repo+":1", o); err == nil {
		t.Error("half an image was pulled")
	}
	f.failAfter, f.uploads = 0, 0
	must(t, Push(t.Context(), l, digest, repo+":1", o))
	if f.uploads != 4 { // two of the image, two of the signature
		t.Errorf("%d blobs were sent to finish", f.uploads)
	}
}

// TestHostile: a registry that sends other bytes leaves no image behind.
func TestHostile(t *testing.T) {
	t.Setenv("DOCKER_CONFIG", t.TempDir())
	for name, spoil := range map[string]func(f *fake, digest string, layers []oci.Descriptor){
		"other blob": func(f *fake, _ string, ls []oci.Descriptor) { f.blobs[ls[0].Digest][5] ^= 1 },
		"longer blob": func(f *fake, _ string, ls []oci.Descriptor) {
			f.blobs[ls[0].Digest] = append(f.blobs[ls[0].Digest], 'x')
		},
		"shorter blob":   func(f *fake, _ string, ls []oci.Descriptor) { f.blobs[ls[0].Digest] = f.blobs[ls[0].Digest][1:] },
		"missing blob":   func(f *fake, _ string, ls []oci.Descriptor) { delete(f.blobs, ls[1].Digest) },
		"other manifest": func(f *fake, d string, _ []oci.Descriptor) { f.manifests[d] = append(f.manifests[d], ' ') },
		"no image": func(f *fake, d string, _ []oci.Descriptor) {
			f.manifests["1"] = bytes.Replace(f.manifests["1"], []byte(manifest.ArtifactType), []byte("application/x"), 1)
		},
	} {
		t.Run(name, func(t *testing.T) {
			f, repo := newFake(t, true)
			l, digest, _ := anImage(t)
			o := Options{PlainHTTP: true}
			must(t, Push(t.Context(), l, digest, repo+":1", o))
			img, err := l.Image(digest)
			must(t, err)
			f.mu.Lock()
			spoil(f, digest, img.OCI.Layers)
			f.mu.Unlock()
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
