// Package oci keeps images in OCI image layouts on disk (OCI image
// specification 1.1, "Image Layout"): blobs by SHA-256, manifests, an index,
// and signatures as artefacts that refer to their image by subject.
//
// A layout may be used by several goroutines and processes at once: blobs and
// the index appear whole or not at all, and changes of the index are
// serialised by a file lock. Everything read is checked against its digest,
// except blobs opened as files, which the reader must check.
package oci

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/turnout-project/turnout/internal/manifest"
)

// Media types of the OCI image specification.
const (
	MediaManifest = "application/vnd.oci.image.manifest.v1+json"
	MediaIndex    = "application/vnd.oci.image.index.v1+json"
)

// AnnotationTitle is the file name of a layer, as ORAS and others use it.
const AnnotationTitle = "org.opencontainers.image.title"

const (
	layoutFile    = "oci-layout"
	indexFile     = "index.json"
	lockFile      = ".lock"
	layoutVersion = `{"imageLayoutVersion":"1.0.0"}`
	maxJSON       = 16 << 20 // of a manifest or index, in bytes
)

// ErrNotFound is wrapped when a layout, manifest, blob or signature is not
// there.
var ErrNotFound = errors.New("not found")

// Descriptor points to a blob.
type Descriptor struct {
	MediaType    string            `json:"mediaType"`
	Digest       string            `json:"digest"` // "sha256:…"
	Size         int64             `json:"size"`   // bytes
	ArtifactType string            `json:"artifactType,omitempty"`
	Annotations  map[string]string `json:"annotations,omitempty"`
}

// Manifest is an OCI image manifest.
type Manifest struct {
	SchemaVersion int               `json:"schemaVersion"`
	MediaType     string            `json:"mediaType"`
	ArtifactType  string            `json:"artifactType,omitempty"`
	Config        Descriptor        `json:"config"`
	Layers        []Descriptor      `json:"layers"`
	Subject       *Descriptor       `json:"subject,omitempty"`
	Annotations   map[string]string `json:"annotations,omitempty"`
}

// Layer returns the first layer of a media type.
func (m *Manifest) Layer(mediaType string) (Descriptor, bool) {
	for _, l := range m.Layers {
		if l.MediaType == mediaType {
			return l, true
		}
	}
	return Descriptor{}, false
}

// Index is the index.json of a layout.
type Index struct {
	SchemaVersion int          `json:"schemaVersion"`
	MediaType     string       `json:"mediaType"`
	Manifests     []Descriptor `json:"manifests"`
}

// Layout is an OCI image layout in a folder.
type Layout struct{ dir string }

// Create opens the layout in dir, making the folder and an empty layout if
// there is none.
func Create(dir string) (*Layout, error) {
	l := &Layout{dir}
	if err := os.MkdirAll(filepath.Join(dir, "blobs", "sha256"), 0o755); err != nil {
		return nil, fmt.Errorf("image layout: %w", err)
	}
	unlock, err := l.lock()
	if err != nil {
		return nil, err
	}
	defer unlock()
	if _, err := os.Stat(filepath.Join(dir, indexFile)); errors.Is(err, fs.ErrNotExist) {
		if err := l.writeIndex(&Index{SchemaVersion: 2, MediaType: MediaIndex, Manifests: []Descriptor{}}); err != nil {
			return nil, err
		}
	}
	if _, err := os.Stat(filepath.Join(dir, layoutFile)); errors.Is(err, fs.ErrNotExist) {
		if err := writeFile(filepath.Join(dir, layoutFile), []byte(layoutVersion)); err != nil {
			return nil, err
		}
	}
	return Open(dir)
}

// Open opens an existing layout.
func Open(dir string) (*Layout, error) {
	b, err := os.ReadFile(filepath.Join(dir, layoutFile))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("image layout %w: %s has no file %s; make one with `imgbuild build --out %s`", ErrNotFound, dir, layoutFile, dir)
	}
	if err != nil {
		return nil, fmt.Errorf("image layout: %w", err)
	}
	var v struct{ ImageLayoutVersion string }
	if err := json.Unmarshal(b, &v); err != nil || !strings.HasPrefix(v.ImageLayoutVersion, "1.") {
		return nil, fmt.Errorf("image layout %s: version %q is not known", dir, v.ImageLayoutVersion)
	}
	return &Layout{dir}, nil
}

// Dir returns the folder of the layout.
func (l *Layout) Dir() string { return l.dir }

// blobPath returns the file of a blob. The digest must be well formed: it
// becomes part of a path.
func (l *Layout) blobPath(digest string) (string, error) {
	if err := manifest.CheckDigest(digest); err != nil {
		return "", err
	}
	return filepath.Join(l.dir, "blobs", "sha256", strings.TrimPrefix(digest, "sha256:")), nil
}
