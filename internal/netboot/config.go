package netboot

import (
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Mode says who hands out addresses.
type Mode string

// The modes of DHCP service.
const (
	ModeServer Mode = "server" // we do, for the configured subnets
	ModeProxy  Mode = "proxy"  // another server does; we add the boot file (PXE 2.1 ProxyDHCP)
	ModeOff    Mode = "off"    // no DHCP at all: another server names our files
)

// Ports of the services. 0 picks a free one (tests), -1 turns the
// service off.
type Ports struct {
	DHCP  int // 67
	Proxy int // 4011, PXE boot server discovery
	TFTP  int // 69
	HTTP  int
	HTTPS int // only with Server.TLS
}

// DefaultPorts are the ports firmware expects, and 8080 for HTTP, 8444
// for HTTPS.
var DefaultPorts = Ports{DHCP: 67, Proxy: 4011, TFTP: 69, HTTP: 8080, HTTPS: 8444}

// MinLeaseTime is the shortest lease given: it must outlast the largest image
// download, because some clients lose their connections at renewal.
const MinLeaseTime = time.Hour

// Config says on what and for whom the Server works. Start from
// DefaultConfig and call Validate.
type Config struct {
	Mode       Mode
	Interfaces []string   // serve these only; empty: every interface that has an address in a subnet (ModeProxy: every one)
	Listen     netip.Addr // address of the TFTP and HTTP sockets; invalid or unspecified: all
	Ports      Ports
	Subnets    []Subnet // needed in ModeServer

	// ServerIP is the address told to clients for TFTP and HTTP. Invalid: the
	// address of the interface a request came in on.
	ServerIP netip.Addr
	// NodeAPI is the https URL of the node API, sent in option 224 to our
	// agent and to whoever asks for the option. "": not sent.
	NodeAPI string
	// BootURL is the base of the URLs given to HTTP clients, for a proxy or
	// cache in front of us. "": http:// + server address + HTTP port.
	BootURL string
	// OfferHTTPS names files to UEFI HTTP firmware by https URLs of the
	// HTTPS port, instead of http ones. The firmware has to know the CA of
	// Server.TLS. Other clients get what they always get.
	OfferHTTPS bool

	// Relays are the networks that relay agents may sit in; requests through
	// others are ignored. nil: any at a private address, or in a Subnet.
	Relays   []netip.Prefix
	Profiles []ProfileRule // first match wins; none: the mode's default

	LeaseTime  time.Duration // for subnets that set none; 0: 24 h
	OfferHold  time.Duration // how long an offered address is kept for its client; 0: 2 min
	Workers    int           // concurrent DHCP requests; 0: 16
	BlockSize  int           // largest TFTP block, bytes; 0: 1400, which leaves room for tunnel headers
	WindowSize int           // largest TFTP window (RFC 7440), blocks; 0: 16, 1: lock step

	Limits // how much goes out at a time; see Server.SetLimits
}

// Subnet is one network whose addresses we hand out.
type Subnet struct {
	Prefix       netip.Prefix // the network; relays' addresses in it select it
	Pools        []Range      // dynamic addresses; none: reservations only
	Router       netip.Addr   // invalid: none is sent
	DNS          []netip.Addr //
	NTP          []netip.Addr //
	Domain       string       //
	ServerIP     netip.Addr   // overrides Config.ServerIP for this subnet
	LeaseTime    time.Duration
	MTU          int // option 26; 0: not sent
	Reservations []Reservation
}

// ProfileRule chooses the reply profile of a machine model. Every field that
// is not "" must match.
type ProfileRule struct {
	VendorClass string // start of option 60
	MAC         string // start of the MAC, "0c:42:a1"
	CPU         string // "amd64", "arm64"
	Profile     Profile
}

func (r ProfileRule) matches(c Client) bool {
	return strings.HasPrefix(c.VendorClass, r.VendorClass) && strings.HasPrefix(string(c.MAC), strings.ToLower(r.MAC)) &&
		(r.CPU == "" || r.CPU == c.CPU())
}

// Range is a run of addresses, both ends included.
type Range struct{ First, Last netip.Addr }

// Reservation ties an address to a hardware address.
type Reservation struct {
	MAC      fleet.MAC
	IP       netip.Addr
	Hostname string // option 12; "": not sent
}

// DefaultConfig returns a Config with the usual ports and times, and no
// subnet.
func DefaultConfig() Config {
	return Config{Mode: ModeServer, Ports: DefaultPorts}.withDefaults()
}

func (c Config) withDefaults() Config {
	def := func(p *int, v int) {
		if *p == 0 {
			*p = v
		}
	}
	if c.Mode == "" {
		c.Mode = ModeServer
	}
	if c.LeaseTime == 0 {
		c.LeaseTime = 24 * time.Hour
	}
	if c.OfferHold == 0 {
		c.OfferHold = 2 * time.Minute
	}
	def(&c.Workers, 16)
	def(&c.BlockSize, 1400)
	def(&c.WindowSize, 16)
	c.Limits = c.Limits.withDefaults()
	return c
}

// Validate reports the first thing in c that cannot work, with what to do.
func (c Config) Validate() error {
	switch c.Mode {
	case ModeServer:
		if len(c.Subnets) == 0 {
			return fmt.Errorf("DHCP mode %q needs at least one subnet; give one, or use mode %q beside another server", c.Mode, ModeProxy)
		}
	case ModeProxy, ModeOff:
	default:
		return fmt.Errorf("DHCP mode %q: want %q, %q or %q", c.Mode, ModeServer, ModeProxy, ModeOff)
	}
	if c.BlockSize < 512 || c.BlockSize > 65464 {
		return fmt.Errorf("TFTP block size %d: want 512 to 65464", c.BlockSize)
	}
	if c.WindowSize < 1 || c.WindowSize > 64 {
		return fmt.Errorf("TFTP window size %d: want 1 to 64", c.WindowSize)
	}
	if err := c.Limits.Validate(); err != nil {
		return err
	}
	if err := checkURL("node API", c.NodeAPI, 255); err != nil {
		return err
	}
	if err := checkURL("boot", c.BootURL, 150); err != nil {
		return err
	}
	if c.ServerIP.IsValid() && !c.ServerIP.Is4() {
		return fmt.Errorf("server address %s: want IPv4", c.ServerIP)
	}
	for i, r := range c.Profiles {
		if !slices.Contains(Profiles, r.Profile) {
			return fmt.Errorf("profile rule %d: profile %q: want one of %q", i+1, r.Profile, Profiles)
		}
	}
	for i, s := range c.Subnets {
		if err := s.validate(c.LeaseTime); err != nil {
			return fmt.Errorf("subnet %s: %w", s.Prefix, err)
		}
		for _, o := range c.Subnets[:i] {
			if o.Prefix.Overlaps(s.Prefix) {
				return fmt.Errorf("subnet %s overlaps %s", s.Prefix, o.Prefix)
			}
		}
	}
	return nil
}

func checkURL(what, s string, limit int) error {
	if s == "" {
		return nil
	}
	u, err := url.Parse(s)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return fmt.Errorf("%s URL %q: want http://host[:port] or https://host[:port]", what, s)
	}
	if len(s) > limit {
		return fmt.Errorf("%s URL has %d bytes, at most %d fit into a DHCP reply", what, len(s), limit)
	}
	return nil
}

func (s Subnet) validate(lease time.Duration) error {
	if !s.Prefix.IsValid() || !s.Prefix.Addr().Is4() {
		return fmt.Errorf("want an IPv4 prefix such as 10.0.0.0/24")
	}
	if s.Prefix != s.Prefix.Masked() {
		return fmt.Errorf("has host bits set, did you mean %s?", s.Prefix.Masked())
	}
	if s.LeaseTime != 0 {
		lease = s.LeaseTime
	}
	if lease < MinLeaseTime {
		return fmt.Errorf("lease time %s is shorter than %s; nodes would lose connections while they load an image", lease, MinLeaseTime)
	}
	for _, r := range s.Pools {
		if !s.usable(r.First) || !s.usable(r.Last) {
			return fmt.Errorf("pool %s-%s is not inside the network", r.First, r.Last)
		}
		if r.Last.Less(r.First) {
			return fmt.Errorf("pool %s-%s ends before it starts", r.First, r.Last)
		}
	}
	for _, a := range append([]netip.Addr{s.Router, s.ServerIP}, append(s.DNS, s.NTP...)...) {
		if a.IsValid() && !a.Is4() {
			return fmt.Errorf("address %s: want IPv4", a)
		}
	}
	return s.validateReservations()
}

func (s Subnet) validateReservations() error {
	ips, macs := map[netip.Addr]fleet.MAC{}, map[fleet.MAC]bool{}
	for _, r := range s.Reservations {
		if !s.usable(r.IP) {
			return fmt.Errorf("reservation of %s for %s is not inside the network", r.IP, r.MAC)
		}
		if other, ok := ips[r.IP]; ok {
			return fmt.Errorf("%s is reserved for %s and for %s", r.IP, other, r.MAC)
		}
		if macs[r.MAC] {
			return fmt.Errorf("%s has two reservations", r.MAC)
		}
		ips[r.IP], macs[r.MAC] = r.MAC, true
	}
	return nil
}

// usable reports host addresses: inside, and neither the network's own nor
// its broadcast address (but for /31 and /32).
func (s Subnet) usable(a netip.Addr) bool {
	if !a.Is4() || !s.Prefix.Contains(a) {
		return false
	}
	return s.Prefix.Bits() >= 31 || a != s.Prefix.Addr() && a != s.broadcast()
}

func (s Subnet) broadcast() netip.Addr {
	b := s.Prefix.Masked().Addr().As4()
	for i := s.Prefix.Bits(); i < 32; i++ {
		b[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(b)
}
