package dhcpclient

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// Answer is an offer that a DHCP server on a link made.
type Answer struct {
	Server    netip.Addr // who answered
	Address   netip.Addr // what it would lease; invalid: none, as a proxy answers
	BootFile  string     // what it would boot; "": it says nothing of booting
	ServerURL string     // the pxeserver it names; "": none
}

// Survey asks, every second, on an interface that is up which DHCP servers there are,
// as a booting machine does, and collects the offers of so long. It takes no
// lease and changes nothing. A server on this machine does not hear it. It
// needs CAP_NET_RAW.
func Survey(ctx context.Context, ifname string, wait time.Duration) ([]Answer, error) {
	n, err := openNIC(ifname)
	if err != nil {
		return nil, fmt.Errorf("DHCP on %s: %w", ifname, err)
	}
	defer n.sock.close()
	start := time.Now()
	req := n.message(dhcpv4.MessageTypeDiscover, start)
	req.Options[93] = []byte{0, 7} // x64 UEFI (RFC 4578): proxies answer those who could boot
	req.Options[94] = []byte{1, 3, 16}
	req.Options[97] = append([]byte{0}, make([]byte, 16)...)
	req.Options[60] = []byte("PXEClient:Arch:00007:UNDI:003016")
	var out []Answer
	for again, end := start, start.Add(wait); ; {
		if !time.Now().Before(again) { // a question, or an answer, can be lost
			if err := n.send(req); err != nil {
				return nil, fmt.Errorf("DHCP on %s: %w", ifname, err)
			}
			again = again.Add(firstWait)
		}
		m, err := n.next(ctx, req, earlier(again, end))
		if errors.Is(err, os.ErrDeadlineExceeded) {
			if !time.Now().Before(end) {
				return out, nil
			}
			continue
		}
		if err != nil {
			return out, fmt.Errorf("DHCP on %s: %w", ifname, err)
		}
		if m.MessageType() != dhcpv4.MessageTypeOffer {
			continue
		}
		a := Answer{BootFile: m.BootFileNameOption(), ServerURL: serverURL(m)}
		if a.BootFile == "" {
			a.BootFile = m.BootFileName
		}
		a.Server, _ = netip.AddrFromSlice(m.ServerIdentifier().To4())
		if ip, ok := netip.AddrFromSlice(m.YourIPAddr.To4()); ok && !ip.IsUnspecified() {
			a.Address = ip
		}
		if !slices.Contains(out, a) {
			out = append(out, a)
		}
	}
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}
