package server

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/store"
)

// image loads a published image; manifests are kept in memory.
func (s *Server) image(digest string) (*oci.Image, error) {
	s.mu.Lock()
	img, bad := s.images[digest], s.broken[digest]
	s.mu.Unlock()
	if img != nil {
		return img, nil
	}
	if bad.err != nil && s.now().Before(bad.until) {
		return nil, bad.err
	}
	img, err := s.Images.Image(digest)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err != nil {
		s.log.Warn("image cannot be read", "image", digest, "err", err)
		s.broken[digest] = unreadable{err, s.now().Add(tryImageAgain)}
		return nil, err
	}
	delete(s.broken, digest)
	s.images[digest] = img
	return img, nil
}

// unreadable is an image that could not be loaded: each attestation asks for
// all of them, and should neither read the disk nor tell it again.
type unreadable struct {
	err   error
	until time.Time
}

const tryImageAgain = 30 * time.Second

// resolve finds the published image that an operator means: by its digest,
// the first digits of it, "name version" or, if only one has it, a name.
func resolve(ctx context.Context, rd store.Reader, ref string) (*fleet.Image, error) {
	all, err := rd.Images(ctx)
	if err != nil {
		return nil, err
	}
	var found []*fleet.Image
	digits := strings.TrimPrefix(ref, "sha256:")
	for _, i := range all {
		if ref == i.Name+" "+i.Version || ref == i.Name || len(digits) >= 4 && strings.HasPrefix(i.Digest, "sha256:"+digits) {
			found = append(found, i)
		}
	}
	switch len(found) {
	case 1:
		return found[0], nil
	case 0:
		return nil, problem(http.StatusNotFound, "`pxeserver image list` shows the published ones", "image %q is not published", ref)
	}
	return nil, problem(http.StatusConflict, "name it by its digest", "%d published images are called %q", len(found), ref)
}

func (s *Server) imageManifest(w http.ResponseWriter, r *http.Request) (any, error) {
	img, err := s.known(r)
	if err != nil {
		return nil, err
	}
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(img.Raw))
	return nil, errAnswered
}

func (s *Server) imageSignature(w http.ResponseWriter, r *http.Request) (any, error) {
	img, err := s.known(r)
	if err != nil {
		return nil, err
	}
	sig, err := s.Images.Signature(img.Digest, s.live().ImageKeys)
	if err != nil {
		return nil, err
	}
	w.Header().Set("Content-Type", "application/octet-stream")
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(sig))
	return nil, errAnswered
}

// imageBlob sends a blob, or a range of it (RFC 9110 section 14).
func (s *Server) imageBlob(w http.ResponseWriter, r *http.Request) (any, error) {
	img, err := s.known(r)
	if err != nil {
		return nil, err
	}
	digest := r.PathValue("blob")
	if !slices.ContainsFunc(blobs(img), func(d oci.Descriptor) bool { return d.Digest == digest }) {
		return nil, problem(http.StatusNotFound, "", "image %s has no blob %q", img.Digest, digest)
	}
	f, err := s.Images.Blob(digest)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	w.Header().Set("Content-Type", "application/octet-stream")
	w.Header().Set("ETag", `"`+digest+`"`)
	http.ServeContent(w, r, "", time.Time{}, f)
	return nil, errAnswered
}

// known returns the image of a request's path, if it is published.
func (s *Server) known(r *http.Request) (*oci.Image, error) {
	if _, err := s.Store.Image(r.Context(), r.PathValue("digest")); err != nil {
		return nil, err
	}
	return s.image(r.PathValue("digest"))
}

func blobs(img *oci.Image) []oci.Descriptor {
	return append([]oci.Descriptor{img.OCI.Config}, img.OCI.Layers...)
}

func (s *Server) listImages(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	is, err := s.Store.Images(r.Context())
	return orEmpty(is), err
}

// showImage answers with an image's manifest and files. It is named as an
// operator would name it.
func (s *Server) showImage(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	i, err := resolve(r.Context(), s.Store, r.PathValue("digest"))
	if err != nil {
		return nil, err
	}
	img, err := s.image(i.Digest)
	if err != nil {
		return nil, err
	}
	out := &api.ImageDetails{Image: *i, Manifest: img.Manifest}
	for _, d := range blobs(img) {
		out.Files = append(out.Files, api.ImageFile{Digest: d.Digest, MediaType: d.MediaType, SizeBytes: d.Size, Title: d.Annotations["org.opencontainers.image.title"]})
	}
	return out, nil
}

func (s *Server) hasBlob(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	if d := r.PathValue("digest"); !s.Images.Has(d) {
		return nil, problem(http.StatusNotFound, "", "blob %q is not here", d)
	}
	return nil, nil
}

func (s *Server) putBlob(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	d := r.PathValue("digest")
	if err := manifest.CheckDigest(d); err != nil {
		return nil, problem(http.StatusBadRequest, "", "%v", err)
	}
	body := &failingReader{r: r.Body}
	_, err := s.Images.PutBlob(r.Context(), body, oci.Descriptor{Digest: d})
	switch {
	case err == nil:
		return nil, nil
	case body.err != nil: // the upload broke off: theirs to repeat
		return nil, problem(http.StatusBadRequest, "send it again", "upload of %s broke off: %v", d, body.err)
	case !s.Images.Has(d) && strings.Contains(err.Error(), "want"):
		return nil, problem(http.StatusUnprocessableEntity, "the file is damaged or not the one it is named for", "%v", err)
	}
	return nil, err
}

// failingReader remembers why reading ended, other than at the end.
type failingReader struct {
	r   io.Reader
	err error
}

func (f *failingReader) Read(p []byte) (int, error) {
	n, err := f.r.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		f.err = err
	}
	return n, err
}

// publish makes an image known: its signature holds, and every blob is here.
func (s *Server) publish(w http.ResponseWriter, r *http.Request, actor string) (any, error) {
	req, err := body[api.PublishRequest](w, r)
	if err != nil {
		return nil, err
	}
	digest := manifest.DigestOf(req.Manifest)
	if err := manifest.Verify(s.live().ImageKeys, digest, req.Signature); err != nil {
		return nil, problem(http.StatusForbidden, "sign it with a key whose public half is in image_keys", "%v", err)
	}
	img, err := s.takeImage(req, digest)
	if err != nil {
		return nil, err
	}
	out := &fleet.Image{
		Digest: digest, Name: img.Manifest.Name, Version: img.Manifest.Version, Kernel: img.Manifest.Kernel.Release,
		SizeBytes: img.Manifest.Root.SizeBytes + img.Manifest.Verity.SizeBytes + img.Manifest.UKI.SizeBytes, Published: s.now(),
	}
	err = s.update(r.Context(), func(tx store.Tx) error {
		if old, err := tx.Image(r.Context(), digest); err == nil {
			out = old // published before: nothing new
			return nil
		}
		return errors.Join(tx.PutImage(r.Context(), out), tx.AppendEvent(r.Context(), &fleet.Event{At: s.now(), Actor: actor,
			Kind: "image.published", Message: fmt.Sprintf("%s (%s), %d MiB", img.Manifest.Label(), manifest.Short(digest), out.SizeBytes>>20)}))
	})
	return out, err
}

// takeImage checks that an image is whole and lists it in the image store.
// A crash in between leaves blobs that a second try makes use of.
func (s *Server) takeImage(req *api.PublishRequest, digest string) (*oci.Image, error) {
	if _, err := s.Images.PutBytes(oci.MediaManifest, req.Manifest); err != nil {
		return nil, err
	}
	unfit := func(format string, a ...any) error {
		return problem(http.StatusUnprocessableEntity, "", "image %s: %s", manifest.Short(digest), fmt.Sprintf(format, a...))
	}
	img, err := s.Images.Image(digest)
	if err != nil {
		return nil, unfit("%v", err)
	}
	have := map[string]bool{}
	for _, d := range blobs(img) {
		f, err := s.Images.Blob(d.Digest)
		if err != nil {
			return nil, unfit("blob %s was not sent", d.Digest)
		}
		fi, err := f.Stat()
		f.Close()
		if err != nil || fi.Size() != d.Size {
			return nil, unfit("blob %s has another size than its manifest says", d.Digest)
		}
		have[d.Digest] = true
	}
	m := img.Manifest
	for what, b := range map[string]manifest.Blob{"root": m.Root, "verity tree": m.Verity.Blob, "UKI": m.UKI, "installer": m.Installer, "loader": m.Loader} {
		if !have[b.Digest] {
			return nil, unfit("its %s %q is not among its layers", what, b.Digest)
		}
	}
	desc := oci.Descriptor{MediaType: oci.MediaManifest, Digest: digest, Size: int64(len(req.Manifest))}
	if _, err := s.Images.Signature(digest, s.live().ImageKeys); err != nil {
		if err := s.Images.PutSignature(desc, req.Signature); err != nil {
			return nil, err
		}
	}
	_, err = s.Images.PutRawManifest(req.Manifest)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.broken, digest)
	return img, err
}
