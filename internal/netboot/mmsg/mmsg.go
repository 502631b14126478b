// Package mmsg is a UDP socket over IPv4 that sends and receives many
// datagrams with one system call (recvmmsg and sendmmsg of Linux). It waits in
// the kernel rather than in Go's poller, which costs a thread and saves a
// round through the scheduler for each packet. TFTP, which is one packet at a
// time and many clients at once, is what it is for.
package mmsg

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Batch is the most datagrams that one call moves.
const Batch = 64

// Conn is one socket. Receive and Send may run at the same time, but each on
// one goroutine at a time.
type Conn struct {
	fd  int
	in  side
	buf []byte // of in
	out side
	n   int // datagrams in out
}

// side is what the kernel reads or fills for up to Batch datagrams.
type side struct {
	hdr  [Batch]mmsghdr
	name [Batch]unix.RawSockaddrInet4
	iov  [Batch][2]unix.Iovec
	ctl  [Batch][controlSize]byte
	head [Batch][headSize]byte
}

// mmsghdr is struct mmsghdr of recvmmsg(2) on 64-bit machines.
type mmsghdr struct {
	hdr unix.Msghdr
	n   uint32
	_   [4]byte
}

const (
	controlSize = unix.SizeofCmsghdr + 16 // struct in_pktinfo, rounded up
	headSize    = 8
)

// Listen opens a socket on ip and port; 0 is any free one. Receive waits for
// wait at most, and datagrams are cut off after size bytes.
func Listen(ip netip.Addr, port, size, buffer int, wait time.Duration) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("opening UDP socket: %w", err)
	}
	c := &Conn{fd: fd, buf: make([]byte, size*Batch)}
	if err := c.setUp(ip, port, buffer, wait); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("setting up UDP socket on %s, port %d: %w", ip, port, err)
	}
	for i := range c.in.hdr {
		c.in.iov[i][0].Base, c.in.iov[i][0].Len = &c.buf[i*size], uint64(size)
		c.in.hdr[i].hdr = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&c.in.name[i])), Iov: &c.in.iov[i][0], Iovlen: 1, Control: &c.in.ctl[i][0]}
		c.out.hdr[i].hdr = unix.Msghdr{Name: (*byte)(unsafe.Pointer(&c.out.name[i])), Namelen: unix.SizeofSockaddrInet4, Iov: &c.out.iov[i][0]}
	}
	return c, nil
}

func (c *Conn) setUp(ip netip.Addr, port, buffer int, wait time.Duration) error {
	tv := unix.NsecToTimeval(int64(wait))
	if err := unix.SetsockoptTimeval(c.fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &tv); err != nil {
		return err
	}
	for _, o := range []int{unix.IP_PKTINFO, unix.IP_RECVERR} {
		if err := unix.SetsockoptInt(c.fd, unix.IPPROTO_IP, o, 1); err != nil {
			return err
		}
	}
	for forced, plain := range map[int]int{unix.SO_RCVBUFFORCE: unix.SO_RCVBUF, unix.SO_SNDBUFFORCE: unix.SO_SNDBUF} {
		if unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, forced, buffer) != nil {
			_ = unix.SetsockoptInt(c.fd, unix.SOL_SOCKET, plain, buffer)
		}
	}
	sa := &unix.SockaddrInet4{Port: port}
	if ip.Is4() {
		sa.Addr = ip.As4()
	}
	return unix.Bind(c.fd, sa)
}

// Close closes the socket. A Receive that waits in it goes on waiting for its
// time, so end its loop first.
func (c *Conn) Close() error { return unix.Close(c.fd) }

// Port returns the port of the socket, 0 if it has none.
func (c *Conn) Port() int {
	sa, err := unix.Getsockname(c.fd)
	if err != nil {
		return 0
	}
	in, _ := sa.(*unix.SockaddrInet4)
	return in.Port
}

// Receive waits for datagrams and returns how many came; 0 after the time
// given to Listen. Errors of earlier sends (ICMP) are left for Errors.
func (c *Conn) Receive() (int, error) {
	for i := range c.in.hdr {
		h := &c.in.hdr[i].hdr
		h.Namelen, h.Flags = unix.SizeofSockaddrInet4, 0
		h.SetControllen(controlSize)
	}
	n, _, e := unix.RawSyscall6(unix.SYS_RECVMMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&c.in.hdr[0])), Batch, unix.MSG_DONTWAIT, 0, 0)
	if e == unix.EAGAIN {
		n, _, e = unix.Syscall6(unix.SYS_RECVMMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&c.in.hdr[0])), Batch, unix.MSG_WAITFORONE, 0, 0)
	}
	switch {
	case e == 0:
		return int(n), nil
	case e == unix.EAGAIN, e == unix.EINTR, harmless(e):
		return 0, nil
	}
	return 0, fmt.Errorf("receiving UDP datagrams: %w", e)
}

// harmless reports errors that tell of one earlier datagram, or of the link.
func harmless(e error) bool {
	for _, x := range []unix.Errno{unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ENETDOWN, unix.EHOSTDOWN,
		unix.EMSGSIZE, unix.EPROTO, unix.EACCES, unix.EPERM, unix.ENOPROTOOPT, unix.EOPNOTSUPP, unix.ENOBUFS, unix.ENOMEM} {
		if errors.Is(e, x) {
			return true
		}
	}
	return false
}

// Packet returns the i-th datagram of the last Receive, which the next one
// overwrites, who sent it and to which of our addresses.
func (c *Conn) Packet(i int) (b []byte, from netip.AddrPort, to netip.Addr) {
	size := len(c.buf) / Batch
	b = c.buf[i*size : i*size+min(int(c.in.hdr[i].n), size)]
	return b, addrPort(&c.in.name[i]), pktinfoDst(c.in.ctl[i][:c.in.hdr[i].hdr.Controllen])
}

func addrPort(sa *unix.RawSockaddrInet4) netip.AddrPort {
	p := (*[2]byte)(unsafe.Pointer(&sa.Port))
	return netip.AddrPortFrom(netip.AddrFrom4(sa.Addr), binary.BigEndian.Uint16(p[:]))
}

// pktinfoDst reads struct in_pktinfo: the destination is its last field.
func pktinfoDst(ctl []byte) netip.Addr {
	if len(ctl) < unix.CmsgLen(unix.SizeofInet4Pktinfo) {
		return netip.Addr{}
	}
	h := (*unix.Cmsghdr)(unsafe.Pointer(&ctl[0]))
	if h.Level != unix.IPPROTO_IP || h.Type != unix.IP_PKTINFO {
		return netip.Addr{}
	}
	return netip.AddrFrom4([4]byte(ctl[unix.CmsgLen(8):]))
}

// Peer is where datagrams go, and from which of our addresses.
type Peer struct {
	name unix.RawSockaddrInet4
	ctl  [controlSize]byte
	has  bool
}

// NewPeer prepares a Peer; without a valid from the kernel chooses.
func NewPeer(to netip.AddrPort, from netip.Addr) Peer {
	p := Peer{name: unix.RawSockaddrInet4{Family: unix.AF_INET, Addr: to.Addr().As4()}}
	binary.BigEndian.PutUint16((*[2]byte)(unsafe.Pointer(&p.name.Port))[:], to.Port())
	if from.Is4() {
		p.has = true
		h := (*unix.Cmsghdr)(unsafe.Pointer(&p.ctl[0]))
		h.Level, h.Type = unix.IPPROTO_IP, unix.IP_PKTINFO
		h.SetLen(unix.CmsgLen(unix.SizeofInet4Pktinfo))
		a := from.As4()
		copy(p.ctl[unix.CmsgLen(4):], a[:]) // ipi_spec_dst
	}
	return p
}

// Send queues a datagram that is head and body put together; a full queue is
// flushed. head has 8 bytes at most and is copied; body, which is not, must
// stay as it is until Flush.
func (c *Conn) Send(to *Peer, head, body []byte) {
	if c.n == Batch {
		c.Flush()
	}
	i := c.n
	c.n++
	o, h := &c.out, &c.out.hdr[i].hdr
	o.name[i] = to.name
	h.Control, h.Iovlen = nil, 0
	h.SetControllen(0)
	if to.has {
		o.ctl[i] = to.ctl
		h.Control = &o.ctl[i][0]
		h.SetControllen(controlSize)
	}
	if k := copy(o.head[i][:], head); k > 0 {
		o.iov[i][0] = unix.Iovec{Base: &o.head[i][0], Len: uint64(k)}
		h.Iovlen++
	}
	if len(body) > 0 {
		o.iov[i][h.Iovlen] = unix.Iovec{Base: &body[0], Len: uint64(len(body))}
		h.Iovlen++
	}
}

// Flush sends what is queued. A datagram that cannot be sent is dropped, as
// the network might have done.
func (c *Conn) Flush() {
	failed := false
	for done := 0; done < c.n; {
		// Raw: it does not block, and Go's scheduler need not know.
		n, _, e := unix.RawSyscall6(unix.SYS_SENDMMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&c.out.hdr[done])), uintptr(c.n-done), unix.MSG_DONTWAIT, 0, 0)
		switch {
		case e == 0:
			done, failed = done+int(n), false
		case e == unix.EINTR:
		case e == unix.EAGAIN: // the buffer is full of what the link has not taken yet
			p := []unix.PollFd{{Fd: int32(c.fd), Events: unix.POLLOUT}}
			_, _ = unix.Poll(p, 100)
			if failed {
				done++
			}
			failed = !failed
		case failed:
			done, failed = done+1, false
		default: // the first error may be that of an earlier datagram
			failed = true
		}
	}
	for i := range c.n {
		c.out.iov[i] = [2]unix.Iovec{} // let go of the bodies
	}
	c.n = 0
}

// Errors calls f for each address that ICMP said of that nobody listens
// there, or that it cannot be reached.
func (c *Conn) Errors(f func(netip.AddrPort, error)) {
	var name unix.RawSockaddrInet4
	var ctl [256]byte
	var data [64]byte
	for {
		iov := unix.Iovec{Base: &data[0], Len: uint64(len(data))}
		h := unix.Msghdr{Name: (*byte)(unsafe.Pointer(&name)), Namelen: unix.SizeofSockaddrInet4, Iov: &iov, Iovlen: 1, Control: &ctl[0]}
		h.SetControllen(len(ctl))
		_, _, e := unix.Syscall(unix.SYS_RECVMSG, uintptr(c.fd), uintptr(unsafe.Pointer(&h)), unix.MSG_ERRQUEUE|unix.MSG_DONTWAIT)
		if e != 0 {
			return
		}
		if err := extendedErr(ctl[:h.Controllen]); err != nil && h.Namelen == unix.SizeofSockaddrInet4 {
			f(addrPort(&name), err)
		}
	}
}

// extendedErr finds struct sock_extended_err and returns its ee_errno, unless
// it only is about the size of datagrams.
func extendedErr(ctl []byte) error {
	for len(ctl) >= unix.SizeofCmsghdr {
		h := (*unix.Cmsghdr)(unsafe.Pointer(&ctl[0]))
		n := int(h.Len)
		if n < unix.SizeofCmsghdr || n > len(ctl) {
			return nil
		}
		if h.Level == unix.IPPROTO_IP && h.Type == unix.IP_RECVERR && n >= unix.CmsgLen(4) {
			if e := unix.Errno(binary.NativeEndian.Uint32(ctl[unix.CmsgLen(0):])); e != unix.EMSGSIZE {
				return e
			}
			return nil
		}
		ctl = ctl[min(unix.CmsgSpace(n-unix.CmsgLen(0)), len(ctl)):]
	}
	return nil
}
