package netboot

import (
	"net"
	"net/netip"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// reply is one packet to send, and how.
type reply struct {
	msg     *dhcpv4.DHCPv4
	to      netip.AddrPort
	from    netip.Addr
	ifindex int              // 0: routed
	hw      net.HardwareAddr // the receiver has no address yet and cannot be asked by ARP: send the frame here
}

// reply starts an answer: fixed fields as RFC 2131 table 3 copies them, the
// server identifier, and the client's options 61 and 82 byte for byte.
func (e *engine) reply(r *request, t dhcpv4.MessageType) *dhcpv4.DHCPv4 {
	m := &dhcpv4.DHCPv4{
		OpCode: dhcpv4.OpcodeBootReply, HWType: r.msg.HWType, ClientHWAddr: r.msg.ClientHWAddr,
		TransactionID: r.msg.TransactionID, Flags: r.msg.Flags, GatewayIPAddr: r.msg.GatewayIPAddr,
		ClientIPAddr: ip4(netip.Addr{}), YourIPAddr: ip4(netip.Addr{}), ServerIPAddr: ip4(netip.Addr{}),
		Options: dhcpv4.Options{53: {byte(t)}, 54: ip4(r.serverID)},
	}
	for _, code := range []uint8{61, 82} {
		if v, ok := r.msg.Options[code]; ok {
			m.Options[code] = v
		}
	}
	return m
}

// UDP ports of the protocol.
const (
	serverPort = 67
	clientPort = 68
)

// address chooses the way of a reply, RFC 2131 section 4.1: by the relay, to
// the address the client has, by broadcast if it cannot take anything else,
// else in a frame to its hardware address.
func (e *engine) address(m *dhcpv4.DHCPv4, r *request) *reply {
	p := &reply{msg: m, from: r.server, ifindex: r.ifindex}
	switch ciaddr := addr4(r.msg.ClientIPAddr); {
	case r.client.Relay.IsValid():
		p.to, p.ifindex = r.relayPort(), 0
	case ciaddr.IsValid() && !ciaddr.IsUnspecified():
		p.to, p.ifindex = netip.AddrPortFrom(ciaddr, clientPort), 0
	case r.msg.IsBroadcast() || len(m.ClientHWAddr) != 6 || addr4(m.YourIPAddr).IsUnspecified():
		p.to = netip.AddrPortFrom(broadcastAll, clientPort)
	default:
		p.to, p.hw = netip.AddrPortFrom(addr4(m.YourIPAddr), clientPort), m.ClientHWAddr
	}
	return p
}

// relayPort is where a relay wants its replies: at port 67, or at the port it
// sent from if it says so with sub-option 19 of option 82 (RFC 8357).
func (r *request) relayPort() netip.AddrPort {
	port := uint16(serverPort)
	if v, ok := relaySuboptions(r.msg)[19]; ok && len(v) == 0 && r.src.Port() != 0 {
		port = r.src.Port()
	}
	return netip.AddrPortFrom(r.client.Relay, port)
}
