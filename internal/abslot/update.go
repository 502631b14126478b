package abslot

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Begin makes a slot ready to be written: before it returns, no loader can
// start the slot, and its old UKI is gone from the ESP. Call it before the
// first byte of the slot's partitions is written. Repeating it is harmless.
//
// Guards: evidence agrees, the slot is not booted, the booted one is good.
func (m *Machine) Begin(ctx context.Context, s fleet.Slot) error {
	v, unlock, err := m.open(ctx)
	if err != nil {
		return fmt.Errorf("beginning to write slot %s: %w", s, err)
	}
	defer unlock()
	if err := m.begin(ctx, v, s); err != nil {
		return fmt.Errorf("beginning to write slot %s: %w", s, err)
	}
	return nil
}

func (m *Machine) begin(ctx context.Context, v *view, s fleet.Slot) error {
	if err := v.mayWrite(s); err != nil {
		return err
	}
	was := v.Slot(s)
	if _, err := Next(was.State, EventBegin); err != nil {
		return err
	}
	var retired []string
	for _, n := range v.boot[s.Index()] {
		retired = append(retired, LinuxDir+"/"+n.String())
	}
	retired = append(retired, v.Strays...)
	for i, path := range retired {
		to := retiredPath(path)
		if err := m.cfg.ESP.Remove(ctx, to); err != nil { // of an earlier, interrupted Begin
			return fmt.Errorf("removing %s: %w", to, err)
		}
		if err := m.cfg.ESP.Rename(ctx, path, to); err != nil {
			return fmt.Errorf("making %s unbootable: %w", path, err)
		}
		retired[i] = to
	}
	m.note(ctx, func(j *journal) {
		if was.State == fleet.SlotBad {
			if _, known := j.banned(was.Short); !known {
				j.ban(Ban{Short: was.Short, Generation: was.Generation, Reason: was.Reason})
			}
		}
		j.set(s, slotNote{Writing: true})
	})
	m.log("slot %s: %s -> writing", s, was.State)
	return m.sweep(ctx, v, s, retired)
}

// sweep removes what a slot that is to be written has no use for, and what
// earlier, interrupted operations left.
func (m *Machine) sweep(ctx context.Context, v *view, s fleet.Slot, paths []string) error {
	paths = append(paths, v.staged[s.Index()]...)
	for _, f := range v.leftover {
		if hasAny(f.Name, tempSuffix, retiredSuffix, stagedSuffix) {
			paths = append(paths, LinuxDir+"/"+f.Name)
		}
	}
	keep := map[string]bool{v.Slot(s.Other()).Short + ".json": true, journalFile: true}
	copies, err := m.cfg.ESP.List(ctx, TurnoutDir)
	if err != nil {
		return fmt.Errorf("listing manifest copies: %w", err)
	}
	for _, f := range copies {
		if !keep[f.Name] && hasAny(f.Name, ".json", tempSuffix) {
			paths = append(paths, TurnoutDir+"/"+f.Name)
		}
	}
	for _, p := range paths {
		if err := m.cfg.ESP.Remove(ctx, p); err != nil {
			return fmt.Errorf("removing %s: %w", p, err)
		}
	}
	return nil
}

func hasAny(s string, suffixes ...string) bool {
	for _, x := range suffixes {
		if strings.HasSuffix(s, x) {
			return true
		}
	}
	return false
}

// retiredPath swaps the .efi of a path for a suffix no loader looks at.
func retiredPath(path string) string { return path[:len(path)-len(efiSuffix)] + retiredSuffix }

// Staged is an image whose root and verity tree are in a slot's partitions,
// flushed, read back and found right.
type Staged struct {
	Short     string // short digest of the image
	RootHash  string // hex
	UKI       io.Reader
	UKISize   int64  // bytes
	UKISHA256 []byte // 32 bytes, or nil: then what UKI gives is taken for right
	Manifest  []byte // copy of the signed manifest, kept as it is
}

// Stage puts the UKI of a freshly written slot on the ESP under a name that
// no loader starts, and reads it back.
//
// Guards: as Begin, and Begin was called; the verity tree in the slot is that
// of the image; the other slot holds another image.
func (m *Machine) Stage(ctx context.Context, s fleet.Slot, in Staged) error {
	v, unlock, err := m.open(ctx)
	if err != nil {
		return fmt.Errorf("staging slot %s: %w", s, err)
	}
	defer unlock()
	if err := m.stage(ctx, v, s, in); err != nil {
		return fmt.Errorf("staging image %s in slot %s: %w", in.Short, s, err)
	}
	m.note(ctx, func(j *journal) { j.set(s, slotNote{}) })
	m.log("slot %s: writing -> staged, image %s", s, in.Short)
	return nil
}

func (m *Machine) stage(ctx context.Context, v *view, s fleet.Slot, in Staged) error {
	if err := CheckShort(in.Short); err != nil {
		return err
	}
	if err := v.mayWrite(s); err != nil {
		return err
	}
	state := v.Slot(s).State
	if state == fleet.SlotEmpty { // the journal that knew of Begin is lost
		state = fleet.SlotWriting
	}
	if _, err := Next(state, EventStage); err != nil {
		return err
	}
	hash := strings.ToLower(in.RootHash)
	switch {
	case hash == "" || v.Slot(s).RootHash != hash:
		return fmt.Errorf("%w: its verity tree has root hash %q, the image %q", ErrMismatch, v.Slot(s).RootHash, hash)
	case v.Slot(s.Other()).RootHash == hash:
		return fmt.Errorf("%w: slot %s; arm that one instead", ErrSameImage, s.Other())
	}
	if err := m.cfg.ESP.Put(ctx, manifestPath(in.Short), bytes.NewReader(in.Manifest), int64(len(in.Manifest))); err != nil {
		return fmt.Errorf("storing the manifest: %w", err)
	}
	path := stagedPath(in.Short)
	sum := sha256.New()
	if err := m.cfg.ESP.Put(ctx, path, io.TeeReader(in.UKI, sum), in.UKISize); err != nil {
		return fmt.Errorf("storing the UKI: %w", err)
	}
	want := sum.Sum(nil)
	if in.UKISHA256 != nil {
		want = in.UKISHA256
	}
	if err := m.verifyUKI(ctx, path, want, hash); err != nil {
		if rerr := m.cfg.ESP.Remove(ctx, path); rerr != nil {
			m.log("removing the bad UKI %s: %v", path, rerr)
		}
		return err
	}
	return nil
}

// verifyUKI reads a UKI back and compares digest and root hash.
func (m *Machine) verifyUKI(ctx context.Context, path string, want []byte, rootHash string) error {
	f, size, err := m.cfg.ESP.Open(ctx, path)
	if err != nil {
		return fmt.Errorf("reading back %s: %w", path, err)
	}
	defer f.Close()
	sum := sha256.New()
	if _, err := io.Copy(sum, io.NewSectionReader(f, 0, size)); err != nil {
		return fmt.Errorf("reading back %s: %w", path, err)
	}
	if got := sum.Sum(nil); !bytes.Equal(got, want) {
		return fmt.Errorf("%w: %s has SHA-256 %x, want %x", ErrVerify, path, got, want)
	}
	h, err := m.cfg.UKIHash(f, size)
	if err != nil {
		return fmt.Errorf("reading the command line of %s: %w", path, err)
	}
	if strings.ToLower(h) != rootHash {
		return fmt.Errorf("%w: the UKI starts root hash %q, the image's is %q", ErrMismatch, h, rootHash)
	}
	return nil
}

func stagedPath(short string) string { return LinuxDir + "/" + short + stagedSuffix }

// Arm makes the loader try a staged slot at the next boot, tries times at
// most (0 means fleet.DefaultTries).
//
// Guards: as Begin; the slot is staged; the generation is higher than any on
// the ESP (ErrStale); the image is not banned (ErrBanned, see Lift).
func (m *Machine) Arm(ctx context.Context, s fleet.Slot, generation uint64, tries int) error {
	return m.armIn(ctx, s, "", fleet.SlotStaged, generation, tries)
}

// Flip makes the loader try the other, good slot at the next boot: the same
// one rename as Arm, which gives an old image a new generation. short names
// the image that is expected there ("" accepts any): a flip is to an image,
// never to "the other one".
//
// Guards: as Arm, but the slot is good.
func (m *Machine) Flip(ctx context.Context, s fleet.Slot, short string, generation uint64, tries int) error {
	return m.armIn(ctx, s, short, fleet.SlotGood, generation, tries)
}

func (m *Machine) armIn(ctx context.Context, s fleet.Slot, short string, want fleet.SlotState, generation uint64, tries int) error {
	v, unlock, err := m.open(ctx)
	if err != nil {
		return fmt.Errorf("arming slot %s: %w", s, err)
	}
	defer unlock()
	if tries == 0 {
		tries = fleet.DefaultTries
	}
	if err := v.mayArm(s, short, want, generation, tries); err != nil {
		return fmt.Errorf("arming slot %s: %w", s, err)
	}
	was := *v.Slot(s)
	n := Name{Short: was.Short}.armed(generation, tries)
	if err := v.free(n, was.File); err != nil {
		return fmt.Errorf("arming slot %s: %w", s, err)
	}
	if err := m.rename(ctx, was.File, n); err != nil {
		return fmt.Errorf("arming slot %s: %w", s, err)
	}
	m.note(ctx, func(j *journal) { j.set(s, slotNote{Before: was.File, Granted: tries}) })
	m.log("slot %s: %s -> armed, image %s, generation %d, %d tries", s, was.State, was.Short, generation, tries)
	return nil
}

func (v *view) mayArm(s fleet.Slot, short string, want fleet.SlotState, generation uint64, tries int) error {
	if err := v.mayWrite(s); err != nil {
		return err
	}
	x := v.Slot(s)
	if _, err := Next(x.State, EventArm); err != nil {
		return err
	}
	if x.State != want {
		return fmt.Errorf("%w: it is %s, want %s", ErrState, x.State, want)
	}
	if short != "" && short != x.Short {
		return fmt.Errorf("%w: it holds image %s, not %s", ErrMismatch, x.Short, short)
	}
	if generation < v.NextGeneration || generation > MaxGeneration {
		return fmt.Errorf("%w: generation %d, want %d to %d", ErrStale, generation, v.NextGeneration, MaxGeneration)
	}
	if tries < 1 || tries > MaxTries {
		return fmt.Errorf("%w: %d tries, want 1 to %d", ErrState, tries, MaxTries)
	}
	if b, ok := v.journal.banned(x.Short); ok {
		return fmt.Errorf("%w: %s at generation %d: %s", ErrBanned, b.Short, b.Generation, b.Reason)
	}
	return nil
}

// Cancel takes back an Arm or a Flip that the loader has not acted on yet:
// the UKI gets exactly the name it had before. If the journal that knew the
// name is lost, the slot becomes staged.
//
// Guards: as Begin; the slot is armed.
func (m *Machine) Cancel(ctx context.Context, s fleet.Slot) error {
	v, unlock, err := m.open(ctx)
	if err != nil {
		return fmt.Errorf("cancelling slot %s: %w", s, err)
	}
	defer unlock()
	if err := v.mayWrite(s); err != nil {
		return fmt.Errorf("cancelling slot %s: %w", s, err)
	}
	was := *v.Slot(s)
	if _, err := Next(was.State, EventCancel); err != nil {
		return fmt.Errorf("cancelling slot %s: %w", s, err)
	}
	to := v.before(was)
	if err := m.cfg.ESP.Rename(ctx, was.File, to); err != nil {
		return fmt.Errorf("cancelling slot %s: renaming %s to %s: %w", s, was.File, to, err)
	}
	m.note(ctx, func(j *journal) { j.set(s, slotNote{}) })
	m.log("slot %s: armed -> %s", s, to)
	return nil
}

// before returns the path a UKI had before it was armed. Only a name of the
// same image, in the form of a staged or a confirmed one, is believed.
func (v *view) before(x SlotStatus) string {
	path := v.journal.Slots[x.Slot].Before
	n, err := ParseName(strings.TrimPrefix(path, LinuxDir+"/"))
	if err == nil && !n.Counted && n.Short == x.Short && v.free(n, x.File) == nil {
		return path
	}
	return stagedPath(x.Short)
}
