package netboot

import (
	"encoding/hex"
	"fmt"
	"net/netip"
	"strings"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

// Kind says which software speaks, and so which form an answer must have.
type Kind string

// The kinds of client.
const (
	KindOS        Kind = "os"        // an operating system, a BMC, anything that wants an address only
	KindNodeAgent Kind = "nodeagent" // our agent, in the initrd
	KindUEFIPXE   Kind = "uefi-pxe"  // UEFI firmware, loads by TFTP
	KindUEFIHTTP  Kind = "uefi-http" // UEFI firmware, loads by HTTP
	KindIPXE      Kind = "ipxe"      // iPXE, loads by HTTP
	KindUBoot     Kind = "u-boot"    // U-Boot, loads by TFTP
	KindBIOS      Kind = "bios"      // PC BIOS option ROM: cannot start a UKI
)

// Boots reports whether clients of this kind ask for a file to boot.
func (k Kind) Boots() bool { return k != KindOS && k != KindNodeAgent && k != "" }

// Firmware reports whether the kind is burnt into the machine, as opposed to
// loaded over the network.
func (k Kind) Firmware() bool { return k.Boots() && k != KindIPXE }

// Arch is a client system architecture type (option 93, RFC 4578 section 2.1
// and the IANA registry "Processor Architecture Types").
type Arch uint16

// Architectures that are told apart. Other numbers are kept as they came.
const (
	ArchBIOS      Arch = 0
	ArchIA32      Arch = 6
	ArchX64       Arch = 7 // 7 and 9 were swapped in RFC 4578; both are x64 in the field
	ArchX64Alt    Arch = 9
	ArchARM64     Arch = 11
	ArchIA32HTTP  Arch = 15
	ArchX64HTTP   Arch = 16
	ArchARM64HTTP Arch = 19
	ArchBIOSHTTP  Arch = 20
	ArchUBoot64   Arch = 22
	ArchUBootHTTP Arch = 24
	ArchRPi       Arch = 41
	archUnknown   Arch = 0xffff
)

// CPU returns the Go name of the processor ("amd64", "arm64", "386"), or ""
// for a number that says nothing we know.
func (a Arch) CPU() string {
	switch a {
	case ArchX64, ArchX64Alt, ArchX64HTTP, 17:
		return "amd64"
	case ArchARM64, ArchARM64HTTP, ArchUBoot64, ArchUBootHTTP, ArchRPi:
		return "arm64"
	case ArchIA32, ArchIA32HTTP, ArchBIOS, ArchBIOSHTTP:
		return "386"
	}
	return ""
}

func (a Arch) http() bool {
	return a >= ArchIA32HTTP && a <= ArchBIOSHTTP || a == 23 || a == ArchUBootHTTP
}

// Client is what a request says of its sender. Nothing in it is verified:
// any machine on the wire can claim any of it.
type Client struct {
	MAC         fleet.MAC  // hardware address; the 8-byte port GUID for InfiniBand; "" when the packet names none
	ClientID    []byte     // option 61 as it came; identifies only where there is no MAC
	UUID        string     // option 97, "8-4-4-4-12"; "" when absent, broken or a factory placeholder
	UUIDNote    string     // why UUID is "" although option 97 was present
	Arch        Arch       // option 93, else from option 60
	HasArch     bool       // the request said which
	Kind        Kind       //
	VendorClass string     // option 60, printable
	UserClass   string     // option 77, first class, printable
	Hostname    string     // option 12, printable
	Relay       netip.Addr // giaddr; invalid when the client is on our own wire
	CircuitID   []byte     // option 82 sub-option 1
	Interface   string     // ours, on which the request came in
	IP          netip.Addr // the address it has or is offered; invalid before
	Via         string     // "dhcp", "proxy", "tftp", "http"
}

// CPU returns the Go name of the client's processor, "" when not known.
func (c Client) CPU() string {
	if !c.HasArch {
		return ""
	}
	return c.Arch.CPU()
}

// Key is the identity under which the client gets an address: its MAC, else
// its client identifier (RFC 4390: InfiniBand). "" means that it cannot be
// told from others. Client identifiers of machines that have a MAC are not
// used: firmware, iPXE and the system each send another one, which would
// cost three addresses a node.
func (c Client) Key() string {
	switch {
	case c.MAC != "":
		return string(c.MAC)
	case len(c.ClientID) > 1:
		return "id:" + hex.EncodeToString(c.ClientID)
	}
	return ""
}

// Name is the client's identity for people.
func (c Client) Name() string {
	if k := c.Key(); k != "" {
		return k
	}
	if c.IP.IsValid() {
		return c.IP.String()
	}
	return "unidentified client"
}

// CannotBoot returns why the client can start none of our images, or "".
func (c Client) CannotBoot() string {
	switch {
	case !c.Kind.Boots():
		return "asks for an address only"
	case c.Arch == ArchRPi || c.Kind == KindBIOS && raspberry(c.MAC):
		return "the Raspberry Pi's boot ROM cannot start a UKI: put UEFI firmware for it on its card, which then asks as UEFI"
	case c.Kind == KindBIOS || c.Arch == ArchBIOSHTTP:
		return "BIOS firmware cannot start a UKI: enable UEFI boot in the machine's setup"
	case c.HasArch && c.Arch == ArchBIOS:
		return "BIOS build of iPXE cannot start a UKI: enable UEFI boot in the machine's setup"
	case c.HasArch && c.CPU() == "386":
		return "32-bit UEFI firmware cannot start a 64-bit UKI"
	case c.HasArch && c.CPU() == "":
		return fmt.Sprintf("architecture type %d (option 93) has no image", c.Arch)
	}
	return ""
}

// raspberry knows the maker's addresses: the boot ROM says that it is a PC
// BIOS.
func raspberry(mac fleet.MAC) bool {
	for _, start := range []string{"b8:27:eb", "dc:a6:32", "e4:5f:01", "28:cd:c1", "d8:3a:dd", "2c:cf:67", "88:a2:9e"} {
		if strings.HasPrefix(string(mac), start) {
			return true
		}
	}
	return false
}

// ParseClient reads what m says of its sender. It never fails: what is
// missing or malformed is left empty.
func ParseClient(m *dhcpv4.DHCPv4) Client {
	c := Client{
		ClientID:    clone(m.Options.Get(dhcpv4.OptionClientIdentifier)),
		VendorClass: printable(m.Options.Get(dhcpv4.OptionClassIdentifier)),
		UserClass:   userClass(m.Options.Get(dhcpv4.OptionUserClassInformation)),
		Hostname:    printable(m.Options.Get(dhcpv4.OptionHostName)),
		Arch:        archUnknown,
		Via:         "dhcp",
	}
	c.MAC = hardwareAddress(m, c.ClientID)
	c.UUID, c.UUIDNote = parseUUID(m.Options.Get(dhcpv4.OptionClientMachineIdentifier))
	c.Arch, c.HasArch = parseArch(m, c.VendorClass)
	c.Kind = classify(m, c)
	if g := addr4(m.GatewayIPAddr); g.IsValid() && !g.IsUnspecified() {
		c.Relay = g
	}
	if sub, ok := relaySuboptions(m)[1]; ok {
		c.CircuitID = sub
	}
	return c
}

// hardwareAddress returns the MAC of chaddr, or the port GUID in the client
// identifier of an InfiniBand port (RFC 4390: hlen 0 and chaddr zero; some
// stacks send hlen 8).
func hardwareAddress(m *dhcpv4.DHCPv4, clientID []byte) fleet.MAC {
	const infiniband = 32
	if m.HWType == infiniband {
		if len(clientID) == 9 && clientID[0] == infiniband {
			return macOf(clientID[1:])
		}
		if len(m.ClientHWAddr) == 8 {
			return macOf(m.ClientHWAddr)
		}
		return ""
	}
	if len(m.ClientHWAddr) != 6 {
		return ""
	}
	return macOf(m.ClientHWAddr)
}

// macOf is "" for addresses that identify nothing: zero and broadcast.
func macOf(b []byte) fleet.MAC {
	ones := true
	for _, x := range b {
		ones = ones && x == 0xff
	}
	if ones {
		return ""
	}
	mac, err := fleet.ParseMAC(hex.EncodeToString(b))
	if err != nil {
		return ""
	}
	return mac
}

// parseArch prefers option 93 to the number inside option 60.
func parseArch(m *dhcpv4.DHCPv4, class string) (Arch, bool) {
	if v := m.Options.Get(dhcpv4.OptionClientSystemArchitectureType); len(v) >= 2 {
		return Arch(uint16(v[0])<<8 | uint16(v[1])), true
	}
	_, rest, ok := strings.Cut(class, ":Arch:")
	if !ok || len(rest) < 5 {
		return archUnknown, false
	}
	n := 0
	for _, d := range []byte(rest[:5]) {
		if d < '0' || d > '9' {
			return archUnknown, false
		}
		n = n*10 + int(d-'0')
	}
	if n >= int(archUnknown) {
		return archUnknown, false
	}
	return Arch(n), true
}

// classify tells the kinds apart. iPXE comes first: chain-loaded iPXE keeps
// the vendor class of the firmware below it, and taking it for firmware again
// is an endless loop. FlexBoot is iPXE that sends no user class but option
// 175. The class HTTPClient outweighs an architecture number for TFTP.
func classify(m *dhcpv4.DHCPv4, c Client) Kind {
	const optionIPXE = 175
	http := strings.HasPrefix(c.VendorClass, "HTTPClient")
	pxe := strings.HasPrefix(c.VendorClass, "PXEClient")
	switch {
	case c.VendorClass == api.VendorClass:
		return KindNodeAgent
	case c.UserClass == "iPXE" || m.Options.Has(dhcpv4.GenericOptionCode(optionIPXE)):
		return KindIPXE
	case strings.HasPrefix(c.VendorClass, "U-Boot") || c.HasArch && c.Arch >= 21 && c.Arch <= ArchUBootHTTP:
		return KindUBoot
	case http:
		return KindUEFIHTTP
	case pxe && c.HasArch && c.Arch.http():
		return KindUEFIHTTP
	case pxe && c.HasArch && c.Arch == ArchBIOS:
		return KindBIOS
	case pxe && c.HasArch:
		return KindUEFIPXE
	}
	return KindOS // a bare "PXEClient" without architecture is a BMC, or says too little to be served
}

// userClass reads option 77 in both forms found on the wire: RFC 3004 (each
// class preceded by its length) and the raw string of iPXE.
func userClass(v []byte) string {
	if len(v) > 1 && int(v[0]) < len(v) && v[0] > 0 {
		n, ok := 0, false
		for n < len(v) && int(v[n]) > 0 && n+1+int(v[n]) <= len(v) {
			n += 1 + int(v[n])
			ok = n == len(v)
		}
		if ok {
			return printable(v[1 : 1+int(v[0])])
		}
	}
	return printable(v)
}

// parseUUID reads option 97: type 0, then sixteen bytes of which the first
// three fields are little-endian (SMBIOS).
func parseUUID(v []byte) (uuid, note string) {
	switch {
	case len(v) == 0:
		return "", ""
	case len(v) != 17 || v[0] != 0:
		return "", fmt.Sprintf("option 97 has %d bytes of type %d, want 17 of type 0", len(v), v[0])
	}
	b := v[1:]
	if placeholder(b) {
		return "", "option 97 holds a factory placeholder that many boards share"
	}
	return fmt.Sprintf("%02x%02x%02x%02x-%02x%02x-%02x%02x-%x-%x",
		b[3], b[2], b[1], b[0], b[5], b[4], b[7], b[6], b[8:10], b[10:16]), ""
}

// placeholder reports GUIDs that say nothing: one byte repeated, digits that
// count up in steps of bytes or words, and the well-known sample of AMI's
// firmware sources.
func placeholder(b []byte) bool {
	same, bytesUp := true, true
	for i := 1; i < len(b); i++ {
		same = same && b[i] == b[0]
		bytesUp = bytesUp && b[i] == b[i-1]+1
	}
	return same || bytesUp || countingWords(b) ||
		hex.EncodeToString(b) == "0102030405060708090a0b0c0d0e0f00" ||
		hex.EncodeToString(b[:8]) == "0300020004000500" // 03000200-0400-0500-0006-000700080009
}

// countingWords reports 16-bit words, of either byte order, that rise by one
// at a time in at least six of the seven steps.
func countingWords(b []byte) bool {
	le, be := 0, 0
	for i := 2; i+1 < len(b); i += 2 {
		if b[i] == b[i-2]+1 && b[i+1] == b[i-1] {
			le++
		}
		if b[i+1] == b[i-1]+1 && b[i] == b[i-2] {
			be++
		}
	}
	return le >= 6 || be >= 6
}

// printable returns v up to its first NUL, with every byte that is not
// printable ASCII replaced, for logs and comparisons.
func printable(v []byte) string {
	out := make([]byte, 0, len(v))
	for _, b := range v {
		if b == 0 {
			break
		}
		if b < 0x20 || b > 0x7e {
			b = '?'
		}
		out = append(out, b)
	}
	return string(out)
}

func clone(b []byte) []byte {
	if b == nil {
		return nil
	}
	return append([]byte{}, b...)
}
