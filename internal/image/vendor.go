package image

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"

	"github.com/turnout-project/turnout/internal/cas"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/oci/registry"
	"github.com/turnout-project/turnout/internal/progress"
)

// Vendor copies every artefact of a lock into dir, a store of its own, and
// the lock beside them as name. What the store lacks is fetched. It returns
// the number of files and of bytes. An error leaves the files that arrived,
// and no lock that was not there before.
func Vendor(ctx context.Context, store *cas.Store, f *lock.File, dir, name string, r *progress.Reporter) (files int, bytes int64, err error) {
	all := slices.Concat(f.Packages, f.Tools, f.Build)
	if err := Fetch(ctx, store, &lock.File{Packages: all}, r); err != nil {
		return 0, 0, err
	}
	to, err := cas.Open(dir)
	if err != nil {
		return 0, 0, err
	}
	task := r.Start("copy packages", progress.Bytes)
	defer task.End("")
	once := distinct(all)
	var total int64
	for _, p := range once {
		total += p.SizeBytes
	}
	for _, p := range once {
		if err := vendorOne(ctx, store, to, p); err != nil {
			return files, bytes, fmt.Errorf("package %s %s: %w", p.Name, p.Version, err)
		}
		files, bytes = files+1, bytes+p.SizeBytes
		task.Update(bytes, total)
	}
	return files, bytes, lock.Write(filepath.Join(dir, name), f)
}

// distinct returns the packages of different bytes: image and build root share
// most.
func distinct(all []lock.Package) []lock.Package {
	seen := map[string]bool{}
	var out []lock.Package
	for _, p := range all {
		if !seen[p.SHA256] {
			seen[p.SHA256] = true
			out = append(out, p)
		}
	}
	return out
}

// VendorRegistry is Vendor into a registry: it returns the digest of the
// artefact. Packages that are there are not sent again.
func VendorRegistry(ctx context.Context, store *cas.Store, f *lock.File, ref, name string, o registry.Options, r *progress.Reporter) (digest string, files int, bytes int64, err error) {
	all := slices.Concat(f.Packages, f.Tools, f.Build)
	if err := Fetch(ctx, store, &lock.File{Packages: all}, r); err != nil {
		return "", 0, 0, err
	}
	raw, err := lock.Encode(f)
	if err != nil {
		return "", 0, 0, err
	}
	var send []registry.File
	for _, p := range distinct(all) {
		bytes += p.SizeBytes
		send = append(send, registry.File{Name: p.FileName(), SHA256: p.SHA256, SizeBytes: p.SizeBytes,
			Open: func() (io.ReadCloser, error) {
				if err := store.Verify(p.SHA256, p.SizeBytes); err != nil {
					return nil, err
				}
				return os.Open(store.Path(p.SHA256))
			}})
	}
	task := r.Start("send packages", progress.Bytes)
	defer task.End("")
	o.Progress = task.Update
	digest, err = registry.PushVendor(ctx, ref, name, raw, send, o)
	return digest, len(send), bytes, err
}

// vendorOne copies one package, unless it is there in good order.
func vendorOne(ctx context.Context, from, to *cas.Store, p lock.Package) error {
	if to.Has(p.SHA256) && to.Verify(p.SHA256, p.SizeBytes) == nil {
		return nil
	}
	f, err := os.Open(from.Path(p.SHA256))
	if err != nil {
		return err
	}
	return errors.Join(to.Put(ctx, p.SHA256, p.SizeBytes, f), f.Close())
}
