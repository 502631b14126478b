package efivar

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

var ours = DiskEntry{
	Description: "Turnout", Number: 1, Start: 2048, Size: 4194304, GUID: "0FC63DAF-8483-4772-8E79-3D69D8477DE4", Path: `\EFI\BOOT\BOOTX64.EFI`,
}

// TestDiskEntryBytes holds every field against the specification's layout.
func TestDiskEntryBytes(t *testing.T) {
	short := ours
	short.Description, short.Path = "T", `\A`
	got, err := short.marshal()
	if err != nil {
		t.Fatal(err)
	}
	want := strings.Join([]string{
		"01000000", "3800", "54000000", // active, 56 bytes of path, "T"
		"04012a00", "01000000", "0008000000000000", "0000400000000000", // HD: partition 1 from sector 0x800, 0x400000 sectors
		"af3dc60f83847247" + "8e793d69d8477de4", "0202", // GUID as stored, GPT, signed by GUID
		"04040a00", "5c0041000000", "7fff0400", // file, end
	}, "")
	if hex.EncodeToString(got) != want {
		t.Errorf("entry is\n%x, want\n%s", got, want)
	}
	o, err := ParseLoadOption(got)
	if err != nil || o.Description != "T" || !slices.Equal(o.Path, []PathNode{{pathMedia, nodeDisk}, {pathMedia, nodeFile}}) || o.IsNetworkIPv4() {
		t.Errorf("ParseLoadOption = %+v, %v", o, err)
	}
	for _, id := range []string{"", "0FC63DAF", "XFC63DAF-8483-4772-8E79-3D69D8477DE4"} {
		if _, err := (DiskEntry{GUID: id}).marshal(); err == nil {
			t.Errorf("GUID %q is taken", id)
		}
	}
}

// nvram is a folder of variables as efivarfs shows them.
type nvram struct {
	t   *testing.T
	dir string
}

func (v nvram) set(name string, value []byte) {
	v.t.Helper()
	if err := os.WriteFile(filepath.Join(v.dir, name+"-"+Global), append([]byte{7, 0, 0, 0}, value...), 0o644); err != nil {
		v.t.Fatal(err)
	}
}

func (v nvram) all() map[string]string {
	v.t.Helper()
	names, err := filepath.Glob(v.dir + "/*")
	if err != nil {
		v.t.Fatal(err)
	}
	m := map[string]string{}
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			v.t.Fatal(err)
		}
		m[strings.TrimSuffix(filepath.Base(n), "-"+Global)] = hex.EncodeToString(b[4:])
	}
	return m
}

// TestAddEntry: what firmware makes of boot entries, and what is done about it.
func TestAddEntry(t *testing.T) {
	entry := func(e DiskEntry) []byte {
		b, err := e.marshal()
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	elsewhere, lower, inactive := ours, ours, entry(ours)
	elsewhere.GUID = "00000000-8483-4772-8E79-3D69D8477DE4"
	lower.Path, lower.Description = `\EFI\boot\bootx64.efi`, "UEFI OS"
	inactive[0] = 0
	tests := []struct {
		name   string
		vars   map[string][]byte
		want   EntryState
		number uint16
		order  string            // BootOrder afterwards
		fresh  map[string][]byte // variables that are made
	}{
		{"NVRAM wiped", nil, EntryMissing, 0, "0000", map[string][]byte{"Boot0000": entry(ours)}},
		{"dropped by the firmware", map[string][]byte{"BootOrder": {3, 0, 1, 0}, "Boot0003": entry(elsewhere), "Boot0001": []byte("junk")},
			EntryMissing, 0, "030001000000", map[string][]byte{"Boot0000": entry(ours)}},
		{"the first numbers are taken", map[string][]byte{"Boot0000": entry(elsewhere), "Boot0001": inactive}, EntryMissing, 2, "0200", map[string][]byte{"Boot0002": entry(ours)}},
		{"there", map[string][]byte{"BootOrder": {5, 0, 0xa, 0}, "Boot0005": entry(elsewhere), "Boot000A": entry(ours)}, EntryThere, 10, "05000a00", nil},
		{"made by the firmware", map[string][]byte{"BootOrder": {5, 0}, "Boot0005": entry(lower)}, EntryThere, 5, "0500", nil},
		{"duplicated", map[string][]byte{"BootOrder": {6, 0}, "Boot0005": entry(ours), "Boot0006": entry(ours)}, EntryThere, 6, "0600", nil},
		{"not listed any more", map[string][]byte{"BootOrder": {1, 0}, "Boot0001": entry(elsewhere), "Boot0005": entry(ours)}, EntryUnlisted, 5, "01000500", nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			v := nvram{t, t.TempDir()}
			for n, b := range tt.vars {
				v.set(n, b)
			}
			want := v.all()
			state, n, err := AddEntry(v.dir, ours)
			if err != nil || state != tt.want || n != tt.number {
				t.Fatalf("AddEntry = %s, %d, %v; want %s, %d", state, n, err, tt.want, tt.number)
			}
			got := v.all()
			want["BootOrder"] = tt.order
			for name, b := range tt.fresh {
				want[name] = hex.EncodeToString(b)
			}
			if len(got) != len(want) {
				t.Errorf("variables %v, want %v", got, want)
			}
			for name, b := range want {
				if got[name] != b {
					t.Errorf("%s = %s, want %s", name, got[name], b)
				}
			}
			if state, again, err := AddEntry(v.dir, ours); state != EntryThere || again != n || err != nil {
				t.Errorf("AddEntry once more = %s, %d, %v", state, again, err)
			}
		})
	}
	if _, _, err := AddEntry(filepath.Join(t.TempDir(), "none"), ours); !errors.Is(err, ErrNotExist) {
		t.Errorf("AddEntry without EFI variables = %v, want ErrNotExist", err)
	}
}

func FuzzLeadsTo(f *testing.F) {
	b, err := ours.marshal()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		if ours.leadsTo(b) && !bytes.Contains(b, []byte{formatGPT, signedGUID}) {
			t.Errorf("%x is taken for ours", b)
		}
	})
}
