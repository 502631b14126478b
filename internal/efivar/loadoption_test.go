package efivar

import (
	"encoding/binary"
	"errors"
	"strings"
	"testing"
	"unicode/utf16"
)

// option makes the value of a Boot#### variable. Each node is type, subtype
// and data.
func option(attr uint32, text string, nodes ...string) []byte {
	var path []byte
	for _, n := range append(nodes, "\x7f\xff") {
		path = append(path, n[0], n[1])
		path = binary.LittleEndian.AppendUint16(path, uint16(len(n)+2))
		path = append(path, n[2:]...)
	}
	b := binary.LittleEndian.AppendUint32(nil, attr)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(path)))
	for _, c := range append(utf16.Encode([]rune(text)), 0) {
		b = binary.LittleEndian.AppendUint16(b, c)
	}
	return append(append(b, path...), "optional data"...)
}

var (
	acpi  = "\x02\x01\xd0\x41\x03\x0a\x00\x00\x00\x00"
	pci   = "\x01\x01\x00\x02"
	mac   = "\x03\x0b" + strings.Repeat("\x00", 32) + "\x01"
	ipv4  = "\x03\x0c" + strings.Repeat("\x00", 23)
	ipv6  = "\x03\x0d" + strings.Repeat("\x00", 56)
	dns   = "\x03\x1f\x00"
	uri   = "\x03\x18"
	iscsi = "\x03\x13" + strings.Repeat("\x00", 14)
	disk  = "\x04\x01" + strings.Repeat("\x00", 38)
	again = "\x7f\x01" // end of an instance
)

func TestIsNetworkIPv4(t *testing.T) {
	for _, tt := range []struct {
		name  string
		value []byte
		want  bool
	}{
		{"UEFI PXEv4 (MAC:525400123456)", option(1, "UEFI PXEv4", acpi, pci, mac, ipv4), true},
		{"UEFI HTTPv4", option(9, "UEFI HTTPv4", acpi, pci, mac, ipv4, uri), true},
		{"HTTP with a name server", option(1, "HTTP", acpi, pci, mac, ipv4, dns, uri), true},
		{"URI without IP", option(1, "HTTP", acpi, pci, mac, uri), true},
		{"PXEv6", option(1, "PXEv6", acpi, pci, mac, ipv6), false},
		{"HTTPv6", option(1, "HTTPv6", acpi, pci, mac, ipv6, uri), false},
		{"iSCSI", option(1, "iSCSI", acpi, pci, mac, ipv4, iscsi), false},
		{"interface alone", option(1, "NIC", acpi, pci, mac), false},
		{"disk", option(1, "disk", acpi, pci, disk), false},
		{"switched off", option(0, "UEFI PXEv4", acpi, pci, mac, ipv4), false},
		{"an application", option(0x101, "setup", acpi, pci, mac, ipv4), false},
		{"IPv4 in the second instance only", option(1, "two", acpi, pci, mac, again, mac, ipv4), false},
	} {
		o, err := ParseLoadOption(tt.value)
		if err != nil || o.IsNetworkIPv4() != tt.want {
			t.Errorf("%s: %+v, %v; network over IPv4 %v, want %v", tt.name, o, err, o.IsNetworkIPv4(), tt.want)
		}
	}
}

// TestParseLoadOptionCut: of an option that ends early nothing is believed.
func TestParseLoadOptionCut(t *testing.T) {
	whole := option(1, "UEFI PXEv4", acpi, pci, mac, ipv4)
	whole = whole[:len(whole)-len("optional data")]
	if o, err := ParseLoadOption(whole); err != nil || o.Description != "UEFI PXEv4" || len(o.Path) != 4 {
		t.Fatalf("ParseLoadOption(whole) = %+v, %v", o, err)
	}
	for n := range whole {
		if o, err := ParseLoadOption(whole[:n]); err == nil {
			t.Errorf("ParseLoadOption of the first %d of %d bytes = %+v, want an error", n, len(whole), o)
		}
	}
}

func FuzzParseLoadOption(f *testing.F) {
	f.Add(option(1, "UEFI PXEv4", acpi, pci, mac, ipv4))
	f.Add(option(1, "", again))
	f.Add([]byte{1, 0, 0, 0, 4, 0, 0, 0, 3, 11, 0, 0}) // a node of no length
	f.Fuzz(func(t *testing.T, b []byte) {
		o, err := ParseLoadOption(b)
		if err != nil {
			return
		}
		if len(o.Path)*4 > len(b) || len(o.Description) > 3*len(b) {
			t.Errorf("%d bytes gave %d nodes and a description of %d bytes", len(b), len(o.Path), len(o.Description))
		}
	})
}

func TestNetworkBoot(t *testing.T) {
	dir := t.TempDir()
	if _, _, err := NetworkBoot(dir); !errors.Is(err, ErrNotExist) {
		t.Errorf("without BootOrder: %v, want ErrNotExist", err)
	}
	put(t, dir, "BootOrder", Global, "\x07\x00\x00\x00\x01\x00\x09\x00\x02\x00\x0b\x00\x0a\x00!")
	put(t, dir, "Boot0001", Global, "\x07\x00\x00\x00"+string(option(1, "disk", acpi, pci, disk)))
	put(t, dir, "Boot0002", Global, "\x07\x00\x00\x00nonsense") // Boot0009 is missing
	put(t, dir, "Boot000C", Global, "\x07\x00\x00\x00"+string(option(1, "not in BootOrder", acpi, pci, mac, ipv4)))
	if _, o, err := NetworkBoot(dir); !errors.Is(err, ErrNoNetworkBoot) {
		t.Errorf("without a network entry: %+v, %v, want ErrNoNetworkBoot", o, err)
	}
	put(t, dir, "Boot000A", Global, "\x07\x00\x00\x00"+string(option(1, "second", acpi, pci, mac, ipv4)))
	put(t, dir, "Boot000B", Global, "\x07\x00\x00\x00"+string(option(1, "first", acpi, pci, mac, ipv4)))
	if n, o, err := NetworkBoot(dir); n != 0xb || o.Description != "first" || err != nil {
		t.Errorf("NetworkBoot = %#x, %+v, %v; want the first of BootOrder, 0xb", n, o, err)
	}
}
