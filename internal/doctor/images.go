package doctor

import (
	"errors"

	"github.com/turnout-project/turnout/internal/oci"
)

// Images examines an image store: is every part of every published image
// there, with its size? Contents are not read: that takes minutes.
func Images(dir string) Finding {
	const check = "image store"
	l, err := oci.Open(dir)
	if errors.Is(err, oci.ErrNotFound) {
		return ok(check, "empty: publish an image with `pxeserver image publish`")
	}
	if err != nil {
		return failure(check, "publish the images again into an empty folder", "%v", err)
	}
	ds, err := l.Images()
	if err != nil {
		return failure(check, "publish the images again into an empty folder", "%v", err)
	}
	for _, d := range ds {
		img, err := l.Image(d.Digest)
		if err != nil {
			return failure(check, "publish that image again", "%v", err)
		}
		for _, part := range append([]oci.Descriptor{img.OCI.Config}, img.OCI.Layers...) {
			f, err := l.Blob(part.Digest)
			if err != nil {
				return failure(check, "publish that image again", "image %s %s: %v", img.Manifest.Name, img.Manifest.Version, err)
			}
			st, err := f.Stat()
			f.Close()
			if err != nil || st.Size() != part.Size {
				return failure(check, "publish that image again", "image %s %s: %s is damaged", img.Manifest.Name, img.Manifest.Version, part.Digest)
			}
		}
	}
	return ok(check, "%d images, every part of them there", len(ds))
}
