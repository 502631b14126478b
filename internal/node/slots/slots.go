//go:build linux

// Package slots ties the slot state machine to the disk of this node: the
// mounted ESP, the verity trees of the partitions, and the evidence of what
// was booted. The initrd, the installer and the service use it alike.
package slots

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/abslot/espdir"
	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/efivar"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/uki"
	"github.com/turnout-project/turnout/internal/verity"
)

// ESPMount is where the ESP is mounted while nodeagent needs it.
const ESPMount = "/run/turnout/esp"

// ServerFile is the file of the ESP that holds the URL of the server the node
// was installed from: for systems whose trust.json and lease name none. The
// suffix keeps it out of the state machine's sweeps.
const ServerFile = "turnout/server.url"

// FleetFile is the file of the ESP that holds the URLs of all servers of the
// fleet, one a line, as one of them said. It is not there where there is one
// server.
const FleetFile = "turnout/fleet.url"

// Devices are the partitions the machine works on.
type Devices struct {
	ESP      string    // "/dev/nvme0n1p1"
	Verities [2]string // A, B
}

// Open mounts the ESP, if it is not mounted yet, and returns the state
// machine of the node. Of several programs that open it at once (the agent
// and its guard start together) one repairs and mounts, and the others wait.
// A nil log tells nobody.
func Open(d Devices, evidence func(context.Context) (abslot.Evidence, error), log func(string, ...any)) (*abslot.Machine, error) {
	if log == nil {
		log = func(string, ...any) {}
	}
	if err := present(d.ESP, log); err != nil {
		return nil, err
	}
	esp, err := espdir.Open(ESPMount)
	if err != nil {
		return nil, err
	}
	return abslot.New(abslot.Config{
		ESP:      esp,
		Booted:   evidence,
		SlotHash: func(_ context.Context, s fleet.Slot) (string, error) { return TreeHash(d.Verities[s.Index()]) },
		UKIHash:  UKIHash,
		Log:      log,
	}), nil
}

// present repairs and mounts the ESP unless another program has.
func present(dev string, log func(string, ...any)) error {
	if err := os.MkdirAll(ESPMount, 0o700); err != nil {
		return err
	}
	turn, err := os.Open(ESPMount)
	if err != nil {
		return err
	}
	defer turn.Close() // which gives the lock back
	if err := unix.Flock(int(turn.Fd()), unix.LOCK_EX); err != nil {
		return fmt.Errorf("waiting for the ESP: %w", err)
	}
	if !isMountPoint(ESPMount) {
		repair(dev, log)
	}
	return Mount(dev, ESPMount)
}

// Mount mounts an ESP on a folder that it makes. One that is mounted there
// already is left alone. Files come out writable for the owner: firmware must
// be able to rename them.
func Mount(dev, at string) error {
	if err := os.MkdirAll(at, 0o700); err != nil {
		return err
	}
	if isMountPoint(at) {
		return nil
	}
	const flags = unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC | unix.MS_NOATIME
	if err := unix.Mount(dev, at, "vfat", flags, "umask=0022"); err != nil {
		return fmt.Errorf("mounting ESP %s on %s: %w", dev, at, err)
	}
	return nil
}

// repair undoes what a power cut in the middle of a rename can leave: two
// names of one file. It must come before the mount, since deleting one of the
// two through the kernel would free the file under the other. An ESP it can't
// read is left for the mount to judge.
func repair(dev string, log func(string, ...any)) {
	deleted, err := disk.RepairESP(dev, abslot.Folders, abslot.Keep)
	for _, name := range deleted {
		log("ESP: a rename was cut short: the second name %q is gone", name)
	}
	if err != nil {
		log("warning: ESP not checked for renames cut short: %v", err)
	}
}

func isMountPoint(dir string) bool {
	var a, b unix.Stat_t
	return unix.Stat(dir, &a) == nil && unix.Stat(dir+"/..", &b) == nil && a.Dev != b.Dev
}

// Unmount takes the ESP away again, so that the firmware finds it clean.
func Unmount() error { return unix.Unmount(ESPMount, 0) }

// TreeHash returns the root hash of the tree on a verity partition, from its
// top block, or "" when there is no tree of ours.
func TreeHash(dev string) (string, error) {
	f, err := os.Open(dev)
	if err != nil {
		return "", err
	}
	defer f.Close()
	_, top, err := verity.Top(f)
	var path *os.PathError
	if errors.As(err, &path) {
		return "", err // the device could not be read: nothing is known
	}
	if err != nil {
		return "", nil
	}
	return hex.EncodeToString(top), nil
}

// UKIHash returns the value of roothash= in a UKI's command line.
func UKIHash(r io.ReaderAt, _ int64) (string, error) {
	cmdline, err := uki.Cmdline(r)
	if err != nil {
		return "", err
	}
	return RootHash(cmdline)
}

// RootHash returns the value of roothash= in a command line.
func RootHash(cmdline string) (string, error) {
	for _, w := range strings.Fields(cmdline) {
		if h, ok := strings.CutPrefix(w, "roothash="); ok {
			return h, nil
		}
	}
	return "", errors.New("command line has no roothash=")
}

// LoaderVars returns what the boot loader left: the entry it chose and the
// file it counted, both "" when the boot did not come through it.
func LoaderVars() (entry, countPath string, err error) {
	entry, err1 := efivar.String(efivar.Dir, "LoaderEntrySelected", efivar.Loader)
	countPath, err2 := efivar.String(efivar.Dir, "LoaderBootCountPath", efivar.Loader)
	return entry, countPath, errors.Join(err1, err2)
}

// Kexec reports whether the running kernel was started by another one, as the
// x86 boot protocol's type_of_loader says (0xD_, "kexec-tools").
func Kexec() bool {
	b, err := os.ReadFile("/sys/kernel/boot_params/data")
	const typeOfLoader = 0x210
	return err == nil && len(b) > typeOfLoader && b[typeOfLoader]>>4 == 0xD
}

// Backing returns the slot whose partitions lie under the mounted root file
// system, as the kernel knows it, and NoSlot when neither does. A dm-verity
// device has both partitions of its slot as slaves.
func Backing(roots [2]string) (fleet.Slot, error) {
	var st unix.Stat_t
	if err := unix.Stat("/", &st); err != nil {
		return fleet.NoSlot, err
	}
	dir := fmt.Sprintf("/sys/dev/block/%d:%d/slaves", unix.Major(st.Dev), unix.Minor(st.Dev))
	entries, err := os.ReadDir(dir)
	if err != nil {
		return fleet.NoSlot, nil // not on a device-mapper device
	}
	for _, e := range entries {
		for i, s := range fleet.Slots {
			if "/dev/"+e.Name() == roots[i] {
				return s, nil
			}
		}
	}
	return fleet.NoSlot, nil
}
