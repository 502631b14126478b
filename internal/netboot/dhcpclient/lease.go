// Package dhcpclient gets a node an IPv4 address while nothing else runs: in
// the initrd. It speaks DHCP (RFC 2131) through packet sockets, so that it
// works before the interface has an address, asks several interfaces at once,
// and learns the URL of pxeserver from option 224.
//
// The booted system has its own DHCP client; this one is for the initrd.
package dhcpclient

import (
	"fmt"
	"net/netip"
	"net/url"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/turnout-project/turnout/internal/api"
)

// Lease is an address and what came with it. It is not verified: whoever
// answers first on the wire decides it.
type Lease struct {
	Interface string
	Address   netip.Prefix // own address with the length of the network
	Router    netip.Addr   // invalid: none
	DNS       []netip.Addr
	Server    netip.Addr // of the DHCP server, for renewal
	ServerURL string     // https URL of the node API (option 224); "": not told
	MTU       int        // 0: not told
	Time      time.Duration
	Renew     time.Duration // after which to renew
	Rebind    time.Duration // after which to ask any server
	Got       time.Time
}

// IP returns the address without the network's length.
func (l Lease) IP() netip.Addr { return l.Address.Addr() }

// parseLease reads an ACK (or an OFFER, for a look at it).
func parseLease(m *dhcpv4.DHCPv4, ifname string, now time.Time) (Lease, error) {
	ip, ok := netip.AddrFromSlice(m.YourIPAddr.To4())
	if !ok || ip.IsUnspecified() {
		return Lease{}, fmt.Errorf("DHCP reply holds no address")
	}
	ones, bits := m.SubnetMask().Size()
	if bits != 32 || ones == 0 {
		return Lease{}, fmt.Errorf("DHCP reply for %s has no usable subnet mask", ip)
	}
	l := Lease{Interface: ifname, Address: netip.PrefixFrom(ip, ones), Got: now, ServerURL: serverURL(m)}
	l.Server, _ = netip.AddrFromSlice(m.ServerIdentifier().To4())
	if r := m.Router(); len(r) > 0 {
		l.Router, _ = netip.AddrFromSlice(r[0].To4())
	}
	for _, d := range m.DNS() {
		if a, ok := netip.AddrFromSlice(d.To4()); ok {
			l.DNS = append(l.DNS, a)
		}
	}
	if v := m.Options.Get(dhcpv4.OptionInterfaceMTU); len(v) == 2 {
		l.MTU = int(v[0])<<8 | int(v[1])
	}
	l.Time = max(m.IPAddressLeaseTime(24*time.Hour), time.Minute)
	l.Renew = within(m.IPAddressRenewalTime(0), l.Time/2, l.Time)
	l.Rebind = within(m.IPAddressRebindingTime(0), l.Time*7/8, l.Time)
	return l, nil
}

// within returns d, or def if d makes no sense for a lease of that length.
func within(d, def, lease time.Duration) time.Duration {
	if d <= 0 || d >= lease {
		return def
	}
	return d
}

// serverURL returns option 224 if it is a URL one could use.
func serverURL(m *dhcpv4.DHCPv4) string {
	s := string(m.Options.Get(dhcpv4.GenericOptionCode(api.DHCPOptionServer)))
	u, err := url.Parse(s)
	if err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" {
		return ""
	}
	return s
}
