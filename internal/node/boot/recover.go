//go:build linux

package boot

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path"
	"strings"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/disk/fatdir"
	"github.com/turnout-project/turnout/internal/efivar"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/node/bootinfo"
	"github.com/turnout-project/turnout/internal/node/slots"
)

// giveUp demotes the slot that was started. With no other good slot it asks
// the firmware for a network boot, which is the last resort: the disk may be
// first in the firmware's order, and would be started again and again.
func (m *machine) giveUp(ctx context.Context, d *disk.Disk, i *bootinfo.Info, why error) error {
	err := m.demote(ctx, d, i, why)
	if errors.Is(err, abslot.ErrLastGood) {
		m.askForNetwork(i)
	}
	return err
}

// askForNetwork makes the next start, and only that, one over the network. It
// reports whether it could.
func (m *machine) askForNetwork(i *bootinfo.Info) bool {
	if i.BootPath == string(abslot.PathNetwork) {
		m.log("no slot is good, and this start came over the network already: the server decides again at the next one")
		return false
	}
	number, o, err := efivar.NetworkBoot(efivar.Dir)
	if err == nil {
		err = efivar.SetBootNext(efivar.Dir, number)
	}
	if err != nil {
		m.log("error: no slot is good, and no network boot can be asked for: %v", err)
		return false
	}
	m.log("no slot is good: the firmware boots Boot%04X %q next, once, so that the server can reinstall this node", number, o.Description)
	return true
}

// checkTries sends the node to the network when the loader started a slot
// that had no tries left, which it does with nothing else to start. Where
// that cannot be done the slot is started all the same: a system that nobody
// confirms can still be reached.
func (m *machine) checkTries(ctx context.Context, d *disk.Disk, i *bootinfo.Info) error {
	if !isSpent(i.CountPath) {
		return nil
	}
	st, err := m.slotStatus(ctx, d, i)
	if err != nil {
		m.log("warning: the slots cannot be told apart: %v", err)
		return nil
	}
	why, ok := noneGood(st)
	if !ok {
		return nil
	}
	m.log("error: %s", why)
	if !m.askForNetwork(i) {
		return nil
	}
	return errors.New(why)
}

// recount counts a trial boot that the loader could not count, since the
// firmware refused the rename: else a slot that hangs before its agent lives
// would be started for ever.
func (m *machine) recount(ctx context.Context, d *disk.Disk, i *bootinfo.Info) {
	if i.BootPath != string(abslot.PathDisk) {
		return
	}
	files, err := linuxFiles(i.ESP)
	if err != nil {
		m.log("warning: the ESP cannot be read: %v", err)
		return
	}
	if !abslot.NeedsRecount(files, i.Entry, i.CountPath) {
		return
	}
	m.watchdog.Grant(phaseTime)
	s, err := m.openSlots(d, i)
	if err != nil {
		m.log("warning: the loader did not count this boot, and neither can it be counted here: %v", err)
		return
	}
	path, err := s.Recount(ctx)
	if err = errors.Join(err, slots.Unmount()); err != nil {
		m.log("warning: %v", err)
	}
	if path != "" {
		i.CountPath = path
	}
}

// linuxFiles lists the ESP's folder of UKIs without mounting it.
func linuxFiles(esp string) ([]string, error) {
	f, err := os.Open(esp)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	v, err := fatdir.Open(f, 0)
	if err != nil {
		return nil, err
	}
	entries, err := v.List(abslot.LinuxDir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name)
	}
	return names, nil
}

// isSpent reports whether a path the loader counted says that no tries are
// left: that of the last trial, and of every start after it.
func isSpent(countPath string) bool {
	n, err := abslot.ParseName(path.Base(strings.ReplaceAll(countPath, `\`, "/")))
	return err == nil && n.Counted && n.Left == 0
}

// noneGood reports whether the booted slot is bad and the other one neither
// good nor to be tried, and says what is known of both. Evidence that
// disagrees answers nothing.
func noneGood(st abslot.Status) (string, bool) {
	if st.Problem != nil || st.Booted == fleet.NoSlot || st.Slot(st.Booted).State != fleet.SlotBad {
		return "", false
	}
	var parts []string
	for _, s := range st.Slots {
		switch s.State {
		case fleet.SlotGood, fleet.SlotArmed, fleet.SlotTrying:
			return "", false
		}
		text := fmt.Sprintf("slot %s is %s", s.Slot, s.State)
		if s.Reason != "" {
			text += " (" + s.Reason + ")"
		}
		parts = append(parts, text)
	}
	return "no slot is good: " + strings.Join(parts, ", "), true
}

// slotStatus looks at the slots and leaves the ESP unmounted.
func (m *machine) slotStatus(ctx context.Context, d *disk.Disk, i *bootinfo.Info) (abslot.Status, error) {
	m.watchdog.Grant(phaseTime)
	s, err := m.openSlots(d, i)
	if err != nil {
		return abslot.Status{}, err
	}
	st, err := s.Status(ctx)
	return st, errors.Join(err, slots.Unmount())
}

// openSlots mounts the ESP.
func (m *machine) openSlots(d *disk.Disk, i *bootinfo.Info) (*abslot.Machine, error) {
	dev, err := devicesOf(d)
	if err != nil {
		return nil, err
	}
	ev := abslot.Evidence{
		BootID: i.BootID, Path: abslot.BootPath(i.BootPath), Entry: i.Entry, CountPath: i.CountPath,
		RootHash: i.RootHash, Backing: i.Slot, Kexec: slots.Kexec(),
	}
	return slots.Open(dev, func(context.Context) (abslot.Evidence, error) { return ev, nil }, m.log)
}
