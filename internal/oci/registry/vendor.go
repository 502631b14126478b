package registry

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"oras.land/oras-go/v2/errdef"
	"oras.land/oras-go/v2/registry/remote"

	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
)

// What a lock was made of, kept in a registry: an artefact whose first layer is
// the lock and whose others are the packages, each by the digest that the lock
// names.
const (
	VendorType   = "application/vnd.turnout.vendor.v1"
	MediaLock    = "application/vnd.turnout.lock.v1+json"
	MediaPackage = "application/vnd.debian.binary-package"
	mediaEmpty   = "application/vnd.oci.empty.v1+json" // OCI image specification 1.1, manifest.md
)

// title is the annotation of a layer's file name.
const title = "org.opencontainers.image.title"

// File is one file of a lock.
type File struct {
	Name      string // of the file
	SHA256    string // 64 hex digits
	SizeBytes int64
	Open      func() (io.ReadCloser, error)
}

// PushVendor sends files and then the lock that names them, under a tag, and
// returns the digest of the artefact. What is there already is not sent again.
// The tag moves once everything is there. The registry checks each digest.
func PushVendor(ctx context.Context, ref, lockName string, lock []byte, files []File, o Options) (string, error) {
	repo, err := open(ref, o)
	if err != nil {
		return "", err
	}
	empty := []byte("{}")
	m := oci.Manifest{SchemaVersion: 2, MediaType: oci.MediaManifest, ArtifactType: VendorType,
		Config: oci.Descriptor{MediaType: mediaEmpty, Digest: manifest.DigestOf(empty), Size: int64(len(empty))}}
	bytesOf := func(b []byte) func() (io.ReadCloser, error) {
		return func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b)), nil }
	}
	add := func(mediaType string, f File) {
		m.Layers = append(m.Layers, oci.Descriptor{MediaType: mediaType, Digest: "sha256:" + f.SHA256, Size: f.SizeBytes, Annotations: map[string]string{title: f.Name}})
	}
	all := []File{{Name: lockName, SHA256: strings.TrimPrefix(manifest.DigestOf(lock), "sha256:"), SizeBytes: int64(len(lock)), Open: bytesOf(lock)}}
	add(MediaLock, all[0])
	for _, f := range files {
		add(MediaPackage, f)
	}
	meter := newMeter(o, &m)
	if err := pushFile(ctx, repo, m.Config, bytesOf(empty), meter); err != nil {
		return "", fmt.Errorf("pushing to %s: %w", ref, err)
	}
	for i, f := range append(all, files...) {
		if err := pushFile(ctx, repo, m.Layers[i], f.Open, meter); err != nil {
			return "", fmt.Errorf("pushing %s to %s: %w", f.Name, ref, err)
		}
	}
	raw, err := json.Marshal(m)
	if err != nil {
		return "", err
	}
	d := descriptor(oci.Descriptor{MediaType: oci.MediaManifest, Digest: manifest.DigestOf(raw), Size: int64(len(raw))})
	if err := repo.PushReference(ctx, d, bytes.NewReader(raw), repo.Reference.Reference); err != nil {
		return "", fmt.Errorf("pushing to %s: %w", ref, err)
	}
	return string(d.Digest), nil
}

// pushFile sends one file, unless it is there.
func pushFile(ctx context.Context, repo *remote.Repository, d oci.Descriptor, open func() (io.ReadCloser, error), m *meter) error {
	there, err := repo.Blobs().Exists(ctx, descriptor(d))
	if err != nil {
		return err
	}
	if there {
		m.add(d.Size)
		return nil
	}
	f, err := open()
	if err != nil {
		return err
	}
	return errors.Join(repo.Blobs().Push(ctx, descriptor(d), reader{f, m}), f.Close())
}

// ReadLock returns the lock of what PushVendor sent under a reference.
func ReadLock(ctx context.Context, ref string, o Options) ([]byte, error) {
	repo, err := open(ref, o)
	if err != nil {
		return nil, err
	}
	d, err := repo.Resolve(ctx, repo.Reference.Reference)
	if err != nil {
		return nil, fmt.Errorf("lock from %s: %w", ref, err)
	}
	_, m, err := (&puller{repo: repo}).manifest(ctx, d)
	if err != nil {
		return nil, fmt.Errorf("lock from %s: %w", ref, err)
	}
	layer, ok := m.Layer(MediaLock)
	if m.ArtifactType != VendorType || !ok || layer.Size > maxManifest {
		return nil, fmt.Errorf("%w: %s holds no lock: its artifact type is %q; `imgbuild vendor --out oci://…` makes one that does", ErrReference, ref, m.ArtifactType)
	}
	if err := manifest.CheckDigest(layer.Digest); err != nil {
		return nil, fmt.Errorf("lock from %s: %w", ref, err)
	}
	r, err := repo.Blobs().Fetch(ctx, descriptor(layer))
	if err != nil {
		return nil, fmt.Errorf("lock from %s: %w", ref, err)
	}
	raw, err := io.ReadAll(io.LimitReader(r, maxManifest))
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, fmt.Errorf("lock from %s: %w", ref, err)
	}
	if got := manifest.DigestOf(raw); got != layer.Digest {
		return nil, fmt.Errorf("lock from %s: the registry sent %s for %s", ref, got, layer.Digest)
	}
	return raw, nil
}

// Blobs are the blobs of a repository.
type Blobs struct {
	repo *remote.Repository
	ref  string
}

// OpenBlobs returns the blobs of the repository of a reference, whose tag does
// not matter. No request is made.
func OpenBlobs(ref string, o Options) (*Blobs, error) {
	repo, err := open(ref, o)
	if err != nil {
		return nil, err
	}
	return &Blobs{repo: repo, ref: ref}, nil
}

// String names the repository.
func (b *Blobs) String() string { return "oci://" + b.ref }

// Open opens the blob of that SHA-256 (64 hex digits) and size. The caller
// checks what it reads. One that is not there is fs.ErrNotExist.
func (b *Blobs) Open(ctx context.Context, sum string, size int64) (io.ReadCloser, error) {
	d := ocispec.Descriptor{MediaType: MediaPackage, Digest: descriptor(oci.Descriptor{Digest: "sha256:" + sum}).Digest, Size: size}
	r, err := b.repo.Blobs().Fetch(ctx, d)
	if errors.Is(err, errdef.ErrNotFound) {
		return nil, fmt.Errorf("not there: %w", fs.ErrNotExist)
	}
	return r, err
}
