//go:build linux

package boot

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/uki"
)

func TestIsSpent(t *testing.T) {
	for path, want := range map[string]bool{
		`\EFI\Linux\g000002-bbbbbbbbbbbb+0-2.efi`:  true,
		`\EFI\Linux\g000002-bbbbbbbbbbbb+0-51.efi`: true,
		`\EFI\Linux\g000002-bbbbbbbbbbbb+1-1.efi`:  false,
		`\EFI\Linux\g000002-bbbbbbbbbbbb.efi`:      false,
		`\EFI\Linux\foreign+0-2.efi`:               false,
		"":                                         false, // a confirmed slot is not counted
	} {
		if got := isSpent(path); got != want {
			t.Errorf("isSpent(%q) = %v, want %v", path, got, want)
		}
	}
}

func TestNoneGood(t *testing.T) {
	status := func(booted fleet.Slot, a, b fleet.SlotState, problem error) abslot.Status {
		return abslot.Status{Booted: booted, Problem: problem, Slots: [2]abslot.SlotStatus{
			{Slot: fleet.SlotA, State: a, Reason: "tries used up"}, {Slot: fleet.SlotB, State: b},
		}}
	}
	for _, tt := range []struct {
		name   string
		status abslot.Status
		want   bool
	}{
		{"only slot is bad", status(fleet.SlotA, fleet.SlotBad, fleet.SlotEmpty, nil), true},
		{"both are bad", status(fleet.SlotB, fleet.SlotBad, fleet.SlotBad, nil), true},
		{"other one half written", status(fleet.SlotA, fleet.SlotBad, fleet.SlotWriting, nil), true},
		{"other one is good", status(fleet.SlotA, fleet.SlotBad, fleet.SlotGood, nil), false},
		{"other one will be tried", status(fleet.SlotA, fleet.SlotBad, fleet.SlotArmed, nil), false},
		{"last trial", status(fleet.SlotA, fleet.SlotTrying, fleet.SlotEmpty, nil), false},
		{"confirmed", status(fleet.SlotA, fleet.SlotGood, fleet.SlotBad, nil), false},
		{"evidence disagrees", status(fleet.SlotA, fleet.SlotBad, fleet.SlotBad, abslot.ErrEvidence), false},
		{"nothing booted", status(fleet.NoSlot, fleet.SlotBad, fleet.SlotBad, nil), false},
	} {
		why, got := noneGood(tt.status)
		if got != tt.want || got != strings.Contains(why, "slot A is bad (tries used up), slot B is") {
			t.Errorf("%s: noneGood = %q, %v, want %v", tt.name, why, got, tt.want)
		}
	}
}

const (
	loaderFile = "/usr/lib/systemd/boot/efi/systemd-bootx64.efi"
	ovmfCode   = "/usr/share/OVMF/OVMF_CODE_4M.fd"
	ovmfVars   = "/usr/share/OVMF/OVMF_VARS_4M.fd"
)

// TestBootNoneGood starts a disk whose only slot is out of tries, with the
// real loader on real firmware whose boot order has the disk first. Nothing
// of the slot is started, and the firmware goes to the network next.
func TestBootNoneGood(t *testing.T) {
	t.Parallel()
	v := newVM(t)
	for _, file := range []string{loaderFile, ovmfCode, ovmfVars} {
		if _, err := os.Stat(file); err != nil {
			lack(t, file)
		}
	}
	v.onlySlot(t, "g000001-aaaaaaaaaaaa+0-2.efi")
	console := v.bootFirmware(t, ">>Start PXE over IPv4")
	start, next, ok := strings.Cut(console, "turnout: the machine is reset in")
	if !ok || strings.Contains(start, "Start PXE") || !strings.Contains(next, ">>Start PXE over IPv4") || strings.Contains(console, "FOUND") {
		t.Errorf("want the disk's initrd, a reset, then a network boot; the console:\n%s", console)
	}
	wantLine(t, console, "no slot is good: slot A is bad")
	wantLine(t, console, "PXEv4")
	if got := v.espFiles(t); len(got) != 1 || got[0] != "g000001-aaaaaaaaaaaa+0-3.efi" {
		t.Errorf("UKIs afterwards = %v, want the one that the loader counted", got)
	}
}

// onlySlot lays the disk out anew with root 0 in slot A, its UKI, which can
// be started, and systemd-boot.
func (v *vm) onlySlot(t *testing.T, name string) {
	t.Helper()
	read := func(file string) []byte {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	u, err := uki.Build(read(stub), []uki.Section{
		{Name: ".osrel", Data: []byte("ID=turnout-test\nVERSION_ID=1\nIMAGE_ID=turnout-test\nIMAGE_VERSION=1\nPRETTY_NAME=test\n")},
		{Name: ".cmdline", Data: []byte("console=ttyS0 quiet panic=1 roothash=" + v.roots[0].hash)},
		{Name: ".initrd", Data: read(v.initrd)}, {Name: ".linux", Data: read(v.kernel.image)},
	})
	if err != nil {
		t.Fatal(err)
	}
	v.layout, err = disk.Plan(disk.Geometry{SizeBytes: 2 * disk.GiB, SectorSize: 512}, disk.Want{RootBytes: 32 * disk.MiB, VerityBytes: disk.MiB, ESPBytes: 300 * disk.MiB})
	if err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(v.disk)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := f.Truncate(v.layout.SizeBytes); err != nil {
		t.Fatal(err)
	}
	files := disk.ESPFiles("amd64", read(loaderFile))
	files["EFI/Linux/"+name] = u
	if err := disk.Write(t.Context(), f, v.layout, files); err != nil {
		t.Fatal(err)
	}
	v.put(t, f, disk.RootLabel(fleet.SlotA), v.roots[0].path)
	v.put(t, f, disk.VerityLabel(fleet.SlotA), v.roots[0].tree)
}

// bootFirmware starts the machine with firmware that boots the disk, else a
// network on which nobody answers, and returns its console once that says
// until, or nothing more is to be waited for.
func (v *vm) bootFirmware(t *testing.T, until string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	defer cancel()
	dir := t.TempDir()
	vars, serial := filepath.Join(dir, "vars"), filepath.Join(dir, "serial")
	command(t, "cp", ovmfVars, vars)
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64",
		"-machine", "q35", "-accel", "tcg,thread=multi", "-cpu", "max", "-smp", "1", "-m", "512",
		"-display", "none", "-vga", "none", "-nodefaults",
		"-drive", "if=pflash,format=raw,readonly=on,file="+ovmfCode, "-drive", "if=pflash,format=raw,file="+vars,
		"-drive", "if=none,id=d,format=raw,file="+v.disk, "-device", "virtio-blk-pci,drive=d,bootindex=1",
		"-netdev", "user,id=n,restrict=on", "-device", "virtio-net-pci,netdev=n,romfile=,bootindex=2",
		"-chardev", "file,id=s,path="+serial, "-serial", "chardev:s")
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	tick := time.NewTicker(200 * time.Millisecond)
	defer tick.Stop()
	for {
		console, _ := os.ReadFile(serial)
		if bytes.Contains(console, []byte(until)) {
			cancel()
			<-ended
			return string(console)
		}
		select {
		case err := <-ended:
			t.Fatalf("qemu ended before the console said %q: %v: %s\n%s", until, err, out.Bytes(), console)
		case <-tick.C:
		}
	}
}
