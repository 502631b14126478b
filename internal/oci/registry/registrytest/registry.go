// Package registrytest is an OCI registry in memory, for tests.
package registrytest

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"regexp"
	"strings"
	"sync"

	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
)

// Registry is a registry by the OCI distribution specification 1.1, or by
// 1.0, which knows no referrers. All its repositories hold the same. Lock it
// to look at its fields while it serves.
type Registry struct {
	sync.Mutex
	Blobs     map[string][]byte // by digest
	Manifests map[string][]byte // by digest and by tag
	Uploads   int               // of blobs
	FailAfter int               // uploads; 0 means never
	referrers bool
	types     map[string]string // media types of manifests
}

// New makes an empty registry.
func New(referrers bool) *Registry {
	return &Registry{referrers: referrers, Blobs: map[string][]byte{}, Manifests: map[string][]byte{}, types: map[string]string{}}
}

var path = regexp.MustCompile(`^/v2/(.+)/(manifests|blobs|referrers)/(.*)$`)

// ServeHTTP answers one request.
func (f *Registry) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	f.Lock()
	defer f.Unlock()
	m := path.FindStringSubmatch(r.URL.Path)
	if m == nil {
		http.NotFound(w, r)
		return
	}
	repo, kind, ref := m[1], m[2], m[3]
	switch {
	case kind == "manifests" && r.Method == http.MethodPut:
		f.takeManifest(w, r, ref)
	case kind == "manifests":
		f.send(w, r, f.Manifests[ref], f.types[ref])
	case kind == "referrers" && f.referrers:
		f.refer(w, ref)
	case kind == "blobs" && r.Method == http.MethodPost:
		w.Header().Set("Location", "/v2/"+repo+"/blobs/uploads/1")
		w.WriteHeader(http.StatusAccepted)
	case kind == "blobs" && r.Method == http.MethodPut:
		f.takeBlob(w, r)
	case kind == "blobs":
		f.send(w, r, f.Blobs[ref], "application/octet-stream")
	default:
		http.NotFound(w, r)
	}
}

func (f *Registry) takeManifest(w http.ResponseWriter, r *http.Request, ref string) {
	raw, _ := io.ReadAll(r.Body)
	digest := manifest.DigestOf(raw)
	for _, name := range []string{ref, digest} {
		f.Manifests[name], f.types[name] = raw, r.Header.Get("Content-Type")
	}
	var m oci.Manifest
	if f.referrers && json.Unmarshal(raw, &m) == nil && m.Subject != nil {
		w.Header().Set("OCI-Subject", m.Subject.Digest)
	}
	w.Header().Set("Docker-Content-Digest", digest)
	w.WriteHeader(http.StatusCreated)
}

func (f *Registry) takeBlob(w http.ResponseWriter, r *http.Request) {
	raw, _ := io.ReadAll(r.Body)
	f.Uploads++
	if digest := r.URL.Query().Get("digest"); manifest.DigestOf(raw) != digest || f.FailAfter > 0 && f.Uploads > f.FailAfter {
		http.Error(w, "no", http.StatusBadRequest)
		return
	}
	f.Blobs[manifest.DigestOf(raw)] = raw
	w.WriteHeader(http.StatusCreated)
}

func (f *Registry) send(w http.ResponseWriter, r *http.Request, raw []byte, mediaType string) {
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
func (f *Registry) refer(w http.ResponseWriter, subject string) {
	x := oci.Index{SchemaVersion: 2, MediaType: oci.MediaIndex, Manifests: []oci.Descriptor{}}
	for name, raw := range f.Manifests {
		var m oci.Manifest
		if strings.HasPrefix(name, "sha256:") && json.Unmarshal(raw, &m) == nil && m.Subject != nil && m.Subject.Digest == subject {
			x.Manifests = append(x.Manifests, oci.Descriptor{MediaType: oci.MediaManifest, Digest: name, Size: int64(len(raw)), ArtifactType: m.ArtifactType})
		}
	}
	w.Header().Set("Content-Type", oci.MediaIndex)
	_ = json.NewEncoder(w).Encode(x)
}
