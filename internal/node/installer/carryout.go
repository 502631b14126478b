//go:build linux

package installer

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/abslot/espdir"
	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/install"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/node/slots"
)

// carryOut does what the server wants: the image in a slot, armed.
func (i *installer) carryOut(ctx context.Context, d fleet.Desired) error {
	i.Grant(callTime)
	client := i.session.Client()
	im, err := install.Fetch(ctx, client, d.Image, i.keys)
	if err != nil {
		return err
	}
	dsk, isFresh, err := i.layOut(ctx, im, d)
	if err != nil {
		return err
	}
	m, err := i.open(dsk)
	if err != nil && !isFresh { // an ESP that cannot be used holds no slot that could be
		i.Log("warning: %v: the disk is laid out anew", err)
		_ = slots.Unmount() // it may not even be mounted
		if dsk, err = i.create(ctx, dsk.Path, im); err == nil {
			m, err = i.open(dsk)
		}
	}
	if err != nil {
		return err
	}
	defer func() {
		if err := slots.Unmount(); err != nil {
			i.Log("warning: unmounting the ESP: %v", err)
		}
	}()
	if err := i.fill(ctx, m, dsk, im, d); err != nil {
		return err
	}
	i.tell(ctx, "node.rebooting", "installed: starting from disk")
	return nil
}

// fill installs into a slot and arms it.
func (i *installer) fill(ctx context.Context, m *abslot.Machine, dsk *disk.Disk, im *install.Image, d fleet.Desired) error {
	st, err := m.Status(ctx)
	if err != nil {
		return err
	}
	if err := i.judge(ctx, m, st, d); err != nil {
		return err
	}
	gen := generation(st, m.Bans(ctx), d) // before the failed UKI is gone
	s, isThere := pick(st, manifest.Short(im.Digest), im.Manifest.Verity.RootHash)
	if isThere {
		why, err := i.examine(ctx, dsk, s, im.Manifest.Verity.RootHash)
		if err != nil {
			return err
		}
		if why == nil {
			i.tell(ctx, "install.present", "slot %s holds %s, confirmed: nothing to install", s, im.Label)
			return nil
		}
		i.tell(ctx, "slot.damaged", "slot %s, %s, confirmed: %v", s, im.Label, why)
		if err := discard(ctx, m, s, manifest.Short(im.Digest), why); err != nil {
			return err
		}
	}
	i.tell(ctx, "install.started", "%s into slot %s of %s", im.Label, s, dsk.Path)
	t := install.Target{Slots: m, Slot: s}
	if t.Root, err = dsk.PartitionPath(disk.RootLabel(s)); err != nil {
		return err
	}
	if t.Verity, err = dsk.PartitionPath(disk.VerityLabel(s)); err != nil {
		return err
	}
	if t.OtherRoot, err = dsk.PartitionPath(disk.RootLabel(s.Other())); err != nil {
		return err
	}
	err = install.Run(ctx, i.session.Client(), im, t, i.progress(ctx))
	if err != nil && ctx.Err() == nil && i.session.Client().DistrustCache() {
		i.tell(ctx, "install.cache-distrusted", "%v: once more, from the server alone", err)
		err = install.Run(ctx, i.session.Client(), im, t, i.progress(ctx))
	}
	if err != nil {
		return err
	}
	if err := i.leaveServer(ctx); err != nil {
		return err
	}
	if err := lift(ctx, m, manifest.Short(im.Digest)); err != nil {
		return err
	}
	if st, err = m.Status(ctx); err != nil {
		return err
	}
	gen = max(gen, st.NextGeneration)
	if err := m.Arm(ctx, s, gen, d.Tries); err != nil {
		return err
	}
	if st, err = m.Status(ctx); err == nil {
		i.slots = st.Report()
		i.slots[s.Index()].Image, i.slots[s.Index()].Name = im.Digest, im.Label
	}
	i.tell(ctx, "slot.armed", "slot %s, %s, generation %d", s, im.Label, gen)
	return nil
}

// lift lifts the ban of an image that failed here before: see quarantined.
func lift(ctx context.Context, m *abslot.Machine, short string) error {
	for _, b := range m.Bans(ctx) {
		if b.Short == short {
			return m.Lift(ctx, short)
		}
	}
	return nil
}

// pick chooses the slot to write: one whose partition holds the image without
// being good, since two slots never hold one image; else A, unless A is the
// only good one. isThere is true when a good slot holds the image already.
func pick(st abslot.Status, short, rootHash string) (s fleet.Slot, isThere bool) {
	for _, x := range st.Slots {
		if x.State == fleet.SlotGood && x.Short == short {
			return x.Slot, true
		}
	}
	for _, x := range st.Slots {
		if x.State != fleet.SlotGood && x.RootHash == rootHash {
			return x.Slot, false
		}
	}
	if a, b := st.Slots[0], st.Slots[1]; a.State == fleet.SlotGood && b.State != fleet.SlotGood {
		return fleet.SlotB, false
	}
	return fleet.SlotA, false
}

// leaveServer keeps the addresses of the server and its peers for a system
// that learns them from nowhere else.
func (i *installer) leaveServer(ctx context.Context) error {
	esp, err := espdir.Open(slots.ESPMount)
	if err != nil {
		return err
	}
	if len(i.fleet) > 0 {
		text := strings.Join(i.fleet, "\n") + "\n"
		if err := esp.Put(ctx, slots.FleetFile, strings.NewReader(text), int64(len(text))); err != nil {
			return err
		}
	}
	return esp.Put(ctx, slots.ServerFile, strings.NewReader(i.server+"\n"), int64(len(i.server)+1))
}

// layOut finds the disk and gives it a Turnout layout, unless it has one that
// the image fits.
func (i *installer) layOut(ctx context.Context, im *install.Image, d fleet.Desired) (dsk *disk.Disk, isFresh bool, err error) {
	all, err := look(diskHost)
	if err != nil {
		return nil, false, err
	}
	f, err := choose(all, policy{Disk: im.Manifest.Disk, only: d.Disk, wipe: i.Wipe || d.Reinstall})
	if err != nil {
		return nil, false, err
	}
	if f.content.Turnout && !d.Reinstall {
		if dsk, err := disk.Open(f.Path); err == nil && fits(dsk, im.Manifest) {
			i.Log("%s has a Turnout layout: it is used as it is", f.Path)
			return dsk, false, nil
		}
	}
	if f.content.Turnout && d.Reinstall {
		if err := i.mayReplace(ctx, f.Path, d); err != nil {
			return nil, false, err
		}
	}
	i.tell(ctx, "install.disk", "%s (%s, serial number %q, %d GiB) is laid out anew; erased is what is on it: %s", f.Path, f.Model, f.Serial, f.SizeBytes>>30, f.content)
	dsk, err = i.create(ctx, f.Path, im)
	return dsk, true, err
}

func fits(d *disk.Disk, m *manifest.Manifest) bool {
	root, err1 := d.Partition(disk.RootLabel(fleet.SlotA))
	tree, err2 := d.Partition(disk.VerityLabel(fleet.SlotA))
	return err1 == nil && err2 == nil && root.SizeBytes >= m.Root.SizeBytes && tree.SizeBytes >= m.Verity.SizeBytes
}

// create writes a fresh layout with the image's loader on the ESP.
func (i *installer) create(ctx context.Context, path string, im *install.Image) (*disk.Disk, error) {
	i.Grant(callTime)
	loader, err := i.loader(ctx, im)
	if err != nil {
		return nil, err
	}
	var g disk.Geometry
	infos, err := diskHost.List()
	if err != nil {
		return nil, err
	}
	for _, x := range infos {
		if x.Path == path {
			g = disk.Geometry{SizeBytes: int64(x.SizeBytes), SectorSize: x.SectorSize}
		}
	}
	m := im.Manifest
	l, err := disk.Plan(g, disk.Want{
		RootBytes: m.Root.SizeBytes, VerityBytes: m.Verity.SizeBytes, UKIBytes: m.UKI.SizeBytes, Architecture: m.Architecture,
	})
	if err != nil {
		return nil, fmt.Errorf("%w: %s: %w", errDisk, path, err)
	}
	if err := disk.Create(ctx, path, l, disk.ESPFiles(m.Architecture, loader)); err != nil {
		return nil, err
	}
	d, err := disk.Open(path)
	if err != nil {
		return nil, err
	}
	i.Grant(callTime)
	rctx, cancel := context.WithTimeout(ctx, callTime/2)
	defer cancel()
	return d, diskHost.Reread(rctx, d)
}

// loader fetches the boot loader and checks it.
func (i *installer) loader(ctx context.Context, im *install.Image) ([]byte, error) {
	b := im.Manifest.Loader
	const most = 16 << 20
	if b.SizeBytes <= 0 || b.SizeBytes > most {
		return nil, fmt.Errorf("%w: boot loader of %d bytes", install.ErrRefused, b.SizeBytes)
	}
	var buf bytes.Buffer
	r := i.session.Client().Blob(ctx, im.Digest, b.Digest, 0, b.SizeBytes)
	_, err := io.Copy(&buf, io.LimitReader(r, b.SizeBytes))
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, fmt.Errorf("fetching the boot loader: %w", err)
	}
	if got := manifest.DigestOf(buf.Bytes()); got != b.Digest {
		return nil, fmt.Errorf("boot loader came with digest %s, want %s", got, b.Digest)
	}
	return buf.Bytes(), nil
}

// open returns the state machine of the disk; no slot is booted.
func (i *installer) open(d *disk.Disk) (*abslot.Machine, error) {
	var dev slots.Devices
	var err error
	if dev.ESP, err = d.PartitionPath(disk.LabelESP); err != nil {
		return nil, err
	}
	for n, s := range fleet.Slots {
		if dev.Verities[n], err = d.PartitionPath(disk.VerityLabel(s)); err != nil {
			return nil, err
		}
	}
	ev := abslot.Evidence{BootID: i.bootID, Path: abslot.PathInstaller}
	return slots.Open(dev, func(context.Context) (abslot.Evidence, error) { return ev, nil }, i.Log)
}
