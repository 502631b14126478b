package netboot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"sync"
	"syscall"
	"time"

	"golang.org/x/net/ipv4"
	"golang.org/x/sys/unix"
)

// socketBuffer is asked for on DHCP and TFTP sockets: a rack that powers up
// sends thousands of packets within a second.
const socketBuffer = 4 << 20

// packetConn is a UDP socket that knows on which interface and address each
// packet came in.
type packetConn struct {
	udp *net.UDPConn
	*ipv4.PacketConn
}

// listenUDP opens ip:port, on one interface if device is not "". The port is
// not shared: a second server on it would take every other packet.
func listenUDP(ctx context.Context, what, device string, ip netip.Addr, port int) (*packetConn, error) {
	lc := net.ListenConfig{Control: func(_, _ string, c syscall.RawConn) error {
		var err error
		if cerr := c.Control(func(fd uintptr) {
			if device != "" {
				err = unix.BindToDevice(int(fd), device)
			}
			if unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, socketBuffer) != nil {
				_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, socketBuffer)
			}
		}); cerr != nil {
			return cerr
		}
		return err
	}}
	host := ""
	if ip.IsValid() && !ip.IsUnspecified() {
		host = ip.String()
	}
	pc, err := lc.ListenPacket(ctx, "udp4", net.JoinHostPort(host, strconv.Itoa(port)))
	if err != nil {
		return nil, fmt.Errorf("listening for %s on UDP port %d: %w%s", what, port, err, portHint(err, port))
	}
	udp := pc.(*net.UDPConn)
	c := &packetConn{udp, ipv4.NewPacketConn(udp)}
	if err := c.SetControlMessage(ipv4.FlagDst|ipv4.FlagInterface, true); err != nil {
		udp.Close()
		return nil, fmt.Errorf("listening for %s: %w", what, err)
	}
	return c, nil
}

// portHint says what to do about the two usual reasons.
func portHint(err error, port int) string {
	switch {
	case errors.Is(err, unix.EADDRINUSE):
		return fmt.Sprintf(" (another server on this host uses it: see `ss -lpn sport = :%d`)", port)
	case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
		return " (needs root, or CAP_NET_BIND_SERVICE and CAP_NET_RAW)"
	}
	return ""
}

func (c *packetConn) port() int { return c.udp.LocalAddr().(*net.UDPAddr).Port }

// interfaces is a short-lived cache of names and addresses by index; asking
// the kernel for each packet would cost more than answering it.
type interfaces struct {
	mu      sync.Mutex
	m       map[int]ifaceInfo
	local   map[netip.Addr]bool
	localAt time.Time
}

type ifaceInfo struct {
	name  string
	addrs []netip.Prefix
	hw    net.HardwareAddr
	at    time.Time
}

const ifaceAge = 5 * time.Second

func (i *interfaces) get(index int) ifaceInfo {
	i.mu.Lock()
	defer i.mu.Unlock()
	if info, ok := i.m[index]; ok && time.Since(info.at) < ifaceAge {
		return info
	}
	info := ifaceInfo{at: time.Now()}
	if ifi, err := net.InterfaceByIndex(index); err == nil {
		info.name, info.hw = ifi.Name, ifi.HardwareAddr
		as, _ := ifi.Addrs()
		for _, a := range as {
			if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Is4() {
				info.addrs = append(info.addrs, p)
			}
		}
	}
	if i.m == nil {
		i.m = map[int]ifaceInfo{}
	}
	i.m[index] = info
	return info
}

// job is a received packet on its way to a worker.
type job struct {
	buf     *[]byte
	n       int
	conn    *packetConn
	ifindex int
	src     netip.AddrPort
	dst     netip.Addr
	boot    bool
}

// dhcpLoop reads packets of one socket until it is closed.
func (s *Server) dhcpLoop(ctx context.Context, c *packetConn, boot bool, jobs chan<- job) error {
	for {
		buf := s.buffers.Get().(*[]byte)
		n, cm, src, err := c.ReadFrom(*buf)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			if isTemporary(err) {
				continue
			}
			return fmt.Errorf("reading DHCP socket: %w", err)
		}
		j := job{buf: buf, n: n, conn: c, boot: boot, src: addrPort(src)}
		if cm != nil {
			j.ifindex, j.dst = cm.IfIndex, addr4(cm.Dst)
		}
		select {
		case jobs <- j:
		default:
			s.stats.Overflow.Add(1)
			s.buffers.Put(buf)
		}
	}
}

// isTemporary reports errors that say something about an earlier send (ICMP)
// or the state of the link, not about the socket.
func isTemporary(err error) bool {
	for _, e := range []syscall.Errno{unix.ECONNREFUSED, unix.EHOSTUNREACH, unix.ENETUNREACH, unix.ENETDOWN, unix.EINTR, unix.ENOBUFS, unix.ENOMEM} {
		if errors.Is(err, e) {
			return true
		}
	}
	return false
}

func addrPort(a net.Addr) netip.AddrPort {
	u, ok := a.(*net.UDPAddr)
	if !ok {
		return netip.AddrPort{}
	}
	ap := u.AddrPort()
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port())
}

// dhcpWorker answers packets until jobs is closed.
func (s *Server) dhcpWorker(ctx context.Context, jobs <-chan job) {
	for j := range jobs {
		s.dhcpOne(ctx, j)
		s.buffers.Put(j.buf)
	}
}

// dhcpOne answers one packet. A panic costs that packet only.
func (s *Server) dhcpOne(ctx context.Context, j job) {
	defer func() {
		if p := recover(); p != nil {
			s.stats.Malformed.Add(1)
			s.log.Error("dhcp: internal error; packet dropped", "from", j.src, "panic", p)
		}
	}()
	info := s.ifaces.get(j.ifindex)
	p := s.engine.handle(ctx, (*j.buf)[:j.n], arrival{
		iface: info.name, ifindex: j.ifindex, addrs: info.addrs, hw: info.hw, src: j.src, dst: j.dst, bootServer: j.boot,
	})
	if p == nil {
		return
	}
	if err := s.send(j.conn, p); err != nil {
		s.stats.SendErrors.Add(1)
		s.log.Warn("dhcp: sending", "to", p.to, "error", err)
		return
	}
	s.stats.Replies.Add(1)
}

// send puts p on the wire. A client without an address gets a frame to its
// hardware address; where raw sockets are not allowed, a broadcast.
func (s *Server) send(c *packetConn, p *reply) error {
	b := p.msg.ToBytes()
	cm := &ipv4.ControlMessage{IfIndex: p.ifindex}
	if p.from.IsValid() && s.ifaces.isLocal(p.from) {
		cm.Src = ip4(p.from)
	}
	if p.hw != nil {
		if s.frames != nil && cm.Src != nil {
			from := netip.AddrPortFrom(p.from, uint16(c.port()))
			if err := s.frames.send(p.ifindex, p.hw, from, p.to, b); err == nil {
				return nil
			}
		}
		p.to = netip.AddrPortFrom(broadcastAll, p.to.Port())
	}
	_, err := c.WriteTo(b, cm, net.UDPAddrFromAddrPort(p.to))
	return err
}

// isLocal reports whether a is an address of this host, from which alone the
// kernel lets us send.
func (i *interfaces) isLocal(a netip.Addr) bool {
	i.mu.Lock()
	defer i.mu.Unlock()
	if time.Since(i.localAt) >= ifaceAge {
		i.local, i.localAt = map[netip.Addr]bool{}, time.Now()
		as, _ := net.InterfaceAddrs()
		for _, a := range as {
			if p, err := netip.ParsePrefix(a.String()); err == nil {
				i.local[p.Addr()] = true
			}
		}
	}
	return i.local[a]
}
