package netboot

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

func TestParseClientOfCapturedPackets(t *testing.T) {
	ps := packets(t)
	for _, tc := range []struct {
		name string
		want Client
	}{
		{"P02", Client{MAC: "60:be:b4:06:13:37", Arch: ArchX64HTTP, HasArch: true, Kind: KindUEFIHTTP,
			VendorClass: "HTTPClient:Arch:00016:UNDI:003016", UUIDNote: "option 97 holds a factory placeholder that many boards share"}},
		{"P10", Client{MAC: "02:00:00:00:00:02", Arch: ArchX64, HasArch: true, Kind: KindUEFIPXE, VendorClass: "PXEClient:Arch:00007:UNDI:003001"}},
		{"P11", Client{MAC: "e0:07:1b:ff:ff:79:d0:84", Arch: archUnknown, Kind: KindOS}},
		{"P12", Client{MAC: "e0:07:1b:ff:ff:79:d0:84", Arch: ArchX64, HasArch: true, Kind: KindUEFIPXE, VendorClass: "PXEClient:Arch:00007:UNDI:003001"}},
	} {
		m, err := parseRequest(ps[tc.name])
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
			continue
		}
		tc.want.Via = "dhcp"
		if d := cmp.Diff(tc.want, ParseClient(m), cmpopts.IgnoreFields(Client{}, "ClientID", "Relay", "IP")); d != "" {
			t.Errorf("%s (-want +got):\n%s", tc.name, d)
		}
	}
}

func TestKind(t *testing.T) {
	const pxeX64, httpX64 = "PXEClient:Arch:00007:UNDI:003016", "HTTPClient:Arch:00016:UNDI:003001"
	for _, tc := range []struct {
		name string
		opts []any
		kind Kind
		cpu  string
		boot bool
	}{
		{"UEFI x64", []any{60, pxeX64, 93, "\x00\x07"}, KindUEFIPXE, "amd64", true},
		{"UEFI x64 by the swapped number", []any{60, pxeX64, 93, "\x00\x09"}, KindUEFIPXE, "amd64", true},
		{"UEFI x64, number in class only", []any{60, pxeX64}, KindUEFIPXE, "amd64", true},
		{"UEFI arm64", []any{60, "PXEClient:Arch:00011:UNDI:003000", 93, "\x00\x0b"}, KindUEFIPXE, "arm64", true},
		{"UEFI IA32", []any{60, "PXEClient:Arch:00006:UNDI:003000", 93, "\x00\x06"}, KindUEFIPXE, "386", false},
		{"HTTP x64", []any{60, httpX64, 93, "\x00\x10"}, KindUEFIHTTP, "amd64", true},
		{"HTTP arm64", []any{60, "HTTPClient:Arch:00019:UNDI:003001", 93, "\x00\x13"}, KindUEFIHTTP, "arm64", true},
		{"HTTP class with TFTP number", []any{60, "HTTPClient:Arch:00011:UNDI:003001", 93, "\x00\x0b"}, KindUEFIHTTP, "arm64", true},
		{"BIOS", []any{60, "PXEClient:Arch:00000:UNDI:002001", 93, "\x00\x00"}, KindBIOS, "386", false},
		{"iPXE raw class over firmware's class", []any{60, pxeX64, 93, "\x00\x07", 77, "iPXE"}, KindIPXE, "amd64", true},
		{"iPXE framed class", []any{60, pxeX64, 93, "\x00\x07", 77, "\x04iPXE"}, KindIPXE, "amd64", true},
		{"FlexBoot: option 175 only", []any{60, pxeX64, 93, "\x00\x07", 175, "\x01\x01\x00"}, KindIPXE, "amd64", true},
		{"iPXE on BIOS", []any{60, "PXEClient:Arch:00000:UNDI:002001", 93, "\x00\x00", 77, "iPXE"}, KindIPXE, "386", false},
		{"U-Boot", []any{60, "U-Boot.armv8", 93, "\x00\x16"}, KindUBoot, "arm64", true},
		{"Raspberry Pi with a number of its own", []any{60, "PXEClient:Arch:00041:UNDI:002001", 93, "\x00\x29"}, KindUEFIPXE, "arm64", false},
		{"our agent", []any{60, "turnout-nodeagent"}, KindNodeAgent, "", false},
		{"Linux", []any{60, "udhcp 1.36"}, KindOS, "", false},
		{"nothing", nil, KindOS, "", false},
		{"BMC that says PXEClient only", []any{60, "PXEClient"}, KindOS, "", false},
		{"BlueField BMC", []any{60, "NVIDIA/BF/BMC"}, KindOS, "", false},
		{"architecture nobody builds for", []any{60, pxeX64, 93, "\x00\x25"}, KindUEFIPXE, "", false},
	} {
		c := ParseClient(packet(dhcpv4.MessageTypeDiscover, mac1, tc.opts...))
		if c.Kind != tc.kind || c.CPU() != tc.cpu || (c.CannotBoot() == "") != tc.boot {
			t.Errorf("%s: kind %q, CPU %q, cannot boot %q; want %q, %q, boots %v", tc.name, c.Kind, c.CPU(), c.CannotBoot(), tc.kind, tc.cpu, tc.boot)
		}
	}
}

func TestUserClass(t *testing.T) {
	for in, want := range map[string]string{
		"iPXE": "iPXE", "\x04iPXE": "iPXE", "\x04iPXE\x03foo": "iPXE", "": "", "\x00": "", "\x09iPXE": "?iPXE", "\x04iPXE\x09foo": "?iPXE?foo",
	} {
		if got := userClass([]byte(in)); got != want {
			t.Errorf("userClass(%q) = %q; want %q", in, got, want)
		}
	}
}

func TestUUID(t *testing.T) {
	for _, tc := range []struct{ in, want, note string }{
		{"", "", ""},
		{"\x00\x33\x22\x11\x00\x55\x44\x77\x66\x88\x99\xaa\xbb\xcc\xdd\xee\x0f", "00112233-4455-6677-8899-aabbccddee0f", ""},
		{"\x00" + same(0), "", "placeholder"},
		{"\x00" + same(0xff), "", "placeholder"},
		{"\x00\x00\x02\x00\x03\x00\x04\x00\x05\x00\x06\x00\x07\x00\x08\x00\x09", "", "placeholder"},
		{"\x00\x03\x00\x02\x00\x04\x00\x05\x00\x00\x06\x00\x07\x00\x08\x00\x09", "", "placeholder"},
		{"\x00\x00\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b\x0c\x0d\x0e\x0f", "", "placeholder"},
		{"\x01" + same(7), "", "type 1"},
		{"\x00\x01\x02", "", "3 bytes"},
	} {
		got, note := parseUUID([]byte(tc.in))
		if got != tc.want || (note == "") != (tc.note == "") {
			t.Errorf("parseUUID(%x) = %q, %q; want %q, note with %q", tc.in, got, note, tc.want, tc.note)
		}
	}
}

func same(b byte) string {
	s := make([]byte, 16)
	for i := range s {
		s[i] = b
	}
	return string(s)
}

func TestKeyIsMACWhateverTheClientID(t *testing.T) {
	// Firmware, iPXE and the system each send another option 61.
	var keys []string
	for _, id := range []string{"\x00" + same(1), "\x01\x52\x54\x00\x00\x00\x01", "\xff\x00\x00\x00\x01\x00\x02"} {
		keys = append(keys, ParseClient(packet(dhcpv4.MessageTypeDiscover, mac1, 61, id)).Key())
	}
	if keys[0] != mac1 || keys[1] != mac1 || keys[2] != mac1 {
		t.Errorf("keys = %q; want the MAC three times", keys)
	}
	if k := ParseClient(packet(dhcpv4.MessageTypeDiscover, "00:00:00:00:00:00")).Key(); k != "" {
		t.Errorf("key of the zero MAC = %q; want none", k)
	}
	if k := ParseClient(packet(dhcpv4.MessageTypeDiscover, "00:00:00:00:00:00", 61, "\x00box7")).Key(); k != "id:00626f7837" {
		t.Errorf("key without MAC = %q; want the client identifier", k)
	}
}

func FuzzHandle(f *testing.F) {
	for _, p := range packets(f) {
		f.Add(p)
	}
	f.Add(pxe(packet(dhcpv4.MessageTypeRequest, mac1, 77, "\x04iPXE", 82, "\x01\x04abcd\x05\x04\x0a\x4d\x00\x01"), 7).ToBytes())
	s := &Server{Config: rackConfig(), Policy: always(installer([]byte("x")))}
	s.init()
	s.engine.pool = newPool(s.Config.Subnets, nil)
	f.Fuzz(func(t *testing.T, b []byte) {
		for _, mode := range []Mode{ModeServer, ModeProxy} {
			s.engine.cfg.Mode = mode
			for _, boot := range []bool{false, true} {
				a := wire
				a.bootServer = boot
				r := s.engine.handle(t.Context(), b, a)
				if r == nil {
					continue
				}
				if m, err := dhcpv4.FromBytes(r.msg.ToBytes()); err != nil || m.OpCode != dhcpv4.OpcodeBootReply {
					t.Fatalf("reply does not parse: %v", err)
				}
			}
		}
	})
}
