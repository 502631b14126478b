// Package registry moves images between a layout (package oci) and an OCI
// registry, with their signatures as referrers. What is at the other end
// already is not sent again, so that a transfer which was cut off goes on
// where it was, blob by blob.
package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/opencontainers/go-digest"
	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"
	"oras.land/oras-go/v2/registry/remote/auth"
	"oras.land/oras-go/v2/registry/remote/credentials"
	"oras.land/oras-go/v2/registry/remote/retry"

	"github.com/turnout-project/turnout/internal/buildinfo"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
)

// ErrReference is wrapped by errors of references that cannot be.
var ErrReference = errors.New("reference of an image")

// Options say how to talk to a registry.
type Options struct {
	PlainHTTP bool
	// Progress is told the bytes that are done, those at the other end already
	// included, and the bytes of the whole image. nil: quiet.
	Progress func(done, total int64)
}

// open returns the repository of a reference such as
// "registry.example/turnout/rack-base:1". Credentials are those that
// `docker login` or `oras login` has stored.
func open(ref string, o Options) (*remote.Repository, error) {
	repo, err := remote.NewRepository(ref)
	if err != nil {
		return nil, fmt.Errorf("%w: %q: %w", ErrReference, ref, err)
	}
	if repo.Reference.Reference == "" {
		return nil, fmt.Errorf("%w: %q names no tag; write %s:TAG", ErrReference, ref, ref)
	}
	store, err := credentials.NewStoreFromDocker(credentials.StoreOptions{})
	if err != nil {
		return nil, fmt.Errorf("registry: stored credentials: %w", err)
	}
	client := &auth.Client{Client: retry.DefaultClient, Cache: auth.NewCache(), Credential: credentials.Credential(store)}
	client.SetUserAgent("turnout/" + buildinfo.Version())
	repo.Client, repo.PlainHTTP = client, o.PlainHTTP
	return repo, nil
}

// meter counts what is done.
type meter struct {
	done, total int64
	update      func(done, total int64)
}

func newMeter(o Options, img *oci.Manifest) *meter {
	m := &meter{update: o.Progress, total: img.Config.Size}
	for _, l := range img.Layers {
		m.total += l.Size
	}
	return m
}

func (m *meter) add(n int64) {
	if m.done += n; m.update != nil {
		m.update(m.done, m.total)
	}
}

// reader counts what is read through it.
type reader struct {
	io.Reader
	meter *meter
}

func (r reader) Read(p []byte) (int, error) {
	n, err := r.Reader.Read(p)
	r.meter.add(int64(n))
	return n, err
}

func descriptor(d oci.Descriptor) ocispec.Descriptor {
	return ocispec.Descriptor{MediaType: d.MediaType, Digest: digest.Digest(d.Digest), Size: d.Size}
}

// Push sends an image and its signatures to the registry under a tag.
func Push(ctx context.Context, l *oci.Layout, image, ref string, o Options) error {
	repo, err := open(ref, o)
	if err != nil {
		return err
	}
	img, err := l.Image(image)
	if err != nil {
		return err
	}
	p := &pusher{l: l, repo: repo, meter: newMeter(o, img.OCI)}
	if err := p.blobs(ctx, img.OCI); err != nil {
		return err
	}
	d := descriptor(oci.Descriptor{MediaType: oci.MediaManifest, Digest: img.Digest, Size: int64(len(img.Raw))})
	if err := repo.PushReference(ctx, d, bytes.NewReader(img.Raw), repo.Reference.Reference); err != nil {
		return fmt.Errorf("pushing image %s to %s: %w", image, ref, err)
	}
	return p.signatures(ctx, image)
}

type pusher struct {
	l     *oci.Layout
	repo  *remote.Repository
	meter *meter
}

// blobs sends config and layers, the digest of each checked by the registry.
func (p *pusher) blobs(ctx context.Context, m *oci.Manifest) error {
	for _, d := range append([]oci.Descriptor{m.Config}, m.Layers...) {
		if err := p.blob(ctx, d); err != nil {
			return fmt.Errorf("pushing blob %s (%s): %w", d.Digest, d.MediaType, err)
		}
	}
	return nil
}

func (p *pusher) blob(ctx context.Context, d oci.Descriptor) error {
	there, err := p.repo.Blobs().Exists(ctx, descriptor(d))
	if err != nil {
		return err
	}
	if there {
		p.meter.add(d.Size)
		return nil
	}
	f, err := p.l.Blob(d.Digest)
	if err != nil {
		return err
	}
	defer func() { _ = f.Close() }() // read only
	return p.repo.Blobs().Push(ctx, descriptor(d), reader{f, p.meter})
}

// signatures sends the artefacts that refer to the image.
func (p *pusher) signatures(ctx context.Context, image string) error {
	refs, err := p.l.Referrers(image, manifest.MediaSignature)
	if err != nil {
		return err
	}
	for _, r := range refs {
		raw, err := p.l.ReadBlob(r.Digest)
		if err != nil {
			return err
		}
		var m oci.Manifest
		if err := json.Unmarshal(raw, &m); err != nil {
			return fmt.Errorf("signature %s: %w", r.Digest, err)
		}
		p.meter = &meter{} // a few bytes: not worth showing
		if err := p.blobs(ctx, &m); err != nil {
			return err
		}
		d := descriptor(oci.Descriptor{MediaType: oci.MediaManifest, Digest: r.Digest, Size: int64(len(raw))})
		if err := p.repo.Manifests().Push(ctx, d, bytes.NewReader(raw)); err != nil && !errors.Is(err, errdef.ErrAlreadyExists) {
			return fmt.Errorf("pushing signature %s: %w", r.Digest, err)
		}
	}
	return nil
}
