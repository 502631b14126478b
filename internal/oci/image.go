package oci

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/turnout-project/turnout/internal/manifest"
)

// Image is one Turnout image of a layout.
type Image struct {
	Digest   string // of the OCI manifest: the image digest
	Raw      []byte // the OCI manifest; its SHA-256 is Digest
	OCI      *Manifest
	Manifest *manifest.Manifest
}

// Image loads the image of a digest, with its OCI manifest and its config
// checked against their digests. It checks no signature: see Signatures.
func (l *Layout) Image(digest string) (*Image, error) {
	raw, err := l.ReadBlob(digest)
	if err != nil {
		return nil, fmt.Errorf("image: %w", err)
	}
	o, err := parseManifest(raw)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", digest, err)
	}
	if o.ArtifactType != manifest.ArtifactType {
		return nil, fmt.Errorf("image %s: artifact type %q, want %s", digest, o.ArtifactType, manifest.ArtifactType)
	}
	config, err := l.ReadBlob(o.Config.Digest)
	if err != nil {
		return nil, fmt.Errorf("image %s: config: %w", digest, err)
	}
	m, err := manifest.Decode(config)
	if err != nil {
		return nil, fmt.Errorf("image %s: %w", digest, err)
	}
	return &Image{digest, raw, o, m}, nil
}

// Images lists the images of the layout in the order in which they came.
func (l *Layout) Images() ([]Descriptor, error) {
	x, err := l.Index()
	if err != nil {
		return nil, err
	}
	var ds []Descriptor
	for _, d := range x.Manifests {
		if d.ArtifactType == manifest.ArtifactType {
			ds = append(ds, d)
		}
	}
	return ds, nil
}

// Resolve finds an image by its digest, by the first digits of it, or, when
// ref is "", the only image there is.
func (l *Layout) Resolve(ref string) (string, error) {
	ds, err := l.Images()
	if err != nil {
		return "", err
	}
	var found []string
	for _, d := range ds {
		if strings.HasPrefix(strings.TrimPrefix(d.Digest, "sha256:"), strings.TrimPrefix(ref, "sha256:")) {
			found = append(found, d.Digest)
		}
	}
	switch len(found) {
	case 0:
		return "", fmt.Errorf("image %q %w in %s, which has %d images", ref, ErrNotFound, l.dir, len(ds))
	case 1:
		return found[0], nil
	}
	return "", fmt.Errorf("image %q: %d images of %s match; name one by more of its digest", ref, len(found), l.dir)
}

// Referrers lists the manifests whose subject is digest, of one artifact type
// or, with "", of any.
func (l *Layout) Referrers(digest, artifactType string) ([]Descriptor, error) {
	x, err := l.Index()
	if err != nil {
		return nil, err
	}
	var refs []Descriptor
	for _, d := range x.Manifests {
		if artifactType != "" && d.ArtifactType != artifactType || d.ArtifactType == manifest.ArtifactType {
			continue
		}
		b, err := l.ReadBlob(d.Digest)
		if err != nil {
			return nil, err
		}
		m, err := parseManifest(b)
		if err != nil {
			return nil, fmt.Errorf("manifest %s: %w", d.Digest, err)
		}
		if m.Subject != nil && m.Subject.Digest == digest {
			refs = append(refs, d)
		}
	}
	return refs, nil
}

// PutSignature stores an ed25519 signature over an image's digest as an
// artefact that refers to the image.
func (l *Layout) PutSignature(image Descriptor, sig []byte) error {
	blob, err := l.PutBytes(manifest.MediaSignature, sig)
	if err != nil {
		return err
	}
	empty, err := l.PutBytes("application/vnd.oci.empty.v1+json", []byte("{}"))
	if err != nil {
		return err
	}
	_, err = l.PutManifest(Manifest{
		ArtifactType: manifest.MediaSignature,
		Config:       empty,
		Layers:       []Descriptor{blob},
		Subject:      &Descriptor{MediaType: image.MediaType, Digest: image.Digest, Size: image.Size},
	})
	return err
}

// Signatures returns the signatures of an image, not verified; none is an
// error that wraps ErrNotFound.
func (l *Layout) Signatures(digest string) ([][]byte, error) {
	refs, err := l.Referrers(digest, manifest.MediaSignature)
	if err != nil {
		return nil, err
	}
	var sigs [][]byte
	for _, r := range refs {
		b, err := l.ReadBlob(r.Digest)
		if err != nil {
			return nil, err
		}
		m, err := parseManifest(b)
		if err != nil {
			return nil, err
		}
		for _, layer := range m.Layers {
			sig, err := l.ReadBlob(layer.Digest)
			if err != nil {
				return nil, err
			}
			sigs = append(sigs, sig)
		}
	}
	if len(sigs) == 0 {
		return nil, fmt.Errorf("signature of image %s %w", digest, ErrNotFound)
	}
	return sigs, nil
}

// Signature returns the first signature of an image that one of keys made.
// Without one the error wraps manifest.ErrSignature.
func (l *Layout) Signature(digest string, keys []ed25519.PublicKey) ([]byte, error) {
	sigs, err := l.Signatures(digest)
	if errors.Is(err, ErrNotFound) {
		return nil, fmt.Errorf("%w: image %s is not signed", manifest.ErrSignature, digest)
	}
	if err != nil {
		return nil, err
	}
	for _, sig := range sigs {
		if err = manifest.Verify(keys, digest, sig); err == nil {
			return sig, nil
		}
	}
	return nil, err
}

// Copy brings an image and its signatures from src, checking every blob, and
// lists it last of all. done, if not nil, is called with the bytes copied.
func (l *Layout) Copy(ctx context.Context, src *Layout, digest string, done func(bytes int64)) (*Image, error) {
	img, err := src.Image(digest)
	if err != nil {
		return nil, err
	}
	var copied int64
	for _, d := range append([]Descriptor{img.OCI.Config}, img.OCI.Layers...) {
		if err := l.copyBlob(ctx, src, d); err != nil {
			return nil, err
		}
		if copied += d.Size; done != nil {
			done(copied)
		}
	}
	refs, err := src.Referrers(digest, manifest.MediaSignature)
	if err != nil {
		return nil, err
	}
	for _, r := range refs {
		if err := l.copyArtefact(ctx, src, r.Digest); err != nil {
			return nil, err
		}
	}
	_, err = l.PutRawManifest(img.Raw)
	return img, err
}

func (l *Layout) copyBlob(ctx context.Context, src *Layout, d Descriptor) error {
	f, err := src.Blob(d.Digest)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read only
	if _, err := l.PutBlob(ctx, f, d); err != nil {
		return fmt.Errorf("copying from %s: %w", src.dir, err)
	}
	return nil
}

func (l *Layout) copyArtefact(ctx context.Context, src *Layout, digest string) error {
	raw, err := src.ReadBlob(digest)
	if err != nil {
		return err
	}
	m, err := parseManifest(raw)
	if err != nil {
		return err
	}
	for _, d := range append([]Descriptor{m.Config}, m.Layers...) {
		if err := l.copyBlob(ctx, src, d); err != nil {
			return err
		}
	}
	_, err = l.PutRawManifest(raw)
	return err
}

// parseManifest reads an OCI manifest and checks the form of its digests.
func parseManifest(b []byte) (*Manifest, error) {
	var m Manifest
	if err := json.Unmarshal(b, &m); err != nil {
		return nil, fmt.Errorf("OCI manifest: %w", err)
	}
	if m.SchemaVersion != 2 || m.MediaType != MediaManifest {
		return nil, fmt.Errorf("OCI manifest: schema %d, media type %q; want 2, %s", m.SchemaVersion, m.MediaType, MediaManifest)
	}
	for _, d := range append([]Descriptor{m.Config}, m.Layers...) {
		if err := manifest.CheckDigest(d.Digest); err != nil {
			return nil, fmt.Errorf("OCI manifest: %w", err)
		}
		if d.Size < 0 {
			return nil, fmt.Errorf("OCI manifest: blob %s of %d bytes", d.Digest, d.Size)
		}
	}
	return &m, nil
}
