//go:build linux

package boot

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/fleet"
)

func cand(path, espGUID, a, b string) candidate {
	d := &disk.Disk{Path: path}
	d.Partitions = []disk.Partition{{Number: 1, Label: "esp", GUID: espGUID}, {Number: 2, Label: "root-a", GUID: espGUID + "-A"}}
	return candidate{d, [2]string{a, b}}
}

func TestChoose(t *testing.T) {
	sda, sdb := cand("/dev/sda", "GUID-A", "r1", "r2"), cand("/dev/sdb", "GUID-B", "r1", "")
	tests := []struct {
		name   string
		cs     []candidate
		loader string
		root   string
		disk   string
		slot   fleet.Slot
		err    string
	}{
		{"no disk", nil, "", "r1", "", "", "no disk with a Turnout layout"},
		{"slot B", []candidate{sda}, "guid-a", "r2", "/dev/sda", "B", ""},
		{"over the network, one disk", []candidate{sda}, "", "r1", "/dev/sda", "A", ""},
		{"over the network, only one of two disks holds it", []candidate{sda, sdb}, "", "r2", "/dev/sda", "B", ""},
		{"over the network, two disks hold it", []candidate{sda, sdb}, "", "r1", "", "", "/dev/sda and on /dev/sdb"},
		{"the loader's disk settles it", []candidate{sda, sdb}, "guid-b", "r1", "/dev/sdb", "A", ""},
		{"the loader's disk does not hold it, another does", []candidate{sda, sdb}, "guid-b", "r2", "", "", "want root hash r2, found /dev/sdb slot A: r1, /dev/sdb slot B: nothing"},
		{"the loader came from elsewhere", []candidate{sda}, "guid-usb", "r2", "/dev/sda", "B", ""},
		{"nobody has it", []candidate{sda, sdb}, "", "r3", "", "", "want root hash r3"},
		{"both slots of a disk hold it", []candidate{cand("/dev/sda", "GUID-A", "r1", "r1")}, "", "r1", "/dev/sda", "A", ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			p, err := choose(tt.cs, tt.loader, tt.root)
			if tt.err != "" {
				if err == nil || !strings.Contains(err.Error(), tt.err) {
					t.Fatalf("choose = %v, want an error with %q", err, tt.err)
				}
				return
			}
			if err != nil || p.disk.Path != tt.disk || p.slot != tt.slot {
				t.Errorf("choose = %+v, %v; want %s slot %s", p, err, tt.disk, tt.slot)
			}
		})
	}
	if _, err := choose([]candidate{sdb}, "", "r9"); !errors.Is(err, errNoSlot) {
		t.Errorf("choose of an unknown root = %v, want errNoSlot", err)
	}
}

func TestParseCmdline(t *testing.T) {
	hash := strings.Repeat("ab", 32)
	b := []byte(strings.Repeat("\xab", 32))
	tests := []struct {
		in   string
		want Cmdline
		err  string
	}{
		{"console=ttyS0 roothash=" + hash + " panic=10\n", Cmdline{RootHash: b}, ""},
		{"roothash=" + hash + " turnout.watchdog=60 turnout.verify=full init=/sbin/hang", Cmdline{RootHash: b, Watchdog: time.Minute, Verify: true, Init: "/sbin/hang"}, ""},
		{"roothash=" + hash + " turnout.verify=full turnout.verify=lazy", Cmdline{RootHash: b}, ""},
		{"turnout.mode=installer turnout.wipe=1 turnout.server=https://10.0.0.1:8443", Cmdline{Installer: true, Wipe: true, Server: "https://10.0.0.1:8443"}, ""},
		{"console=ttyS0", Cmdline{}, "neither roothash="},
		{"roothash=abc", Cmdline{}, "64 hexadecimal digits"},
		{"roothash=" + hash + "00", Cmdline{}, "64 hexadecimal digits"},
		{"turnout.mode=instaler", Cmdline{}, "want installer or slot"},
		{"roothash=" + hash + " turnout.watchdog=1m", Cmdline{}, "want seconds"},
		{"roothash=" + hash + " turnout.watchdog=-1", Cmdline{}, "want seconds"},
		{"roothash=" + hash + " turnout.verify=no", Cmdline{}, "want full or lazy"},
	}
	for _, tt := range tests {
		got, err := ParseCmdline(tt.in)
		if tt.err != "" {
			if err == nil || !strings.Contains(err.Error(), tt.err) {
				t.Errorf("ParseCmdline(%q) = %v, want an error with %q", tt.in, err, tt.err)
			}
			continue
		}
		if d := cmp.Diff(tt.want, got); err != nil || d != "" {
			t.Errorf("ParseCmdline(%q): %v (-want +got):\n%s", tt.in, err, d)
		}
	}
}

func TestBestWatchdog(t *testing.T) {
	soft, tco := foundWatchdog{"/dev/watchdog0", "Software Watchdog"}, foundWatchdog{"/dev/watchdog1", "iTCO_wdt"}
	esb, ipmi := foundWatchdog{"/dev/watchdog2", "i6300ESB timer"}, foundWatchdog{"/dev/watchdog3", "IPMI"}
	tests := []struct {
		all  []foundWatchdog
		want foundWatchdog
	}{
		{nil, foundWatchdog{}},
		{[]foundWatchdog{soft}, soft},
		{[]foundWatchdog{soft, tco}, tco},
		{[]foundWatchdog{tco, esb}, esb},
		{[]foundWatchdog{ipmi, esb, tco}, ipmi},
	}
	for _, tt := range tests {
		if got := bestWatchdog(tt.all); got != tt.want {
			t.Errorf("bestWatchdog(%v) = %v, want %v", tt.all, got, tt.want)
		}
	}
}
