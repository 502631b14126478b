package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
)

// maxManifest bounds what is read of a manifest, in bytes.
const maxManifest = 4 << 20

// Pull brings an image and its signatures into the layout, every blob checked
// against its digest, and returns the image digest. The image is listed in
// the layout once it is whole. No signature is verified.
func Pull(ctx context.Context, l *oci.Layout, ref string, o Options) (string, error) {
	repo, err := open(ref, o)
	if err != nil {
		return "", err
	}
	d, err := repo.Resolve(ctx, repo.Reference.Reference)
	if err != nil {
		return "", fmt.Errorf("pulling %s: %w", ref, err)
	}
	p := &puller{l: l, repo: repo}
	raw, m, err := p.manifest(ctx, d)
	if err != nil {
		return "", fmt.Errorf("pulling %s: %w", ref, err)
	}
	if m.ArtifactType != manifest.ArtifactType {
		return "", fmt.Errorf("%w: %s is no image of Turnout: its artifact type is %q", ErrReference, ref, m.ArtifactType)
	}
	p.meter = newMeter(o, m)
	if err := p.blobs(ctx, m); err != nil {
		return "", err
	}
	// Signatures first: who finds the image listed finds them, too.
	if err := p.signatures(ctx, d); err != nil {
		return "", err
	}
	_, err = l.PutRawManifest(raw)
	return string(d.Digest), err
}

type puller struct {
	l     *oci.Layout
	repo  *remote.Repository
	meter *meter
}

// manifest fetches a manifest and checks its digest.
func (p *puller) manifest(ctx context.Context, d ocispec.Descriptor) ([]byte, *oci.Manifest, error) {
	if d.MediaType != oci.MediaManifest {
		return nil, nil, fmt.Errorf("%s is a %s, want a %s", d.Digest, d.MediaType, oci.MediaManifest)
	}
	r, err := p.repo.Manifests().Fetch(ctx, d)
	if err != nil {
		return nil, nil, err
	}
	raw, err := io.ReadAll(io.LimitReader(r, maxManifest))
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, nil, fmt.Errorf("manifest %s: %w", d.Digest, err)
	}
	if got := manifest.DigestOf(raw); got != string(d.Digest) {
		return nil, nil, fmt.Errorf("manifest %s: the registry sent one with the digest %s", d.Digest, got)
	}
	var m oci.Manifest
	if err := json.Unmarshal(raw, &m); err != nil {
		return nil, nil, fmt.Errorf("manifest %s: %w", d.Digest, err)
	}
	return raw, &m, nil
}

func (p *puller) blobs(ctx context.Context, m *oci.Manifest) error {
	for _, d := range append([]oci.Descriptor{m.Config}, m.Layers...) {
		if err := manifest.CheckDigest(d.Digest); err != nil {
			return err
		}
		if err := p.blob(ctx, d); err != nil {
			return fmt.Errorf("pulling blob %s (%s): %w", d.Digest, d.MediaType, err)
		}
	}
	return nil
}

func (p *puller) blob(ctx context.Context, d oci.Descriptor) error {
	if p.l.Has(d.Digest) && p.l.CheckBlob(ctx, d) == nil {
		p.meter.add(d.Size)
		return nil
	}
	r, err := p.repo.Blobs().Fetch(ctx, descriptor(d))
	if err != nil {
		return err
	}
	// One byte more than there should be is enough to tell.
	_, err = p.l.PutBlob(ctx, reader{io.LimitReader(r, d.Size+1), p.meter}, d)
	return errors.Join(err, r.Close())
}

// signatures brings the signatures of the image.
func (p *puller) signatures(ctx context.Context, image ocispec.Descriptor) error {
	var refs []ocispec.Descriptor
	err := p.repo.Referrers(ctx, image, manifest.MediaSignature, func(page []ocispec.Descriptor) error {
		refs = append(refs, page...)
		return nil
	})
	if err != nil {
		return fmt.Errorf("signatures of image %s: %w", image.Digest, err)
	}
	p.meter = &meter{} // a few bytes: not worth showing
	for _, r := range refs {
		raw, m, err := p.manifest(ctx, r)
		if err != nil {
			return fmt.Errorf("signature: %w", err)
		}
		if m.Subject == nil || m.Subject.Digest != string(image.Digest) {
			continue
		}
		if err := p.blobs(ctx, m); err != nil {
			return err
		}
		if _, err := p.l.PutRawManifest(bytes.Clone(raw)); err != nil {
			return err
		}
	}
	return nil
}
