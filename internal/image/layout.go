package image

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"runtime"

	"github.com/turnout-project/turnout/internal/buildinfo"
	"github.com/turnout-project/turnout/internal/cdc"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
)

// writeLayout stores all parts of the image, unsigned, as an OCI layout.
func (b *build) writeLayout(ctx context.Context, dir string, r root, p *parts) error {
	l, err := oci.Create(dir)
	if err != nil {
		return err
	}
	held := *b.Lock
	held.Packages = r.packages
	bill, err := sbom(&held, b.Recipe.Version, b.in.all)
	if err != nil {
		return err
	}
	packages, err := json.MarshalIndent(r.packages, "", " ")
	if err != nil {
		return err
	}
	w := layoutWriter{ctx: ctx, l: l}
	root := w.file(manifest.MediaRoot, "root.squashfs", r.squashfs)
	tree := w.file(manifest.MediaVerity, "root.verity", p.verityFile)
	uki := w.bytes(manifest.MediaUKI, "slot.efi", p.uki)
	installer := w.bytes(manifest.MediaInstaller, "installer.efi", p.installer)
	loader := w.bytes(manifest.MediaLoader, "systemd-boot.efi", p.loader)
	w.bytes(manifest.MediaSBOM, "sbom.spdx.json", bill)
	w.bytes(manifest.MediaPackageList, "packages.json", packages)
	w.index(root, func() (io.ReadCloser, error) { return os.Open(r.squashfs) })
	w.index(uki, func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(p.uki)), nil })
	if w.err != nil {
		return w.err
	}
	if root.Digest != p.rootBlob.Digest {
		return fmt.Errorf("root file system changed while it was read: %s, then %s", p.rootBlob.Digest, root.Digest)
	}
	m := b.manifest(r, p)
	m.Verity.Blob = blobOf(tree)
	m.UKI, m.Installer, m.Loader = blobOf(uki), blobOf(installer), blobOf(loader)
	config, err := m.Encode()
	if err != nil {
		return err
	}
	cd, err := l.PutBytes(manifest.MediaConfig, config)
	if err != nil {
		return err
	}
	_, err = l.PutManifest(oci.Manifest{
		ArtifactType: manifest.ArtifactType, Config: cd, Layers: w.layers,
		Annotations: map[string]string{
			"org.opencontainers.image.title":   b.Recipe.Name,
			"org.opencontainers.image.version": b.Recipe.Version,
			"org.opencontainers.image.created": b.created(),
		},
	})
	return err
}

// manifest describes the image but for the blobs of its boot files.
func (b *build) manifest(r root, p *parts) *manifest.Manifest {
	kernel, _ := lock.Find(b.Lock.Packages, b.Lock.Kernel) // lock.Read saw to it
	return &manifest.Manifest{
		SchemaVersion: manifest.Version,
		Name:          b.Recipe.Name, Version: b.Recipe.Version, Architecture: b.Recipe.Architecture,
		RecipeDigest: b.Recipe.Digest, LockDigest: b.in.lock, SourceDateEpoch: b.Lock.SourceDateEpoch,
		Kernel:       manifest.Kernel{Release: r.release, Package: kernel.Name, Version: kernel.Version},
		Root:         p.rootBlob,
		Verity:       p.verity,
		Measurements: p.measurements,
		Health:       b.Recipe.Health,
		Boot:         b.Recipe.Boot,
		Disk:         b.Recipe.Disk,
		Tools:        map[string]string{"mksquashfs": b.tool, "imgbuild": buildinfo.Version(), "go": runtime.Version()},
	}
}

func blobOf(d oci.Descriptor) manifest.Blob {
	return manifest.Blob{Digest: d.Digest, SizeBytes: d.Size}
}

// layoutWriter stores layers until the first error.
type layoutWriter struct {
	ctx    context.Context
	l      *oci.Layout
	layers []oci.Descriptor
	err    error
}

func (w *layoutWriter) put(mediaType, title string, r io.Reader) oci.Descriptor {
	if w.err != nil {
		return oci.Descriptor{}
	}
	var d oci.Descriptor
	d, w.err = w.l.PutBlob(w.ctx, r, oci.Descriptor{MediaType: mediaType, Annotations: map[string]string{oci.AnnotationTitle: title}})
	w.layers = append(w.layers, d)
	return d
}

func (w *layoutWriter) bytes(mediaType, title string, b []byte) oci.Descriptor {
	return w.put(mediaType, title, bytes.NewReader(b))
}

func (w *layoutWriter) file(mediaType, title, path string) oci.Descriptor {
	f, err := os.Open(path)
	if err != nil {
		w.err = err
		return oci.Descriptor{}
	}
	defer func() { _ = f.Close() }() // read only
	return w.put(mediaType, title, f)
}

// index stores the chunk index of a layer, from which nodes learn what of it
// they have already.
func (w *layoutWriter) index(of oci.Descriptor, open func() (io.ReadCloser, error)) {
	if w.err != nil {
		return
	}
	var f io.ReadCloser
	if f, w.err = open(); w.err != nil {
		return
	}
	defer func() { _ = f.Close() }() // read only
	var x []byte
	if x, w.err = cdc.Index(f); w.err != nil {
		return
	}
	var d oci.Descriptor
	d, w.err = w.l.PutBlob(w.ctx, bytes.NewReader(x), oci.Descriptor{MediaType: manifest.MediaChunkIndex, Annotations: map[string]string{
		oci.AnnotationTitle: of.Annotations[oci.AnnotationTitle] + ".chunks", manifest.AnnotationChunksOf: of.Digest,
	}})
	w.layers = append(w.layers, d)
}
