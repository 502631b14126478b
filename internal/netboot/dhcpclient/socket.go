package dhcpclient

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"time"
	"unsafe"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// UDP ports of the protocol.
const (
	serverPort = 67
	clientPort = 68
)

// socket sends and receives DHCP on one interface that may have no address.
type socket struct {
	file    *os.File
	ifindex int
	bcast   []byte // link-layer broadcast address
}

// newSocket needs CAP_NET_RAW.
func newSocket(ifindex int, bcast []byte) (*socket, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, 0)
	if err != nil {
		return nil, fmt.Errorf("opening packet socket: %w", err)
	}
	if err := setUp(fd, ifindex); err != nil {
		unix.Close(fd)
		return nil, err
	}
	return &socket{os.NewFile(uintptr(fd), "dhcp"), ifindex, bcast}, nil
}

func setUp(fd, ifindex int) error {
	prog, err := bpf.Assemble([]bpf.Instruction{
		bpf.LoadAbsolute{Off: 9, Size: 1}, // IPv4 protocol
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.IPPROTO_UDP, SkipTrue: 4},
		bpf.LoadMemShift{Off: 0}, // X = header length
		bpf.LoadIndirect{Off: 2, Size: 2},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: clientPort, SkipTrue: 1},
		bpf.RetConstant{Val: 0xffff},
		bpf.RetConstant{Val: 0},
	})
	if err != nil {
		return err
	}
	filter := make([]unix.SockFilter, len(prog))
	for i, p := range prog {
		filter[i] = unix.SockFilter{Code: p.Op, Jt: p.Jt, Jf: p.Jf, K: p.K}
	}
	fprog := unix.SockFprog{Len: uint16(len(filter)), Filter: &filter[0]}
	if err := unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &fprog); err != nil {
		return fmt.Errorf("filtering packet socket: %w", err)
	}
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_IP), Ifindex: ifindex}); err != nil {
		return fmt.Errorf("binding packet socket: %w", err)
	}
	return nil
}

func (s *socket) close() { s.file.Close() }

// broadcast sends payload from port 68 to port 67 of everybody on the link.
func (s *socket) broadcast(src [4]byte, payload []byte) error {
	pkt, sa := packet(src, payload), linkAddress(s.ifindex, s.bcast)
	raw, err := s.file.SyscallConn()
	if err != nil {
		return err
	}
	var serr error
	err = raw.Write(func(fd uintptr) bool {
		_, _, errno := unix.Syscall6(unix.SYS_SENDTO, fd, uintptr(unsafe.Pointer(&pkt[0])), uintptr(len(pkt)), 0,
			uintptr(unsafe.Pointer(&sa[0])), uintptr(len(sa)))
		serr = nil
		if errno != 0 {
			serr = errno
		}
		return errno != unix.EAGAIN
	})
	return errors.Join(err, serr)
}

// linkAddress is a struct sockaddr_ll (packet(7)) whose address may be longer
// than the eight bytes that package unix has room for: InfiniBand has twenty.
func linkAddress(ifindex int, hw []byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, unix.AF_PACKET)
	b = binary.BigEndian.AppendUint16(b, unix.ETH_P_IP)
	b = binary.NativeEndian.AppendUint32(b, uint32(ifindex))
	b = append(b, 0, 0, 0, byte(len(hw)))
	return append(b, append(hw, make([]byte, max(0, 8-len(hw)))...)...)
}

// receive returns the UDP payload of the next packet, or an error that is
// os.ErrDeadlineExceeded at the deadline, or that of ctx.
func (s *socket) receive(ctx context.Context, deadline time.Time) ([]byte, error) {
	if err := s.file.SetReadDeadline(deadline); err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = s.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	buf := make([]byte, 4096)
	for {
		n, err := s.file.Read(buf)
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		if errors.Is(err, unix.ENETDOWN) { // the link went away for a moment
			continue
		}
		if err != nil {
			return nil, err
		}
		if p := udpPayload(buf[:n]); p != nil {
			return p, nil
		}
	}
}

func htons(v uint16) uint16 { return v<<8 | v>>8 }

// packet builds the IPv4 and UDP headers of a broadcast. The UDP checksum is
// left out (zero), as RFC 768 allows.
func packet(src [4]byte, payload []byte) []byte {
	const ipLen, udpLen = 20, 8
	b := make([]byte, ipLen+udpLen, ipLen+udpLen+len(payload))
	b[0] = 0x45
	binary.BigEndian.PutUint16(b[2:], uint16(cap(b)))
	b[8], b[9] = 64, unix.IPPROTO_UDP
	copy(b[12:], src[:])
	copy(b[16:], []byte{255, 255, 255, 255})
	var sum uint32
	for i := 0; i < ipLen; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum))
	binary.BigEndian.PutUint16(b[ipLen:], clientPort)
	binary.BigEndian.PutUint16(b[ipLen+2:], serverPort)
	binary.BigEndian.PutUint16(b[ipLen+4:], uint16(udpLen+len(payload)))
	return append(b, payload...)
}

// udpPayload unpacks an IPv4 packet; nil if it is cut short or no whole UDP
// datagram to port 68. Checksums are not looked at: virtual links leave them
// to hardware that is not there.
func udpPayload(b []byte) []byte {
	if len(b) < 20 || b[0]>>4 != 4 {
		return nil
	}
	ipLen, total := int(b[0]&15)*4, int(binary.BigEndian.Uint16(b[2:]))
	if ipLen < 20 || total > len(b) || total < ipLen+8 || b[9] != unix.IPPROTO_UDP {
		return nil
	}
	udp := b[ipLen:total]
	n := int(binary.BigEndian.Uint16(udp[4:]))
	if binary.BigEndian.Uint16(udp[2:]) != clientPort || n < 8 || n > len(udp) {
		return nil
	}
	return udp[8:n]
}
