package netboot

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"

	"golang.org/x/sys/unix"
)

// frames sends IPv4/UDP packets to hardware addresses, for clients that have
// no address yet and so answer no ARP request.
type frames struct{ fd int }

// newFrames needs CAP_NET_RAW.
func newFrames() (*frames, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0) // protocol 0: receives nothing
	if err != nil {
		return nil, fmt.Errorf("opening packet socket: %w", err)
	}
	return &frames{fd}, nil
}

func (f *frames) close() { unix.Close(f.fd) }

func (f *frames) send(ifindex int, hw net.HardwareAddr, from, to netip.AddrPort, payload []byte) error {
	sa := &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_IP), Ifindex: ifindex, Halen: uint8(len(hw))}
	copy(sa.Addr[:], hw)
	if err := unix.Sendto(f.fd, udpPacket(from, to, payload), 0, sa); err != nil {
		return fmt.Errorf("sending to %s: %w", hw, err)
	}
	return nil
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// udpPacket builds an IPv4 packet (RFC 791, no options) that holds a UDP
// datagram (RFC 768).
func udpPacket(from, to netip.AddrPort, payload []byte) []byte {
	const ipLen, udpLen = 20, 8
	b := make([]byte, ipLen+udpLen+len(payload))
	ip, udp := b[:ipLen], b[ipLen:]
	ip[0] = 0x45
	binary.BigEndian.PutUint16(ip[2:], uint16(len(b)))
	ip[8], ip[9] = 64, unix.IPPROTO_UDP
	src, dst := from.Addr().As4(), to.Addr().As4()
	copy(ip[12:], src[:])
	copy(ip[16:], dst[:])
	binary.BigEndian.PutUint16(ip[10:], checksum(0, ip))
	binary.BigEndian.PutUint16(udp[0:], from.Port())
	binary.BigEndian.PutUint16(udp[2:], to.Port())
	binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
	copy(udp[udpLen:], payload)
	sum := checksum(pseudoHeader(src, dst, len(udp)), udp)
	if sum == 0 {
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(udp[6:], sum)
	return b
}

func pseudoHeader(src, dst [4]byte, n int) uint32 {
	sum := uint32(unix.IPPROTO_UDP) + uint32(n)
	for _, a := range [][4]byte{src, dst} {
		sum += uint32(binary.BigEndian.Uint16(a[:2])) + uint32(binary.BigEndian.Uint16(a[2:]))
	}
	return sum
}

// checksum is the Internet checksum (RFC 1071) of b, started at sum.
func checksum(sum uint32, b []byte) uint16 {
	for i := 0; i+1 < len(b); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	if len(b)%2 == 1 {
		sum += uint32(b[len(b)-1]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}
