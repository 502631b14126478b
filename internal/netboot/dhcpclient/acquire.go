package dhcpclient

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/insomniacslk/dhcp/iana"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/pause"
)

// Times of an exchange. Questions are repeated after firstWait, then twice as
// long each time up to maxWait.
const (
	firstWait  = time.Second
	maxWait    = 8 * time.Second
	offerGrace = time.Second // how long to wait for an offer that names pxeserver once there is one that does not
	requests   = 4           // REQUESTs before starting over
)

// Acquire brings the interface up, waits for a carrier and gets a lease. It
// goes on asking until ctx ends. It does not change the interface's
// addresses; see Apply. log may be nil.
func Acquire(ctx context.Context, ifname string, log *slog.Logger) (Lease, error) {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	n, err := openNIC(ifname)
	if err != nil {
		return Lease{}, fmt.Errorf("DHCP on %s: %w", ifname, err)
	}
	defer n.sock.close()
	if err := waitCarrier(ctx, ifname); err != nil {
		return Lease{}, fmt.Errorf("DHCP on %s: no carrier: %w", ifname, err)
	}
	start := time.Now()
	for {
		l, err := n.exchange(ctx, start)
		switch {
		case err == nil:
			log.Info("dhcp: lease", "interface", ifname, "address", l.Address, "router", l.Router, "server", l.Server, "url", l.ServerURL, "time", l.Time)
			return l, nil
		case ctx.Err() != nil:
			return Lease{}, fmt.Errorf("DHCP on %s: no answer in %s: %w", ifname, time.Since(start).Round(time.Second), ctx.Err())
		}
		log.Warn("dhcp: starting over", "interface", ifname, "reason", err)
		if err := pause.For(ctx, firstWait); err != nil {
			return Lease{}, fmt.Errorf("DHCP on %s: %w", ifname, err)
		}
	}
}

// nic is an interface with its socket.
type nic struct {
	name string
	hw   net.HardwareAddr
	ib   bool
	sock *socket
}

// exchange is one DISCOVER, OFFER, REQUEST, ACK.
func (n *nic) exchange(ctx context.Context, start time.Time) (Lease, error) {
	offer, url, err := n.discover(ctx, start)
	if err != nil {
		return Lease{}, err
	}
	req := n.message(dhcpv4.MessageTypeRequest, start)
	req.TransactionID = offer.TransactionID
	req.Options[50] = offer.YourIPAddr.To4()
	req.Options[54] = offer.ServerIdentifier().To4()
	wait := firstWait
	for range requests {
		m, err := n.ask(ctx, req, wait, func(m *dhcpv4.DHCPv4) bool {
			t := m.MessageType()
			return t == dhcpv4.MessageTypeAck && m.YourIPAddr.Equal(offer.YourIPAddr) || t == dhcpv4.MessageTypeNak
		})
		if errors.Is(err, os.ErrDeadlineExceeded) {
			wait = min(2*wait, maxWait)
			continue
		}
		if err != nil {
			return Lease{}, err
		}
		if m.MessageType() == dhcpv4.MessageTypeNak {
			return Lease{}, fmt.Errorf("server %s refused %s: %s", m.ServerIdentifier(), offer.YourIPAddr, m.Message())
		}
		l, err := parseLease(m, n.name, time.Now())
		if l.ServerURL == "" {
			l.ServerURL = url
		}
		return l, err
	}
	return Lease{}, fmt.Errorf("server %s offered %s but does not acknowledge it", offer.ServerIdentifier(), offer.YourIPAddr)
}

// discover asks until there is an offer of an address. An offer that names
// pxeserver wins at once; otherwise it waits a little for one, or for a proxy
// that adds the name alone.
func (n *nic) discover(ctx context.Context, start time.Time) (best *dhcpv4.DHCPv4, url string, err error) {
	req := n.message(dhcpv4.MessageTypeDiscover, start)
	for wait := firstWait; ; wait = min(2*wait, maxWait) {
		req.NumSeconds = seconds(start)
		if err := n.send(req); err != nil {
			return nil, "", err
		}
		deadline := time.Now().Add(wait)
		for {
			m, err := n.next(ctx, req, deadline)
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return nil, "", err
			}
			if m.MessageType() != dhcpv4.MessageTypeOffer {
				continue
			}
			if u := serverURL(m); u != "" && url == "" {
				url = u
			}
			if _, err := parseLease(m, n.name, start); err == nil && (best == nil || serverURL(m) != "") {
				if best == nil {
					deadline = time.Now().Add(min(offerGrace, wait))
				}
				best = m
			}
			if best != nil && url != "" {
				return best, url, nil
			}
		}
		if best != nil {
			return best, url, nil
		}
	}
}

// ask sends req and waits for a reply that is wanted.
func (n *nic) ask(ctx context.Context, req *dhcpv4.DHCPv4, wait time.Duration, wanted func(*dhcpv4.DHCPv4) bool) (*dhcpv4.DHCPv4, error) {
	if err := n.send(req); err != nil {
		return nil, err
	}
	deadline := time.Now().Add(wait)
	for {
		m, err := n.next(ctx, req, deadline)
		if err != nil || wanted(m) {
			return m, err
		}
	}
}

func (n *nic) send(m *dhcpv4.DHCPv4) error {
	var src [4]byte
	copy(src[:], m.ClientIPAddr.To4())
	return n.sock.broadcast(src, m.ToBytes())
}

// next returns the next reply to req; everything else is passed over.
func (n *nic) next(ctx context.Context, req *dhcpv4.DHCPv4, deadline time.Time) (*dhcpv4.DHCPv4, error) {
	for {
		b, err := n.sock.receive(ctx, deadline)
		if err != nil {
			return nil, err
		}
		m, err := dhcpv4.FromBytes(b)
		if err == nil && m.OpCode == dhcpv4.OpcodeBootReply && m.TransactionID == req.TransactionID {
			return m, nil
		}
	}
}

// message starts a request. InfiniBand ports send no hardware address but a
// client identifier (RFC 4390).
func (n *nic) message(t dhcpv4.MessageType, start time.Time) *dhcpv4.DHCPv4 {
	zero := net.IP{0, 0, 0, 0}
	m := &dhcpv4.DHCPv4{
		OpCode: dhcpv4.OpcodeBootRequest, HWType: iana.HWTypeEthernet, ClientHWAddr: n.hw, NumSeconds: seconds(start),
		ClientIPAddr: zero, YourIPAddr: zero, ServerIPAddr: zero, GatewayIPAddr: zero,
		Options: dhcpv4.Options{
			53: {byte(t)},
			55: {1, 3, 6, 12, 15, 26, 28, 42, 51, 54, 58, 59, api.DHCPOptionServer},
			57: {1500 >> 8, 1500 & 255},
			60: []byte(api.VendorClass),
		},
	}
	_, _ = rand.Read(m.TransactionID[:])
	if n.ib && len(n.hw) >= 8 {
		m.HWType, m.ClientHWAddr = 32, nil
		m.Flags = 0x8000
		m.Options[61] = append([]byte{32}, n.hw[len(n.hw)-8:]...)
	}
	return m
}

func seconds(start time.Time) uint16 {
	return uint16(min(time.Since(start)/time.Second, 0xffff))
}

// Renew prolongs l: it asks the same server before l.Rebind, any server after
// it. An error of kind ErrLost means that the address must not be used any
// more.
func Renew(ctx context.Context, l Lease) (Lease, error) {
	n, err := openNIC(l.Interface)
	if err != nil {
		return l, fmt.Errorf("renewing %s on %s: %w", l.IP(), l.Interface, err)
	}
	defer n.sock.close()
	req := n.message(dhcpv4.MessageTypeRequest, time.Now())
	req.ClientIPAddr = l.IP().AsSlice()
	send := n.send
	if l.Server.IsValid() && time.Since(l.Got) < l.Rebind {
		send = func(m *dhcpv4.DHCPv4) error { return unicast(l, m) }
	}
	for wait := firstWait; ; wait = min(2*wait, maxWait) {
		if err := send(req); err != nil {
			return l, fmt.Errorf("renewing %s on %s: %w", l.IP(), l.Interface, err)
		}
		m, err := n.next(ctx, req, time.Now().Add(wait))
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			continue
		case err != nil:
			return l, fmt.Errorf("renewing %s on %s: %w", l.IP(), l.Interface, err)
		case m.MessageType() == dhcpv4.MessageTypeNak:
			return l, fmt.Errorf("renewing %s on %s: %w: %s", l.IP(), l.Interface, ErrLost, m.Message())
		case m.MessageType() == dhcpv4.MessageTypeAck:
			return renewed(l, m)
		}
	}
}

func renewed(l Lease, m *dhcpv4.DHCPv4) (Lease, error) {
	next, err := parseLease(m, l.Interface, time.Now())
	if err != nil {
		return l, fmt.Errorf("renewing %s on %s: %w", l.IP(), l.Interface, err)
	}
	if next.ServerURL == "" {
		next.ServerURL = l.ServerURL
	}
	return next, nil
}

// ErrLost means that the server took the address back.
var ErrLost = errors.New("address lost")

// unicast sends m from the leased address; the reply is read from the packet
// socket.
func unicast(l Lease, m *dhcpv4.DHCPv4) error {
	from := net.UDPAddrFromAddrPort(netip.AddrPortFrom(l.IP(), clientPort))
	c, err := net.DialUDP("udp4", from, net.UDPAddrFromAddrPort(netip.AddrPortFrom(l.Server, serverPort)))
	if err != nil {
		return err
	}
	defer c.Close()
	_, err = c.Write(m.ToBytes())
	return err
}

// Keep renews l in time, until ctx ends (nil) or the address is lost. changed
// is called with each renewed lease; nil: nobody is interested.
func Keep(ctx context.Context, l Lease, changed func(Lease)) error {
	for {
		if pause.For(ctx, time.Until(l.Got.Add(l.Renew))) != nil {
			return nil
		}
		rctx, cancel := context.WithDeadline(ctx, l.Got.Add(l.Rebind))
		if time.Since(l.Got) >= l.Rebind {
			cancel()
			rctx, cancel = context.WithDeadline(ctx, l.Got.Add(l.Time))
		}
		next, err := Renew(rctx, l)
		cancel()
		switch {
		case ctx.Err() != nil:
			return nil
		case err == nil:
			l = next
			if changed != nil {
				changed(l)
			}
		case errors.Is(err, ErrLost), time.Since(l.Got) >= l.Time:
			return err
		default:
			if pause.For(ctx, min(time.Minute, time.Until(l.Got.Add(l.Time)))) != nil {
				return nil
			}
		}
	}
}
