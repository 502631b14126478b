//go:build linux

package boot

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/dm"
	"github.com/turnout-project/turnout/internal/efivar"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/node/attempts"
	"github.com/turnout-project/turnout/internal/node/bootinfo"
	"github.com/turnout-project/turnout/internal/node/slots"
	"github.com/turnout-project/turnout/internal/verity"
)

const (
	stateMount = "/run/turnout/state"
	rootDevice = "turnout-root"
	// agentDir is the agent's folder on the state partition and in the system.
	agentDir = "var/lib/turnout"
)

// phaseTime is what one step of the boot may take before the watchdog's own
// time starts to run.
const phaseTime = time.Minute

// bootSlot starts the slot. It returns only on failure.
func (m *machine) bootSlot(ctx context.Context) error {
	info, err := m.evidence()
	if err != nil {
		return err
	}
	cleared, err := efivar.ClearChoices(efivar.Dir)
	for _, c := range cleared {
		m.log("warning: somebody had told the boot loader what to start (%s): deleted, since no slot would fall back", c)
	}
	if err != nil {
		m.log("warning: %v", err)
	}
	loaderPart, err := efivar.String(efivar.Dir, "LoaderDevicePartUUID", efivar.Loader)
	if err != nil {
		m.log("warning: %v", err)
	}
	m.watchdog.Grant(phaseTime)
	p, err := findSlot(ctx, loaderPart, m.cmdline.RootHash)
	if err != nil && p.disk != nil {
		return m.giveUp(ctx, p.disk, info, err)
	}
	if err != nil {
		return err
	}
	if err := m.describe(info, p); err != nil {
		return err
	}
	m.log("slot %s on %s, started from %s", p.slot, p.disk.Path, info.BootPath)
	m.recount(ctx, p.disk, info)
	if err := m.checkTries(ctx, p.disk, info); err != nil {
		return err
	}
	sb, err := m.verify(ctx, info)
	if err != nil {
		return m.giveUp(ctx, p.disk, info, err)
	}
	if err := m.openRoot(info, sb); err != nil {
		return err
	}
	if err := m.openVar(ctx, p.disk, info); err != nil {
		return err
	}
	if err := m.handOver(info); err != nil {
		return err
	}
	m.measure(ctx, "leave-initrd")
	m.log("starting the system")
	m.quiet()
	return switchRoot(m.cmdline.Init, m.watchdog)
}

// evidence starts the boot record with what does not depend on a disk.
func (m *machine) evidence() (*bootinfo.Info, error) {
	id, err := bootinfo.BootID()
	if err != nil {
		return nil, err
	}
	entry, count, err := slots.LoaderVars()
	if err != nil {
		m.log("warning: %v", err)
	}
	i := &bootinfo.Info{BootID: id, RootHash: hex.EncodeToString(m.cmdline.RootHash), Entry: entry, CountPath: count, BootPath: string(abslot.PathNetwork)}
	if entry != "" || count != "" {
		i.BootPath = string(abslot.PathDisk)
	}
	return i, nil
}

// describe adds slot and devices.
func (m *machine) describe(i *bootinfo.Info, p place) error {
	dev, err := devicesOf(p.disk)
	if err != nil {
		return err
	}
	i.Slot, i.Disk, i.ESP, i.Verities = p.slot, p.disk.Path, dev.ESP, dev.Verities
	for n, s := range fleet.Slots {
		if i.Roots[n], err = p.disk.PartitionPath(disk.RootLabel(s)); err != nil {
			return err
		}
	}
	i.State, err = p.disk.PartitionPath(disk.LabelState)
	return err
}

// verify binds the tree's superblock to the root hash, and reads the whole
// root where the image asks for it.
func (m *machine) verify(ctx context.Context, i *bootinfo.Info) (verity.Superblock, error) {
	tree, err := os.Open(i.Verities[i.Slot.Index()])
	if err != nil {
		return verity.Superblock{}, err
	}
	defer tree.Close()
	if !m.cmdline.Verify {
		sb, _, err := verity.Top(tree)
		return sb, err // the kernel compares the top block with the root hash
	}
	root, err := os.Open(i.Roots[i.Slot.Index()])
	if err != nil {
		return verity.Superblock{}, err
	}
	defer root.Close()
	start := time.Now()
	sb, err := verity.Verify(ctx, root, tree, m.cmdline.RootHash, verity.VerifyOptions{
		Progress: func(int64) { m.watchdog.Grant(phaseTime) },
	})
	if err == nil {
		m.log("root verified, %d MiB in %.1f s", sb.DataBytes()>>20, time.Since(start).Seconds())
	}
	return sb, err
}

// openRoot maps the root through dm-verity and mounts it. A block that turns
// out corrupt later panics the kernel: the panic is kept by the firmware
// where it can keep one, and the machine is reset seconds later, which counts
// as a failed try. (restart_on_corruption resets at once and says nothing.)
func (m *machine) openRoot(i *bootinfo.Info, sb verity.Superblock) error {
	m.watchdog.Grant(phaseTime)
	n := i.Slot.Index()
	dev, err := dm.Create(rootDevice, fmt.Sprintf("CRYPT-VERITY-%x-%s", sb.UUID, rootDevice), dm.Target{
		Type:    "verity",
		Sectors: uint64(sb.DataBytes()) / 512,
		Params:  sb.Table(i.Roots[n], i.Verities[n], m.cmdline.RootHash, "panic_on_corruption"),
	})
	if err != nil {
		return err
	}
	if err := mountAt(dev, sysroot, "squashfs", unix.MS_RDONLY|unix.MS_NODEV, ""); err != nil {
		return err
	}
	return unix.Mount("/dev", filepath.Join(sysroot, "dev"), "", unix.MS_BIND, "") // for tools run inside it
}

// openVar mounts state, counts this start, and binds /var.
func (m *machine) openVar(ctx context.Context, d *disk.Disk, i *bootinfo.Info) error {
	m.watchdog.Grant(phaseTime)
	if err := openState(i.State, sysroot, stateMount, m.watchdog, m.log); err != nil {
		return err
	}
	if err := unix.Unmount(filepath.Join(sysroot, "dev"), 0); err != nil {
		return fmt.Errorf("taking /dev out of the root again: %w", err)
	}
	m.watchdog.Grant(phaseTime)
	v := filepath.Join(stateMount, "var")
	if err := seedVar(sysroot, stateMount, i.RootHash); err != nil {
		m.log("warning: %v", err)
	}
	if err := os.MkdirAll(v, 0o755); err != nil {
		return err
	}
	if err := m.countStart(ctx, d, i); err != nil {
		return err
	}
	if err := unix.Mount(v, filepath.Join(sysroot, "var"), "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("binding /var: %w", err)
	}
	if err := bindMachineID(sysroot, stateMount); err != nil {
		m.log("warning: this boot has a machine id of its own: %v", err)
	}
	return nil
}

// countStart keeps the ledger of starts, and gives the slot up when it was
// started too often without ever coming to local health.
func (m *machine) countStart(ctx context.Context, d *disk.Disk, i *bootinfo.Info) error {
	dir := filepath.Join(stateMount, agentDir)
	l, err := attempts.Read(dir)
	if err != nil {
		m.log("warning: ledger of starts: %v", err)
	}
	l = l.Start(i.RootHash)
	i.Starts = l.Starts
	if err := attempts.Write(dir, l); err != nil {
		m.log("warning: ledger of starts: %v", err)
	}
	if !l.Exhausted() {
		return nil
	}
	why := fmt.Errorf("started %d times in a row without passing its own health checks", l.Starts-1)
	if err := m.demote(ctx, d, i, why); !errors.Is(err, abslot.ErrLastGood) {
		return err
	}
	m.log("warning: %v; there is no other good slot, so it is started once more", why)
	return nil
}

// demote makes the UKI that was just started bad, by one rename, so that the
// other slot is started next, and resets the machine. It returns an error
// that wraps why only if that is not possible.
func (m *machine) demote(ctx context.Context, d *disk.Disk, i *bootinfo.Info, why error) error {
	m.log("error: slot cannot be used: %v", why)
	m.watchdog.Grant(phaseTime)
	s, err := m.openSlots(d, i)
	if err != nil {
		return errors.Join(why, err)
	}
	file, err := s.Demote(ctx, why.Error())
	if uerr := slots.Unmount(); uerr != nil {
		m.log("warning: unmounting the ESP: %v", uerr)
	}
	if err != nil {
		return errors.Join(why, err)
	}
	m.log("%s is bad now; the other slot is started", file)
	m.reset(3 * time.Second)
	return nil
}

// handOver leaves the boot record and the watchdog to the system.
func (m *machine) handOver(i *bootinfo.Info) error {
	if m.watchdog != nil {
		i.Watchdog = bootinfo.Watchdog{Device: m.watchdog.Device, Seconds: int(m.watchdog.Timeout / time.Second)}
		// 60: sorted after what an image itself may say, so that it wins.
		const conf = "/run/systemd/system.conf.d/60-turnout-watchdog.conf"
		if err := os.MkdirAll(filepath.Dir(conf), 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(conf, []byte(m.watchdog.systemdConfig()), 0o644); err != nil {
			return err
		}
	}
	return bootinfo.Write(bootinfo.Path, i)
}
