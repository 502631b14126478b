// Package image drives a build: from a recipe and its lock to a signed image
// in an OCI layout. It orders the steps, keys the caches and writes the
// manifest; the work itself is done by the packages it imports. It needs root
// (see internal/rootfs) and opens no TPM.
package image

import (
	"context"
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	"github.com/turnout-project/turnout/internal/cas"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/progress"
	"github.com/turnout-project/turnout/internal/recipe"
	"github.com/turnout-project/turnout/internal/rootfs"
	"github.com/turnout-project/turnout/internal/secureboot"
)

// ErrOptions is wrapped by errors of Options that cannot be.
var ErrOptions = errors.New("wrong options")

// Options say what to build.
type Options struct {
	Recipe   *recipe.Recipe
	Lock     *lock.File
	Store    *cas.Store
	Agent    string             // path of the nodeagent program, static and for the image's architecture
	Key      ed25519.PrivateKey // signs the image
	Trust    manifest.Trust     // whom the nodes of this image believe
	Boot     *secureboot.Signer // signs loader and UKIs for Secure Boot; nil: they are not signed
	Out      string             // folder of the OCI layout; an image that is there is replaced
	NoCache  bool               // build everything anew; packages that are in the store are used
	Progress *progress.Reporter // nil: quiet
	Log      *slog.Logger       // nil: quiet
}

// Result is a finished image.
type Result struct {
	Digest   string // of the OCI manifest: the image digest
	Manifest *manifest.Manifest
	Cached   string // why no work was done; "" when it was
}

// build is one run of Build.
type build struct {
	Options
	in    inputs
	facts facts
	trust []byte // trust.json
	tool  string // version of mksquashfs
	work  *workFolder
}

// Build makes the image and writes it to Out, whole or not at all. The same
// recipe, lock, agent and trust give the same bytes.
func Build(ctx context.Context, o Options) (*Result, error) {
	b, err := newBuild(ctx, o)
	if err != nil {
		return nil, err
	}
	defer b.work.remove()
	key := b.key("image", b.in.all)
	if layout, hit := b.lookup(key); hit {
		res, err := b.publish(ctx, layout)
		if err == nil {
			res.Cached = "recipe, lock, node agent, keys and imgbuild are the same as in an earlier build"
			return res, nil
		}
		if ctx.Err() != nil {
			return nil, err
		}
		b.Progress.Note("the earlier build in the store is damaged, building anew: %v", err)
		if err := os.RemoveAll(layout); err != nil {
			return nil, fmt.Errorf("store: %w", err)
		}
	}
	layout, err := b.keep(key, "image", func(path string) error { return b.make(ctx, path) })
	if err != nil {
		return nil, err
	}
	if err := b.remember(); err != nil {
		return nil, err
	}
	return b.publish(ctx, layout)
}

func newBuild(ctx context.Context, o Options) (*build, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if len(o.Key) != ed25519.PrivateKeySize {
		return nil, fmt.Errorf("%w: no image key; make one with `imgbuild keygen` and name it with --key", ErrOptions)
	}
	if err := lock.Check(o.Recipe, o.Lock); err != nil {
		return nil, err
	}
	var err error
	if o.Recipe, err = equip(o.Recipe, o.Lock); err != nil {
		return nil, err
	}
	if err := checkCmdline(o.Recipe); err != nil {
		return nil, err
	}
	if err := checkAgent(o.Agent, o.Recipe.Architecture); err != nil {
		return nil, err
	}
	if err := checkOut(o.Out); err != nil {
		return nil, err
	}
	b := &build{Options: o}
	if b.tool, err = rootfs.SquashfsVersion(ctx); err != nil {
		return nil, err
	}
	if b.trust, err = encodeTrust(o.Trust, o.Key); err != nil {
		return nil, err
	}
	if b.in, err = digestInputs(o.Recipe, o.Lock, o.Agent, b.trust); err != nil {
		return nil, err
	}
	if o.Boot != nil {
		if b.in.all, err = jsonDigest(b.in.all, "Secure Boot", o.Boot.ID()); err != nil {
			return nil, err
		}
		if o.Recipe.Driver.Family != "" { // its modules are signed by that key
			if b.in.root, err = jsonDigest(b.in.root, "modules", o.Boot.ID()); err != nil {
				return nil, err
			}
		}
	}
	if b.facts, err = rootFacts(b.in.rr, o.Lock, b.tool, b.in.agent, b.trust); err != nil {
		return nil, err
	}
	b.work, err = newWorkFolder(filepath.Join(o.Store.Dir(), "work"), o.Recipe.Name)
	return b, err
}

// encodeTrust returns trust.json. Nodes of the image must accept the image
// itself, so the signing key has to be among the trusted ones.
func encodeTrust(t manifest.Trust, key ed25519.PrivateKey) ([]byte, error) {
	keys, err := manifest.ParsePublicKeys([]byte(t.ImageKeys))
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrOptions, err)
	}
	trusted := false
	for _, k := range keys {
		trusted = trusted || k.Equal(key.Public())
	}
	if !trusted {
		return nil, fmt.Errorf("%w: the image would be signed by a key that its own nodes do not trust; add its public key with --image-key", ErrOptions)
	}
	b, err := json.MarshalIndent(t, "", " ")
	return append(b, '\n'), err
}

// key names a result of this build in the store: by its inputs and by the
// programs that make it.
func (b *build) key(kind, inputs string) string {
	return "imgbuild " + kind + " " + inputs + " by " + programDigest() + " and mksquashfs " + b.tool
}

func (b *build) lookup(key string) (string, bool) {
	if b.NoCache {
		return "", false
	}
	return b.Store.GetKey(key)
}

// keep makes a result and stores it under key, or, without caches, leaves it
// in the work folder under name.
func (b *build) keep(key, name string, write func(path string) error) (string, error) {
	if b.NoCache {
		path := b.work.path(name)
		return path, write(path)
	}
	return b.Store.PutKey(key, write)
}

// make builds the unsigned image as an OCI layout at path.
func (b *build) make(ctx context.Context, path string) error {
	if err := Fetch(ctx, b.Store, b.Lock, b.Progress); err != nil {
		return err
	}
	r, err := b.root(ctx)
	if err != nil {
		return err
	}
	p, err := b.bootParts(ctx, r)
	if err != nil {
		return err
	}
	return b.writeLayout(ctx, path, r, p)
}

// Fetch brings the packages and tools of a lock into the store, and what its
// driver is compiled with. If one is
// nowhere to be had, the error wraps *cas.GoneError.
func Fetch(ctx context.Context, store *cas.Store, f *lock.File, r *progress.Reporter) error {
	var items []cas.Item
	seen := map[string]bool{}
	for _, p := range slices.Concat(f.Packages, f.Tools, f.Build) {
		if seen[p.SHA256] {
			continue // image and build root share most packages
		}
		seen[p.SHA256] = true
		items = append(items, cas.Item{Name: p.Name + " " + p.Version, URI: p.URI, SHA256: p.SHA256, Size: p.SizeBytes})
	}
	task := r.Start("fetch packages", progress.Bytes)
	var last cas.Progress
	err := store.Fetch(ctx, items, 0, func(p cas.Progress) {
		last = p
		task.Update(p.Bytes, p.BytesTotal)
	})
	if err != nil {
		task.End("failed")
		return err
	}
	task.End(fmt.Sprintf("%d packages, %s, %s of it fetched", len(items), progress.Size(last.BytesTotal), progress.Size(last.BytesLoaded)))
	return nil
}

// publish writes the signed image to Out.
func (b *build) publish(ctx context.Context, layout string) (*Result, error) {
	src, err := oci.Open(layout)
	if err != nil {
		return nil, fmt.Errorf("built image: %w", err)
	}
	digest, err := src.Resolve("")
	if err != nil {
		return nil, fmt.Errorf("built image: %w", err)
	}
	sig, err := manifest.Sign(b.Key, digest)
	if err != nil {
		return nil, err
	}
	var img *oci.Image
	task := b.Progress.Start("write image", progress.Bytes)
	err = replaceFolder(b.Out, func(dir string) error {
		dst, err := oci.Create(dir)
		if err != nil {
			return err
		}
		if img, err = dst.Copy(ctx, src, digest, func(n int64) { task.Update(n, 0) }); err != nil {
			return err
		}
		return dst.PutSignature(oci.Descriptor{MediaType: oci.MediaManifest, Digest: digest, Size: int64(len(img.Raw))}, sig)
	})
	if err != nil {
		return nil, fmt.Errorf("writing image: %w", err)
	}
	task.End(b.Out)
	return &Result{Digest: digest, Manifest: img.Manifest}, nil
}

// created is the date of everything in the image, RFC 3339.
func (b *build) created() string {
	return time.Unix(b.Lock.SourceDateEpoch, 0).UTC().Format(time.RFC3339)
}
