package abslot

import (
	"context"
	"fmt"
	"strings"
	"sync"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Machine moves the slots of one node. Its methods may be called from
// several goroutines; a transition asked for while another runs is refused
// with ErrBusy. Every transition looks at the disk anew, so nothing is lost
// by making a second Machine.
type Machine struct {
	cfg Config
	mu  sync.Mutex
}

// New returns a Machine. It touches nothing yet.
func New(cfg Config) *Machine { return &Machine{cfg: cfg} }

func (m *Machine) log(format string, args ...any) {
	if m.cfg.Log != nil {
		m.cfg.Log(format, args...)
	}
}

// lock keeps other transitions out, of this process and, where the carrier
// can, of others.
func (m *Machine) lock(ctx context.Context) (func(), error) {
	if !m.mu.TryLock() {
		return nil, fmt.Errorf("%w in this process", ErrBusy)
	}
	l, ok := m.cfg.ESP.(Locker)
	if !ok {
		return m.mu.Unlock, nil
	}
	unlock, err := l.Lock(ctx)
	if err != nil {
		m.mu.Unlock()
		return nil, err
	}
	return func() { unlock(); m.mu.Unlock() }, nil
}

// open locks and looks, and refuses while the evidence disagrees.
func (m *Machine) open(ctx context.Context) (*view, func(), error) {
	unlock, err := m.lock(ctx)
	if err != nil {
		return nil, nil, err
	}
	v, err := m.look(ctx)
	if err == nil {
		err = v.Problem
	}
	if err != nil {
		unlock()
		return nil, nil, err
	}
	return v, unlock, nil
}

// mayWrite is the guard of everything that touches the slot that is not
// booted: the booted one must be confirmed. In the installer no slot is
// booted; there the last good slot is what may not be touched.
func (v *view) mayWrite(s fleet.Slot) error {
	if s != fleet.SlotA && s != fleet.SlotB {
		return fmt.Errorf("%w: %q is not a slot", ErrState, s)
	}
	if v.Booted == s {
		return fmt.Errorf("%w: %s", ErrBooted, s)
	}
	if v.Booted != fleet.NoSlot {
		if b := v.Slot(v.Booted); b.State != fleet.SlotGood {
			return fmt.Errorf("%w: slot %s is %s; wait until it is confirmed", ErrUnconfirmed, b.Slot, b.State)
		}
		return nil
	}
	if v.Slot(s).State == fleet.SlotGood && v.Slot(s.Other()).State != fleet.SlotGood {
		return fmt.Errorf("%w: slot %s is the only good one; install into %s, or set the disk up anew", ErrLastGood, s, s.Other())
	}
	return nil
}

// rename is the one step of a transition: it gives a UKI its new name, then
// looks whether the ESP shows it.
func (m *Machine) rename(ctx context.Context, oldPath string, n Name) error {
	newPath := LinuxDir + "/" + n.String()
	if oldPath == newPath {
		return nil
	}
	if err := m.cfg.ESP.Rename(ctx, oldPath, newPath); err != nil {
		return fmt.Errorf("renaming %s to %s: %w", oldPath, n, err)
	}
	files, err := m.cfg.ESP.List(ctx, LinuxDir)
	if err != nil {
		return fmt.Errorf("reading back the rename to %s: %w", n, err)
	}
	var isThere, oldThere bool
	for _, f := range files {
		isThere = isThere || f.Name == n.String()
		oldThere = oldThere || LinuxDir+"/"+f.Name == oldPath
	}
	if !isThere || oldThere {
		return fmt.Errorf("%w: after renaming %s to %s", ErrVerify, oldPath, n)
	}
	return nil
}

// free makes sure that no other file has the stem of n (systemd issue 33504:
// a plain and a counted name of one stem are one entry to the loader).
func (v *view) free(n Name, except string) error {
	for _, o := range v.all {
		if o.Stem() == n.Stem() && LinuxDir+"/"+o.String() != except {
			return fmt.Errorf("%w: %s beside %s", ErrExist, o, n)
		}
	}
	for _, p := range v.Strays {
		if strings.EqualFold(p, LinuxDir+"/"+n.String()) {
			return fmt.Errorf("%w: %s", ErrExist, p)
		}
	}
	return nil
}

// Bans returns the images that failed on this node, oldest first, as far as
// the journal knows.
func (m *Machine) Bans(ctx context.Context) []Ban { return m.readJournal(ctx).Bans }

// Lift forgets the ban of an image: an operator wants it tried again.
func (m *Machine) Lift(ctx context.Context, short string) error {
	unlock, err := m.lock(ctx)
	if err != nil {
		return err
	}
	defer unlock()
	m.note(ctx, func(j *journal) { j.lift(short) })
	if _, still := func() (Ban, bool) { j := m.readJournal(ctx); return j.banned(short) }(); still {
		return fmt.Errorf("%w: the ban of %s is still in the journal", ErrVerify, short)
	}
	m.log("ban of image %s lifted", short)
	return nil
}

// Manifest returns the copy of the signed image manifest that Stage stored
// for an image. It is not verified here.
func (m *Machine) Manifest(ctx context.Context, short string) ([]byte, error) {
	if err := CheckShort(short); err != nil {
		return nil, err
	}
	return m.readFile(ctx, manifestPath(short))
}
