package install

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"sync"

	"github.com/turnout-project/turnout/internal/abslot"
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
}

// Progress is told how far an installation is. Percent rises from 0 to 100
// over the whole of it.
type Progress func(step string, percent int)

// The steps that Progress hears of.
const (
	StepRoot   = "writing root"
	StepVerity = "writing verity tree"
	StepVerify = "reading back"
	StepUKI    = "writing UKI"
)

// Run installs an image into a slot and leaves it staged. When it fails or is
// cut, the slot cannot be booted, and running it again finishes the work:
// chunks that are there already are not fetched again. progress may be nil.
func Run(ctx context.Context, src Source, im *Image, t Target, progress Progress) error {
	m := im.Manifest
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
	if err := copyBlob(ctx, src, im.Digest, m.Root, root, scaled(progress, StepRoot, 0, 70, m.Root.SizeBytes)); err != nil {
		return err
	}
	if err := copyBlob(ctx, src, im.Digest, m.Verity.Blob, tree, scaled(progress, StepVerity, 70, 72, m.Verity.SizeBytes)); err != nil {
		return err
	}
	if err := readBack(ctx, im, root, tree, scaled(progress, StepVerify, 72, 95, m.Root.SizeBytes)); err != nil {
		return err
	}
	progress(StepUKI, 95)
	if err := stage(ctx, src, im, t); err != nil {
		return err
	}
	progress(StepUKI, 100)
	return nil
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
	body := src.Blob(ctx, im.Digest, m.UKI.Digest, 0, m.UKI.SizeBytes)
	defer body.Close()
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
