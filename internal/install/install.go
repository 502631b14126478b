package install

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"sync/atomic"

	"golang.org/x/sync/errgroup"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/verity"
)

// Slots is the part of the slot state machine that an installation needs;
// *abslot.Machine is one.
type Slots interface {
	Begin(ctx context.Context, s fleet.Slot) error
	Stage(ctx context.Context, s fleet.Slot, in abslot.Staged) error
}

// Target is where an image goes.
type Target struct {
	Slots        Slots
	Slot         fleet.Slot
	Root, Verity string // partition devices, or files
	// OtherRoot is the root partition of the other slot, or "". It is read
	// only: what it shares with the image is not fetched.
	OtherRoot string
	Pace      Pace // of a system that works meanwhile

	fetching, disks *pacer
}

// ukis is implemented by Slots that give the UKI of a slot for reading.
type ukis interface {
	OpenUKI(ctx context.Context, s fleet.Slot) (abslot.ReadAtCloser, int64, error)
}

// Progress is told how far an installation is. Percent rises from 0 to 100
// over the whole of it.
type Progress func(step string, percent int)

// The steps that Progress hears of.
const (
	StepRoot   = "writing root"
	StepVerify = "reading back"
	StepUKI    = "writing UKI"
)

// Run installs an image into a slot and leaves it staged. When it fails or is
// cut, the slot cannot be booted, and running it again finishes the work:
// chunks that are there already are not fetched again. progress may be nil.
func Run(ctx context.Context, src Source, im *Image, t Target, progress Progress) error {
	m := im.Manifest
	t.fetching, t.disks = newPacer(t.Pace.Fetch), newPacer(t.Pace.Disk)
	if progress == nil {
		progress = func(string, int) {}
	}
	root, err := OpenDevice(t.Root)
	if err != nil {
		return err
	}
	defer root.Close()
	tree, err := OpenDevice(t.Verity)
	if err != nil {
		return err
	}
	defer tree.Close()
	root, tree = paced(ctx, root, t.disks), paced(ctx, tree, t.disks)
	for _, x := range []struct {
		dev  Device
		need int64
		name string
	}{{root, m.Root.SizeBytes, t.Root}, {tree, m.Verity.SizeBytes, t.Verity}} {
		if x.need > x.dev.Size() {
			return fmt.Errorf("%w: it needs %d bytes, partition %s has %d; reinstall the node with larger slots", ErrRefused, x.need, x.name, x.dev.Size())
		}
	}
	if err := t.Slots.Begin(ctx, t.Slot); err != nil {
		return err
	}
	if err := writeSlot(ctx, src, im, t, root, tree, progress); err != nil {
		return err
	}
	progress(StepUKI, 95)
	if err := stage(ctx, src, im, t); err != nil {
		return err
	}
	progress(StepUKI, 100)
	return nil
}

// writeSlot writes root and verity tree and reads both back from the medium.
// Every byte is hashed once, when it was read back: the root hash covers all
// of it. Only what does not come out right is looked at piece by piece.
// Where the medium can be read around the kernel's cache, what was flushed is
// read back while the rest is still on its way.
func writeSlot(ctx context.Context, src Source, im *Image, t Target, root, tree Device, progress Progress) error {
	size := im.Manifest.Root.SizeBytes
	var isWritten atomic.Bool
	reading := scaled(progress, StepVerify, 70, 95, size)
	behind := newFollower(root)
	var isRight bool
	var failed error // of writing: readers fail with it
	g, gctx := errgroup.WithContext(ctx)
	g.Go(func() error {
		var flushed func(int64)
		if d, ok := root.(interface{ isDirect() bool }); ok && d.isDirect() {
			flushed = func(n int64) { behind.advance(n, nil) }
		}
		err := writeRoot(gctx, src, im, t, root, scaled(progress, StepRoot, 0, 70, size), flushed)
		if err == nil {
			if err = errors.Join(root.Sync(), root.Forget()); err != nil {
				err = fmt.Errorf("flushing the slot: %w", err)
			}
		}
		isWritten.Store(err == nil)
		if failed = err; err == nil {
			behind.advance(size, nil)
		} else {
			behind.advance(0, err)
		}
		return err
	})
	g.Go(func() (err error) {
		isRight, err = growTree(gctx, im, behind, tree, func(n int64) {
			if isWritten.Load() {
				reading(n)
			}
		})
		return err
	})
	err := g.Wait()
	if failed != nil && errors.Is(err, failed) {
		return failed
	}
	if err != nil || isRight {
		return err
	}
	// Something came or was kept damaged, or this program does not make the
	// image's tree: the slot is held against the signed description piece by
	// piece, and then against the signed tree.
	if im.Manifest.Root.ChunkSize > 0 {
		if err := mend(ctx, src, im.Digest, im.Manifest.Root, root, t.fetching); err != nil {
			return err
		}
	}
	if err := copyBlob(ctx, src, im.Digest, im.Manifest.Verity.Blob, tree, t.fetching); err != nil {
		return err
	}
	return readBack(ctx, im, root, tree, reading)
}

// writeRoot fetches what neither the other slot nor what was in this one
// before can give. The slot itself is the lesser seed: it is written over.
func writeRoot(ctx context.Context, src Source, im *Image, t Target, root Device, progress, flushed func(int64)) error {
	b := im.Manifest.Root
	seeds := []Seed{{root, min(root.Size(), 2*b.SizeBytes)}}
	if t.OtherRoot != "" {
		if f, err := os.Open(t.OtherRoot); err == nil { // without it more is fetched
			defer f.Close()
			if g, err := disk.GeometryOf(f); err == nil {
				seeds = append(seeds, Seed{pacedReader{f, ctx, t.disks}, min(g.SizeBytes, 2*b.SizeBytes)})
			}
		}
	}
	return copyUnchecked(ctx, src, im.Digest, b, root, newDelta(ctx, src, im, b, seeds), t.fetching, progress, flushed)
}

// growTree reads the root back and writes the verity tree that it makes. It reports whether root and tree are those of the
// image: the root hash is the signed one, and the tree, read back as well, has
// the digest that the image names.
func growTree(ctx context.Context, im *Image, root io.ReaderAt, tree Device, progress func(int64)) (bool, error) {
	v := im.Manifest.Verity
	p := verity.Params{Progress: progress}
	var err error
	if p.Salt, err = hex.DecodeString(v.Salt); err != nil || v.HashAlgorithm != "sha256" {
		return false, nil
	}
	id, err := hex.DecodeString(strings.ReplaceAll(v.UUID, "-", ""))
	if err != nil || copy(p.UUID[:], id) != len(p.UUID) {
		return false, nil
	}
	res, err := verity.Build(ctx, root, im.Manifest.Root.SizeBytes, tree, p)
	if err != nil {
		return false, fmt.Errorf("reading the slot back: %w", err)
	}
	if hex.EncodeToString(res.RootHash[:]) != im.RootHash || res.SizeBytes != v.SizeBytes {
		return false, nil
	}
	if err := errors.Join(tree.Sync(), tree.Forget()); err != nil {
		return false, fmt.Errorf("flushing the slot: %w", err)
	}
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(tree, 0, v.SizeBytes)); err != nil {
		return false, fmt.Errorf("reading the verity tree back: %w", err)
	}
	return "sha256:"+hex.EncodeToString(sum.Sum(nil)) == v.Digest, nil
}

// readBack flushes, drops the caches and reads the whole slot from the
// medium against the signed root hash.
func readBack(ctx context.Context, im *Image, root, tree Device, progress func(int64)) error {
	hash, err := hex.DecodeString(im.RootHash)
	if err != nil {
		return fmt.Errorf("%w: root hash %q", ErrRefused, im.RootHash)
	}
	for _, d := range []Device{root, tree} {
		if err := errors.Join(d.Sync(), d.Forget()); err != nil {
			return fmt.Errorf("flushing the slot: %w", err)
		}
	}
	if _, err := verity.Verify(ctx, root, tree, hash, verity.VerifyOptions{Progress: progress}); err != nil {
		return fmt.Errorf("the slot does not read back as it was written: %w", err)
	}
	return nil
}

// stage hands the UKI and the record to the state machine.
func stage(ctx context.Context, src Source, im *Image, t Target) error {
	m := im.Manifest
	record, err := im.Encode()
	if err != nil {
		return err
	}
	sum, err := hex.DecodeString(strings.TrimPrefix(m.UKI.Digest, "sha256:"))
	if err != nil {
		return fmt.Errorf("%w: UKI digest %q", ErrRefused, m.UKI.Digest)
	}
	body := &copier{ctx: ctx, src: src, image: im.Digest, blob: m.UKI, pace: t.fetching}
	defer body.drop()
	if o, canOpen := t.Slots.(ukis); canOpen {
		if f, size, err := o.OpenUKI(ctx, t.Slot.Other()); err == nil { // without it more is fetched
			defer f.Close()
			body.delta = newDelta(ctx, src, im, m.UKI, []Seed{{f, size}})
		}
	}
	return t.Slots.Stage(ctx, t.Slot, abslot.Staged{
		Short: manifest.Short(im.Digest), RootHash: im.RootHash,
		UKI: body, UKISize: m.UKI.SizeBytes, UKISHA256: sum, Manifest: record,
	})
}

// scaled turns bytes of one step into percent of the whole, told only when
// they change.
func scaled(p Progress, step string, from, to int, total int64) func(int64) {
	var mu sync.Mutex // verifying reports from several goroutines
	last := -1
	return func(n int64) {
		percent := from + int(int64(to-from)*min(n, total)/max(total, 1))
		mu.Lock()
		defer mu.Unlock()
		if percent > last {
			last = percent
			p(step, percent)
		}
	}
}
