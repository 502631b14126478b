//go:build linux

package boot

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/node/bootinfo"
	"github.com/turnout-project/turnout/internal/verity"
)

// found is what testdata/system tells.
type found struct {
	Boot                        bootinfo.Info
	Root, Var, Seeded, Watchdog string
	ReadError, MachineID        string
	Visits                      int
	ReadOnly, Initrd            bool
}

func parseFound(t *testing.T, console string) found {
	t.Helper()
	_, text, ok := strings.Cut(console, "FOUND ")
	if !ok {
		t.Fatalf("the system did not come up:\n%s", console)
	}
	var f found
	text, _, _ = strings.Cut(text, "\n")
	if err := json.Unmarshal([]byte(text), &f); err != nil {
		t.Fatalf("%v in %q", err, text)
	}
	return f
}

func wantLine(t *testing.T, console, part string) {
	t.Helper()
	if !strings.Contains(console, part) {
		t.Errorf("the console does not say %q:\n%s", part, console)
	}
}

func TestBootSlot(t *testing.T) {
	t.Parallel()
	v := newVM(t)
	id := ""
	for visit, s := range []fleet.Slot{fleet.SlotA, fleet.SlotB, fleet.SlotA} {
		hash := v.roots[s.Index()].hash
		console := v.boot(t, "turnout.verify=full roothash="+hash)
		f := parseFound(t, console)
		if f.Boot.Slot != s || f.Boot.RootHash != hash || f.Boot.BootPath != "network" || f.Boot.Disk != "/dev/vda" {
			t.Errorf("boot record = %+v, want slot %s by network from /dev/vda", f.Boot, s)
		}
		if f.Boot.Starts != 1 || f.Root != "squashfs" || !strings.HasPrefix(f.Var, "ext4 rw,nosuid,nodev") || !f.ReadOnly || f.Initrd || f.ReadError != "" {
			t.Errorf("system found %+v, want a read-only squashfs with /var of ext4", f)
		}
		if f.Seeded != "root 0" || f.Visits != visit+1 {
			t.Errorf("/var: seed %q, %d visits; want that of the first image, and %d", f.Seeded, f.Visits, visit+1)
		}
		if !isMachineID(f.MachineID) || id != "" && f.MachineID != id {
			t.Errorf("machine id %q, want that of the first boot, %q", f.MachineID, id)
		}
		id = f.MachineID
		wantLine(t, console, "turnout: root verified")
	}
}

// TestBootWatchdog: of the chipset's watchdog, which QEMU before 8.0 straps so
// that it never resets, and a card, the card is taken, told to systemd, and
// ends a system that hangs.
func TestBootWatchdog(t *testing.T) {
	t.Parallel()
	v := newVM(t)
	console := v.boot(t, "test.hang turnout.watchdog=5 roothash="+v.roots[0].hash, "-device", "i6300esb", "-action", "watchdog=reset")
	wantLine(t, console, "(i6300ESB timer) resets the machine after 5s")
	f := parseFound(t, console)
	if f.Boot.Watchdog.Device == "" || f.Boot.Watchdog.Seconds != 5 {
		t.Errorf("watchdog in the boot record = %+v, want one with 5 s", f.Boot.Watchdog)
	}
	want := fmt.Sprintf("[Manager]\nWatchdogDevice=%s\nRuntimeWatchdogSec=5\nRebootWatchdogSec=120\n", f.Boot.Watchdog.Device)
	if f.Watchdog != want {
		t.Errorf("systemd is told %q, want %q", f.Watchdog, want)
	}
}

// TestBootSoftdog: without any hardware the kernel's own is better than none.
func TestBootSoftdog(t *testing.T) {
	t.Parallel()
	v := newVM(t)
	console := v.boot(t, "test.hang turnout.watchdog=5 roothash="+v.roots[0].hash, "-machine", "pc")
	wantLine(t, console, "(Software Watchdog) resets the machine after 5s")
	parseFound(t, console)
}

// TestBootTamperedRoot: one bit of the root was changed on the disk. The full
// verification condemns the slot before anything of it was used.
func TestBootTamperedRoot(t *testing.T) {
	t.Parallel()
	v := newVM(t)
	v.damage(t, "root-b", 9*disk.MiB)
	console := v.boot(t, "turnout.verify=full roothash="+v.roots[1].hash)
	if strings.Contains(console, "FOUND") {
		t.Errorf("the tampered root was started:\n%s", console)
	}
	wantLine(t, console, "of the data (byte")
	want := []string{names[0], "g000002-bbbbbbbbbbbb+0-50.efi"}
	if got := v.espFiles(t); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("UKIs afterwards = %v, want %v", got, want)
	}
	if f := parseFound(t, v.boot(t, "turnout.verify=full roothash="+v.roots[0].hash)); f.Boot.Slot != fleet.SlotA {
		t.Errorf("the good slot came up as %+v", f.Boot)
	}
}

// TestBootTamperedTree: the damage is in the top of the tree, so that no slot
// holds the root any more.
func TestBootTamperedTree(t *testing.T) {
	t.Parallel()
	v := newVM(t)
	v.damage(t, "verity-b", verity.BlockSize+100)
	console := v.boot(t, "turnout.verify=full roothash="+v.roots[1].hash)
	if strings.Contains(console, "FOUND") {
		t.Errorf("the tampered slot was started:\n%s", console)
	}
	wantLine(t, console, "no slot holds the root that this kernel was started for")
	want := []string{names[0], "g000002-bbbbbbbbbbbb+0-50.efi"}
	if got := v.espFiles(t); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("UKIs afterwards = %v, want %v", got, want)
	}
}

// TestBootTamperedLazily: without the full verification the kernel finds the
// block when it is read, and panics.
func TestBootTamperedLazily(t *testing.T) {
	t.Parallel()
	v := newVM(t)
	v.damage(t, "root-b", 9*disk.MiB)
	console := v.boot(t, "turnout.verify=lazy roothash="+v.roots[1].hash)
	if strings.Contains(console, "FOUND") {
		t.Errorf("the whole of a tampered root was read:\n%s", console)
	}
	wantLine(t, console, "dm-verity device corrupted")
}

// TestBootLastGood: with nothing to fall back to, a tampered slot is neither
// started nor condemned.
func TestBootLastGood(t *testing.T) {
	t.Parallel()
	v := newVM(t)
	v.damage(t, "root-a", 9*disk.MiB)
	v.damage(t, "verity-b", verity.BlockSize+100)
	console := v.boot(t, "turnout.verify=full roothash="+v.roots[0].hash)
	if strings.Contains(console, "FOUND") {
		t.Errorf("the tampered root was started:\n%s", console)
	}
	wantLine(t, console, "no other good slot")
	if got := v.espFiles(t); fmt.Sprint(got) != fmt.Sprint(names) {
		t.Errorf("UKIs afterwards = %v, want %v", got, names)
	}
}

// TestBootNeverHealthy: a slot that is started again and again without ever
// passing local health is condemned at the fourth start.
func TestBootNeverHealthy(t *testing.T) {
	t.Parallel()
	v := newVM(t)
	for start := 1; start <= 3; start++ {
		f := parseFound(t, v.boot(t, "roothash="+v.roots[1].hash))
		if f.Boot.Starts != start {
			t.Fatalf("start %d was counted as %d", start, f.Boot.Starts)
		}
	}
	console := v.boot(t, "roothash="+v.roots[1].hash)
	if strings.Contains(console, "FOUND") {
		t.Errorf("it was started a fourth time:\n%s", console)
	}
	wantLine(t, console, "started 3 times in a row without passing its own health checks")
	want := []string{names[0], "g000002-bbbbbbbbbbbb+0-50.efi"}
	if got := v.espFiles(t); fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("UKIs afterwards = %v, want %v", got, want)
	}
}

// TestBootNonsense: a command line that says nothing ends in a reset, with a
// word on the console.
func TestBootNonsense(t *testing.T) {
	t.Parallel()
	v := newVM(t)
	wantLine(t, v.boot(t, ""), "turnout: error: kernel command line has neither roothash= nor turnout.mode=installer")
}
