// Package install brings an image onto a slot: it checks the signature,
// streams root and verity tree into the slot's partitions, reads all of it
// back from the medium, and stages the UKI. It trusts neither the transport
// nor the disk, and needs a few chunks of memory, whatever the image's size.
//
// It never arms a slot: that is the caller's last step.
package install

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"runtime"

	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
)

// Source is where images come from; api.NodeClient is one. Nothing it gives
// is believed. Blob continues by itself after broken connections; its reader
// fails when that does not help.
type Source interface {
	ImageManifest(ctx context.Context, image string) ([]byte, error)
	ImageSignature(ctx context.Context, image string) ([]byte, error)
	Blob(ctx context.Context, image, blob string, offset, size int64) io.ReadCloser
}

// ErrRefused is wrapped by errors that will not go away by trying again: the
// image is not signed by a trusted key, is made for other machines, or does
// not fit.
var ErrRefused = errors.New("image refused")

// maxConfig bounds the description of an image, in bytes.
const maxConfig = 64 << 20

// Image is an image whose signature and description were checked.
type Image struct {
	Record
	Manifest *manifest.Manifest
}

// Record is the copy of a signed image description that a node keeps on its
// ESP, as JSON. RootHash and Label repeat what the config says, for programs
// that do not want to check signatures; everything else is checked by Open.
type Record struct {
	Digest    string `json:"digest"`
	Label     string `json:"label"`
	RootHash  string `json:"rootHash"`
	Signature []byte `json:"signature"` // over Digest, see manifest.Verify
	OCI       []byte `json:"oci"`       // the OCI manifest, whose SHA-256 is Digest
	Config    []byte `json:"config"`    // the image manifest, named by OCI
}

// Fetch gets an image's description and checks it against keys.
func Fetch(ctx context.Context, src Source, digest string, keys []ed25519.PublicKey) (*Image, error) {
	if err := manifest.CheckDigest(digest); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	r := Record{Digest: digest}
	var err error
	if r.Signature, err = src.ImageSignature(ctx, digest); err != nil {
		return nil, err
	}
	if r.OCI, err = src.ImageManifest(ctx, digest); err != nil {
		return nil, err
	}
	m, err := r.signed(keys)
	if err != nil {
		return nil, err
	}
	if m.Config.Size <= 0 || m.Config.Size > maxConfig {
		return nil, fmt.Errorf("%w: description of %d bytes", ErrRefused, m.Config.Size)
	}
	body := src.Blob(ctx, digest, m.Config.Digest, 0, m.Config.Size)
	r.Config, err = io.ReadAll(io.LimitReader(body, m.Config.Size))
	if err = errors.Join(err, body.Close()); err != nil {
		return nil, fmt.Errorf("fetching the description of image %s: %w", digest, err)
	}
	return r.Open(keys)
}

// signed checks signature and digest of the OCI manifest and parses it.
func (r *Record) signed(keys []ed25519.PublicKey) (*oci.Manifest, error) {
	if err := manifest.Verify(keys, r.Digest, r.Signature); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if got := manifest.DigestOf(r.OCI); got != r.Digest {
		return nil, fmt.Errorf("%w: its OCI manifest has digest %s, want %s", ErrRefused, got, r.Digest)
	}
	var m oci.Manifest
	if err := json.Unmarshal(r.OCI, &m); err != nil {
		return nil, fmt.Errorf("%w: OCI manifest: %w", ErrRefused, err)
	}
	return &m, nil
}

// Open checks a record from the signature down to the image manifest.
func (r *Record) Open(keys []ed25519.PublicKey) (*Image, error) {
	m, err := r.signed(keys)
	if err != nil {
		return nil, err
	}
	if got := manifest.DigestOf(r.Config); got != m.Config.Digest {
		return nil, fmt.Errorf("%w: its description has digest %s, want %s", ErrRefused, got, m.Config.Digest)
	}
	im, err := manifest.Decode(r.Config)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if im.Architecture != runtime.GOARCH {
		return nil, fmt.Errorf("%w: it is for %s, this machine is %s", ErrRefused, im.Architecture, runtime.GOARCH)
	}
	for _, b := range []manifest.Blob{im.Root, im.Verity.Blob, im.UKI} {
		if err := checkBlob(b); err != nil {
			return nil, err
		}
	}
	r.Label, r.RootHash = im.Label(), im.Verity.RootHash
	return &Image{Record: *r, Manifest: im}, nil
}

// maxChunk bounds the memory of an installation: a few chunks are held.
const maxChunk = 16 << 20

// checkBlob refuses what could not be installed with bounded memory.
func checkBlob(b manifest.Blob) error {
	if err := manifest.CheckDigest(b.Digest); err != nil {
		return fmt.Errorf("%w: %w", ErrRefused, err)
	}
	if b.SizeBytes <= 0 || b.ChunkSize < 0 || b.ChunkSize > maxChunk {
		return fmt.Errorf("%w: blob %s of %d bytes in chunks of %d", ErrRefused, b.Digest, b.SizeBytes, b.ChunkSize)
	}
	if b.ChunkSize > 0 && int64(len(b.Chunks)) != (b.SizeBytes+b.ChunkSize-1)/b.ChunkSize {
		return fmt.Errorf("%w: blob %s lists %d chunks for %d bytes", ErrRefused, b.Digest, len(b.Chunks), b.SizeBytes)
	}
	return nil
}

// Encode returns the record as it is kept on the ESP.
func (r *Record) Encode() ([]byte, error) { return json.Marshal(r) }

// DecodeRecord reads a record. Nothing of it is checked: see Open.
func DecodeRecord(b []byte) (*Record, error) {
	var r Record
	if err := json.Unmarshal(b, &r); err != nil {
		return nil, fmt.Errorf("image record: %w", err)
	}
	return &r, nil
}
