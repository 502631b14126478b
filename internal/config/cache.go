package config

import (
	"fmt"
	"maps"
	"net"
	"net/netip"
	"net/url"
	"slices"
	"strings"
)

// ImageCache says how images get to nodes by way of HTTP caches.
type ImageCache struct {
	Listen  string            `yaml:"listen"`  // address:port for caches, plain HTTP; "": none
	Clients []string          `yaml:"clients"` // addresses or networks of the caches; none: anybody
	Racks   map[string]string `yaml:"racks"`   // cache of a rack, "*" for all others
}

func (c ImageCache) check() error {
	bad := func(key, format string, a ...any) error {
		return &fault{"image_cache." + key, fmt.Sprintf(format, a...)}
	}
	if c.Listen != "" {
		if _, _, err := net.SplitHostPort(c.Listen); err != nil {
			return bad("listen", "%q: want ADDRESS:PORT, such as 10.77.0.1:8081", c.Listen)
		}
	}
	if _, err := c.Prefixes(); err != nil {
		return bad("clients", "%v", err)
	}
	for _, rack := range slices.Sorted(maps.Keys(c.Racks)) {
		u, err := url.Parse(c.Racks[rack])
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
			return bad("racks", "%s: %q: want the URL of a cache, such as http://10.7.0.2:8081", rack, c.Racks[rack])
		}
	}
	return nil
}

// Prefixes returns Clients as networks.
func (c ImageCache) Prefixes() ([]netip.Prefix, error) {
	var out []netip.Prefix
	for _, t := range c.Clients {
		if !strings.Contains(t, "/") {
			a, err := netip.ParseAddr(t)
			if err != nil {
				return nil, fmt.Errorf("%q: want an address or a network, such as 10.7.0.0/24", t)
			}
			out = append(out, netip.PrefixFrom(a, a.BitLen()))
			continue
		}
		p, err := netip.ParsePrefix(t)
		if err != nil {
			return nil, fmt.Errorf("%q: want an address or a network, such as 10.7.0.0/24", t)
		}
		out = append(out, p.Masked())
	}
	return out, nil
}
