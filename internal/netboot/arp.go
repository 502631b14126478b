package netboot

import (
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/fleet"
)

// arpProber asks the wire whether somebody uses an address that is about to
// be leased (RFC 2131 section 2.2, RFC 5227 section 2.1.1). It never makes a
// client wait: the question goes out with the OFFER, and an answer that comes
// before the REQUEST turns the ACK into a NAK.
type arpProber struct {
	file *os.File
	mu   sync.Mutex
	sent map[netip.Addr]time.Time
}

// arpWindow is how long an answer to a question counts.
const (
	arpWindow = 10 * time.Second
	arpLimit  = 1 << 14
)

// newARPProber needs CAP_NET_RAW.
func newARPProber() (*arpProber, error) {
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, int(htons(unix.ETH_P_ARP)))
	if err != nil {
		return nil, fmt.Errorf("opening packet socket for ARP: %w", err)
	}
	return &arpProber{file: os.NewFile(uintptr(fd), "arp"), sent: map[netip.Addr]time.Time{}}, nil
}

// probe asks for ip on the interface.
func (p *arpProber) probe(ifindex int, hw net.HardwareAddr, ip netip.Addr) {
	if len(hw) != 6 {
		return
	}
	p.mu.Lock()
	if len(p.sent) >= arpLimit {
		clear(p.sent)
	}
	p.sent[ip] = time.Now()
	p.mu.Unlock()
	sa := &unix.SockaddrLinklayer{Protocol: htons(unix.ETH_P_ARP), Ifindex: ifindex, Halen: 6, Addr: [8]byte{255, 255, 255, 255, 255, 255}}
	raw, err := p.file.SyscallConn()
	if err != nil {
		return
	}
	_ = raw.Write(func(fd uintptr) bool {
		_ = unix.Sendto(int(fd), arpProbe(hw, ip), 0, sa) // best effort
		return true
	})
}

// arpProbe is a request without sender address (RFC 826, RFC 5227).
func arpProbe(hw net.HardwareAddr, ip netip.Addr) []byte {
	b := []byte{0, 1, 8, 0, 6, 4, 0, 1}
	b = append(append(b, hw...), 0, 0, 0, 0)
	b = append(b, 0, 0, 0, 0, 0, 0)
	return append(b, ip.AsSlice()...)
}

// parseARP returns who says to have which address.
func parseARP(b []byte) (netip.Addr, fleet.MAC, bool) {
	if len(b) < 28 || binary.BigEndian.Uint16(b) != 1 || binary.BigEndian.Uint16(b[2:]) != unix.ETH_P_IP || b[4] != 6 || b[5] != 4 ||
		binary.BigEndian.Uint16(b[6:]) != 2 {
		return netip.Addr{}, "", false
	}
	ip, _ := netip.AddrFromSlice(b[14:18])
	return ip, macOf(b[8:14]), true
}

// listen passes answers to asked questions to conflict until ctx ends.
func (p *arpProber) listen(ctx context.Context, conflict func(netip.Addr, fleet.MAC)) {
	stop := context.AfterFunc(ctx, func() { _ = p.file.SetReadDeadline(time.Unix(1, 0)) })
	defer stop()
	defer p.file.Close()
	b := make([]byte, 256)
	for {
		n, err := p.file.Read(b)
		if ctx.Err() != nil {
			return
		}
		if err != nil {
			if isTemporary(err) {
				continue
			}
			return
		}
		ip, mac, ok := parseARP(b[:n])
		if ok && p.asked(ip, time.Now()) {
			conflict(ip, mac)
		}
	}
}

func (p *arpProber) asked(ip netip.Addr, now time.Time) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	t, ok := p.sent[ip]
	return ok && now.Sub(t) < arpWindow
}

// conflict sets an offered address aside that mac uses. The client's own
// answer is none: a machine may still hold the address from its last boot.
func (e *engine) conflict(ip netip.Addr, mac fleet.MAC) {
	l, ok := e.pool.at(ip)
	s := e.subnetOf(ip)
	if !ok || s == nil || l.State != LeaseOffered || l.MAC == mac {
		return
	}
	if l, ok = e.pool.end(s, l.Key, ip, LeaseDeclined, e.now().Add(time.Hour)); !ok {
		return
	}
	e.log.Warn("dhcp: address is in use", "ip", ip, "by", mac, "offered to", l.Key)
	e.event("dhcp.conflict", l.client(), fmt.Sprintf("%s is in use by %s without a lease; not offered for an hour", ip, mac))
	e.keep(context.Background(), l)
}

func (e *engine) subnetOf(ip netip.Addr) *Subnet {
	for i := range e.cfg.Subnets {
		if e.cfg.Subnets[i].Prefix.Contains(ip) {
			return &e.cfg.Subnets[i]
		}
	}
	return nil
}
