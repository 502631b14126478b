package netboot

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// errNotForUs marks packets that are well-formed but ask nothing of a DHCP
// server (BOOTP requests, replies of other servers).
var errNotForUs = errors.New("not a DHCP request")

// Limits of a DHCP request in UDP payload bytes: the fixed part with the
// cookie, and the largest that fits an Ethernet frame with room for relays.
const (
	minDHCP = 240
	maxDHCP = 1500
)

// parseRequest decodes a request. A missing End option is forgiven; padding
// and trailing bytes after End are ignored; options that overrun the packet
// are not. It never panics and returns nil with every error.
func parseRequest(b []byte) (*dhcpv4.DHCPv4, error) {
	if len(b) < minDHCP {
		return nil, fmt.Errorf("%d bytes are too short for DHCP", len(b))
	}
	if len(b) > maxDHCP {
		return nil, fmt.Errorf("%d bytes are too long for a DHCP request", len(b))
	}
	if b[0] != byte(dhcpv4.OpcodeBootRequest) {
		return nil, errNotForUs
	}
	if b[2] > 16 {
		return nil, fmt.Errorf("hardware address length %d, at most 16 fit", b[2])
	}
	m, err := dhcpv4.FromBytes(b)
	if errors.Is(err, io.ErrUnexpectedEOF) {
		m, err = dhcpv4.FromBytes(append(append([]byte{}, b...), byte(dhcpv4.OptionEnd.Code())))
	}
	if err != nil {
		return nil, err
	}
	if m.MessageType() == dhcpv4.MessageTypeNone {
		return nil, errNotForUs
	}
	return m, nil
}

// relaySuboptions splits option 82 (RFC 3046). A sub-option that overruns
// ends the list.
func relaySuboptions(m *dhcpv4.DHCPv4) map[byte][]byte {
	v := m.Options.Get(dhcpv4.OptionRelayAgentInformation)
	if len(v) == 0 {
		return nil
	}
	out := map[byte][]byte{}
	for len(v) >= 2 {
		n := int(v[1])
		if 2+n > len(v) {
			break
		}
		out[v[0]] = clone(v[2 : 2+n])
		v = v[2+n:]
	}
	return out
}

// addr4 converts a header field or option; the zero Addr stands for absent
// or not IPv4.
func addr4(ip net.IP) netip.Addr {
	a, ok := netip.AddrFromSlice(ip.To4())
	if !ok {
		return netip.Addr{}
	}
	return a
}

// optionAddr reads an option that holds one IPv4 address.
func optionAddr(m *dhcpv4.DHCPv4, code dhcpv4.OptionCode) netip.Addr {
	v := m.Options.Get(code)
	if len(v) != 4 {
		return netip.Addr{}
	}
	a, _ := netip.AddrFromSlice(v)
	return a
}

// ip4 is the inverse of addr4: four bytes always, zeros for the zero Addr,
// because the codec panics on anything else.
func ip4(a netip.Addr) net.IP {
	if !a.Is4() {
		return net.IP{0, 0, 0, 0}
	}
	b := a.As4()
	return net.IP(b[:])
}

// set writes an option as raw bytes; empty values are left out.
func set(m *dhcpv4.DHCPv4, code byte, v []byte) {
	if len(v) > 0 {
		m.Options[code] = v
	}
}
