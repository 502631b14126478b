package image

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
)

// maxList bounds what is read of a list in an image, in bytes.
const maxList = 64 << 20

// PackageList returns the packages of an image, as its lock named them.
func PackageList(l *oci.Layout, img *oci.Image) ([]lock.Package, error) {
	raw, err := readLayer(l, img, manifest.MediaPackageList)
	if err != nil {
		return nil, err
	}
	var ps []lock.Package
	if err := json.Unmarshal(raw, &ps); err != nil {
		return nil, fmt.Errorf("package list of image %s: %w", img.Digest, err)
	}
	return ps, nil
}

// SPDX returns the software bill of materials that the image carries, SPDX 2.3
// as JSON.
func SPDX(l *oci.Layout, img *oci.Image) ([]byte, error) {
	return readLayer(l, img, manifest.MediaSBOM)
}

// readLayer returns a small layer of an image, its digest checked.
func readLayer(l *oci.Layout, img *oci.Image, mediaType string) ([]byte, error) {
	desc, ok := img.OCI.Layer(mediaType)
	if !ok {
		return nil, fmt.Errorf("image %s has no %s", img.Digest, mediaType)
	}
	f, err := l.Blob(desc.Digest)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // read only
	raw, err := io.ReadAll(io.LimitReader(f, maxList))
	if err != nil {
		return nil, fmt.Errorf("%s of image %s: %w", mediaType, img.Digest, err)
	}
	if got := manifest.DigestOf(raw); got != desc.Digest {
		return nil, &VerifyError{img.Digest, []string{fmt.Sprintf("%s is damaged: its digest is %s, not %s", mediaType, got, desc.Digest)}}
	}
	return raw, nil
}
