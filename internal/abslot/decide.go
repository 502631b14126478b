package abslot

import (
	"context"
	"fmt"
	"strings"

	"github.com/turnout-project/turnout/internal/fleet"
)

// ConfirmRequest names the boot that was judged: a confirm is a
// compare-and-swap, so that a late one cannot bless what was never tested.
type ConfirmRequest struct {
	BootID     string // of the boot that passed
	Slot       fleet.Slot
	Generation uint64
}

// Confirm makes the booted slot good: its counter is dropped from the name.
// Confirming a slot that is good already does nothing.
//
// Guards: evidence agrees; boot id, slot and generation are those of the
// running system (ErrStale); the loader counted this boot (ErrUncounted: not
// after kexec, not when booted over the network, not when the rename of the
// counter failed); the slot is trying.
func (m *Machine) Confirm(ctx context.Context, r ConfirmRequest) error {
	v, unlock, err := m.open(ctx)
	if err != nil {
		return fmt.Errorf("confirming slot %s: %w", r.Slot, err)
	}
	defer unlock()
	if err := v.mayConfirm(r); err != nil {
		return fmt.Errorf("confirming slot %s: %w", r.Slot, err)
	}
	n := v.boot[r.Slot.Index()][0]
	if !n.Counted {
		return nil
	}
	if err := v.free(n.confirmed(), LinuxDir+"/"+n.String()); err != nil {
		return fmt.Errorf("confirming slot %s: %w", r.Slot, err)
	}
	if err := m.rename(ctx, LinuxDir+"/"+n.String(), n.confirmed()); err != nil {
		return fmt.Errorf("confirming slot %s: %w", r.Slot, err)
	}
	m.note(ctx, func(j *journal) { j.set(r.Slot, slotNote{}); j.lift(n.Short) })
	m.log("slot %s: trying -> good, image %s, generation %d", r.Slot, n.Short, n.Generation)
	return nil
}

func (v *view) mayConfirm(r ConfirmRequest) error {
	e := v.Evidence
	switch {
	case r.BootID == "" || r.BootID != e.BootID:
		return fmt.Errorf("%w: boot %q was judged, boot %q runs", ErrStale, r.BootID, e.BootID)
	case r.Slot == fleet.NoSlot || r.Slot != v.Booted:
		return fmt.Errorf("%w: slot %q was judged, slot %q is booted", ErrStale, r.Slot, v.Booted)
	case v.Slot(r.Slot).Generation != r.Generation:
		return fmt.Errorf("%w: generation %d was judged, slot %s has %d", ErrStale, r.Generation, r.Slot, v.Slot(r.Slot).Generation)
	}
	state := v.Slot(r.Slot).State
	_, err := Next(state, EventConfirm)
	switch {
	case state == fleet.SlotGood, state == fleet.SlotBad:
		return err
	case e.Kexec:
		return fmt.Errorf("%w: started by kexec, which proves nothing about the loader; reboot the machine", ErrUncounted)
	case e.Path == PathNetwork:
		return fmt.Errorf("%w: started over the network; boot the slot from its disk", ErrUncounted)
	case !v.Counted:
		return fmt.Errorf("%w: LoaderBootCountPath is %q while the file is %s; is the ESP writable for the firmware?", ErrUncounted, e.CountPath, v.BootedFile)
	}
	return err
}

// Condemn makes a slot bad: the loader passes it over, and the image is
// banned from being armed again. It does not reboot. Condemning a condemned
// slot does nothing.
//
// Guards: evidence agrees; the slot has a bootable UKI; the other slot is
// good, unless force is set (ErrLastGood).
func (m *Machine) Condemn(ctx context.Context, s fleet.Slot, reason string, force bool) error {
	v, unlock, err := m.open(ctx)
	if err != nil {
		return fmt.Errorf("condemning slot %q: %w", s, err)
	}
	defer unlock()
	if s != fleet.SlotA && s != fleet.SlotB {
		return fmt.Errorf("condemning slot %q: %w: not a slot", s, ErrState)
	}
	x := v.Slot(s)
	if _, err := Next(x.State, EventCondemn); err != nil {
		return fmt.Errorf("condemning slot %s: %w", s, err)
	}
	if o := v.Slot(s.Other()); o.State != fleet.SlotGood && !force {
		return fmt.Errorf("condemning slot %s: %w: slot %s is %s", s, ErrLastGood, o.Slot, o.State)
	}
	return m.condemn(ctx, s, v.boot[s.Index()][0], reason)
}

func (m *Machine) condemn(ctx context.Context, s fleet.Slot, n Name, reason string) error {
	if err := m.rename(ctx, LinuxDir+"/"+n.String(), n.condemned()); err != nil {
		return fmt.Errorf("condemning %s: %w", n, err)
	}
	m.note(ctx, func(j *journal) {
		j.ban(Ban{Short: n.Short, Generation: n.Generation, Reason: reason})
		if s != fleet.NoSlot {
			j.set(s, slotNote{})
		}
	})
	m.log("slot %s: -> bad, image %s, generation %d: %s", s, n.Short, n.Generation, reason)
	return nil
}

// Demote is Condemn for the initrd: it makes bad the UKI that was just
// started, when its root cannot be used. The slot's own verity tree may be
// the damaged part, so the file is found by what the loader said and by the
// root hash of the command line alone. It returns the name of the file that
// is now bad.
//
// Guards: exactly one bootable file fits; another slot is good and its verity
// tree is in place (ErrLastGood): with nothing to fall back to, the caller
// must ask the server for help instead.
func (m *Machine) Demote(ctx context.Context, reason string) (string, error) {
	unlock, err := m.lock(ctx)
	if err != nil {
		return "", fmt.Errorf("demoting the booted slot: %w", err)
	}
	defer unlock()
	v, err := m.look(ctx)
	if err != nil {
		return "", fmt.Errorf("demoting the booted slot: %w", err)
	}
	n, err := m.startedFile(ctx, v)
	if err != nil {
		return "", fmt.Errorf("demoting the booted slot: %w", err)
	}
	slot := fleet.NoSlot
	isSafe := false
	for i, s := range fleet.Slots {
		for _, o := range v.boot[i] {
			if o == n {
				slot = s
			} else if !o.Counted && v.Slots[i].RootHash != v.Evidence.RootHash {
				isSafe = true
			}
		}
	}
	if !isSafe {
		return "", fmt.Errorf("demoting %s: %w", n, ErrLastGood)
	}
	return n.String(), m.condemn(ctx, slot, n, reason)
}

// startedFile finds the file of LinuxDir that the running kernel came from.
func (m *Machine) startedFile(ctx context.Context, v *view) (Name, error) {
	e := v.Evidence
	if e.RootHash == "" {
		return Name{}, fmt.Errorf("%w: the command line has no root hash", ErrEvidence)
	}
	var fit []Name
	for _, n := range v.all {
		if e.Entry != "" && entryID(strings.ToLower(e.Entry)) != n.ID() {
			continue
		}
		if m.hashOf(ctx, LinuxDir+"/"+n.String(), n.Short) == e.RootHash {
			fit = append(fit, n)
		}
	}
	if len(fit) != 1 {
		return Name{}, fmt.Errorf("%w: entry %q with root hash %s fits %s", ErrEvidence, e.Entry, e.RootHash, names(fit))
	}
	return fit[0], nil
}
