package config

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"time"
)

// Network is one more network whose addresses are leased, usually behind a
// relay: a rack.
type Network struct {
	Subnet       string            `yaml:"subnet" json:"subnet"`                       // 10.78.0.0/24
	Range        string            `yaml:"range" json:"range,omitempty"`               // "": the upper half
	Router       string            `yaml:"router" json:"router,omitempty"`             //
	DNS          []string          `yaml:"dns" json:"dns,omitempty"`                   //
	NTP          []string          `yaml:"ntp" json:"ntp,omitempty"`                   //
	Domain       string            `yaml:"domain" json:"domain,omitempty"`             //
	Server       string            `yaml:"server" json:"server,omitempty"`             // address of this server as seen from there; "": Config.Address
	MTU          int               `yaml:"mtu" json:"mtu,omitempty"`                   // 0: not told
	Lease        time.Duration     `yaml:"lease" json:"-"`                             // 0: DHCP.Lease
	Reservations map[string]string `yaml:"reservations" json:"reservations,omitempty"` // MAC -> address
}

// Profile chooses the shape of DHCP replies for a machine model; what is
// empty matches all.
type Profile struct {
	Class   string `yaml:"class" json:"class,omitempty"` // start of option 60
	MAC     string `yaml:"mac" json:"mac,omitempty"`     // start of the hardware address
	CPU     string `yaml:"cpu" json:"cpu,omitempty"`     // amd64, arm64
	Profile string `yaml:"profile" json:"profile"`       // plain, direct, boot-server, header
}

// Boot says how boot files are named and handed out.
type Boot struct {
	URL        string `yaml:"url"`               // base of URLs, for a cache in front of this server; "": this server
	OfferHTTPS bool   `yaml:"offer_https"`       // to UEFI HTTP firmware
	Cert       string `yaml:"https_certificate"` // PEM; "": one is made in DataDir
	Key        string `yaml:"https_key"`         //
	BlockSize  int    `yaml:"block_size"`        // largest TFTP block
	WindowSize int    `yaml:"window_size"`       // largest TFTP window
}

// BootLimits say how much goes out at a time; bytes per second, 0 is no limit.
type BootLimits struct {
	Downloads     int `yaml:"downloads"`
	RackDownloads int `yaml:"rack_downloads"`
	Transfers     int `yaml:"transfers"`
	Connection    int `yaml:"connection_rate"`
	Rack          int `yaml:"rack_rate"`
	Total         int `yaml:"total_rate"`
}

func defaultBoot() Boot { return Boot{BlockSize: 1400, WindowSize: 16} }

func defaultBootLimits() BootLimits { return BootLimits{Downloads: 1024, Transfers: 2048} }

// main is the network that the keys of dhcp itself describe.
func (d DHCP) main() Network {
	return Network{Subnet: d.Subnet, Range: d.Range, Router: d.Router, DNS: d.DNS, Lease: d.Lease, Reservations: d.Reservations}
}

// Networks returns all networks, that of dhcp itself first.
func (d DHCP) Networks() []Network { return append([]Network{d.main()}, d.Subnets...) }

// Addresses returns the first and last address to lease. Without a range it
// is the upper half of the subnet, which must be a valid one.
func (n Network) Addresses() (first, last netip.Addr, err error) {
	if n.Range == "" {
		return upperHalf(netip.MustParsePrefix(n.Subnet))
	}
	a, b, ok := strings.Cut(n.Range, "-")
	if first, err = netip.ParseAddr(strings.TrimSpace(a)); err == nil && ok {
		last, err = netip.ParseAddr(strings.TrimSpace(b))
	}
	if err != nil || !ok {
		return first, last, fmt.Errorf("%q: want FIRST-LAST, such as 10.77.0.100-10.77.0.199", n.Range)
	}
	return first, last, nil
}

// check finds what cannot work in one network; overlaps and the rest are the
// boot services' to find.
func (n Network) check(key string) error {
	bad := func(what, format string, a ...any) error {
		return &fault{key + what, fmt.Sprintf(format, a...)}
	}
	p, err := netip.ParsePrefix(n.Subnet)
	if err != nil || !p.Addr().Is4() || p.Masked() != p {
		return bad(".subnet", "%q: want an IPv4 network such as 10.77.0.0/24; mode server needs one", n.Subnet)
	}
	first, last, err := n.Addresses()
	if err != nil {
		return bad(".range", "%v", err)
	}
	if !p.Contains(first) || !p.Contains(last) || last.Less(first) {
		return bad(".range", "%s-%s is not a range in %s", first, last, p)
	}
	for _, a := range slices.Concat([]string{n.Router, n.Server}, n.DNS, n.NTP) {
		if ip, err := netip.ParseAddr(a); a != "" && (err != nil || !ip.Is4()) {
			return bad("", "%q is no IPv4 address", a)
		}
	}
	if n.Lease != 0 && n.Lease < time.Hour {
		return bad(".lease", "%s is shorter than 1h; nodes would lose connections while they load an image", n.Lease)
	}
	if n.MTU != 0 && (n.MTU < 576 || n.MTU > 65535) {
		return bad(".mtu", "%d: want 576 to 65535, or 0", n.MTU)
	}
	for mac, a := range n.Reservations {
		if ip, err := netip.ParseAddr(a); err != nil || !p.Contains(ip) {
			return bad(".reservations", "%s: %q is no address in %s", mac, a, p)
		}
	}
	return nil
}

func (d DHCP) check() error {
	for i, n := range d.Networks() {
		key := "dhcp"
		if i > 0 {
			key = "dhcp.subnets"
		}
		if err := n.check(key); err != nil {
			return err
		}
	}
	return nil
}

// checkReplies checks what all modes have.
func (d DHCP) checkReplies() error {
	for _, r := range d.Relays {
		if p, err := netip.ParsePrefix(r); err != nil || !p.Addr().Is4() {
			return &fault{"dhcp.relays", fmt.Sprintf("%q: want an IPv4 network such as 10.77.0.0/16", r)}
		}
	}
	for _, p := range d.Profiles {
		if !slices.Contains([]string{"plain", "direct", "boot-server", "header"}, p.Profile) {
			return &fault{"dhcp.profiles", fmt.Sprintf("profile %q: want plain, direct, boot-server or header", p.Profile)}
		}
		if p.CPU != "" && p.CPU != "amd64" && p.CPU != "arm64" {
			return &fault{"dhcp.profiles", fmt.Sprintf("cpu %q: want amd64 or arm64", p.CPU)}
		}
	}
	return nil
}

func (b Boot) check(https int) error {
	if b.URL != "" {
		if u, err := url.Parse(b.URL); err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
			return &fault{"boot.url", fmt.Sprintf("%q: want http://HOST[:PORT] or https://HOST[:PORT]", b.URL)}
		}
	}
	switch {
	case b.OfferHTTPS && https < 0:
		return &fault{"boot.offer_https", "needs the HTTPS service: set listen.https_boot to a port, or 0 for 8444"}
	case (b.Cert == "") != (b.Key == ""):
		return &fault{"boot.https_certificate", "certificate and https_key go together"}
	case b.BlockSize < 512 || b.BlockSize > 65464:
		return &fault{"boot.block_size", fmt.Sprintf("%d: want 512 to 65464", b.BlockSize)}
	case b.WindowSize < 1 || b.WindowSize > 64:
		return &fault{"boot.window_size", fmt.Sprintf("%d: want 1 to 64", b.WindowSize)}
	}
	return nil
}

func (l BootLimits) check() error {
	var all error
	for key, n := range map[string]int{"downloads": l.Downloads, "rack_downloads": l.RackDownloads, "transfers": l.Transfers} {
		if n < 0 {
			all = errors.Join(all, &fault{"boot_limits." + key, fmt.Sprintf("%d: want 0 or more", n)})
		}
	}
	for key, n := range map[string]int{"connection_rate": l.Connection, "rack_rate": l.Rack, "total_rate": l.Total} {
		if n != 0 && n < 100_000 {
			all = errors.Join(all, &fault{"boot_limits." + key, fmt.Sprintf("%d bytes per second: want at least 100000, or 0 for no limit", n)})
		}
	}
	return all
}

// flowJSON writes a list or mapping as YAML's flow style has it too.
func flowJSON(v any) (string, error) {
	b, err := json.Marshal(v)
	if string(b) == "null" {
		return "", errors.New("a list or mapping that is null cannot be written")
	}
	return string(b), err
}

// flowNetworks is flowJSON with times as people write them.
func flowNetworks(all []Network) (string, error) {
	type line struct {
		Network
		Lease string `json:"lease,omitempty"`
	}
	out := []line{}
	for _, n := range all {
		l := line{Network: n}
		if n.Lease != 0 {
			l.Lease = n.Lease.String()
		}
		out = append(out, l)
	}
	return flowJSON(out)
}
