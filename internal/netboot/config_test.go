package netboot

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

func TestConfigValidate(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(*Config)
		want string
	}{
		{"good", func(*Config) {}, ""},
		{"no subnet", func(c *Config) { c.Subnets = nil }, "at least one subnet"},
		{"proxy needs none", func(c *Config) { c.Mode, c.Subnets = ModeProxy, nil }, ""},
		{"mode", func(c *Config) { c.Mode = "relay" }, `mode "relay"`},
		{"host bits", func(c *Config) { c.Subnets[0].Prefix = netip.MustParsePrefix("10.77.0.1/24") }, "did you mean 10.77.0.0/24"},
		{"pool outside", func(c *Config) { c.Subnets[0].Pools[0].Last = netip.MustParseAddr("10.77.1.1") }, "not inside the network"},
		{"pool with broadcast", func(c *Config) { c.Subnets[0].Pools[0].Last = netip.MustParseAddr("10.77.0.255") }, "not inside the network"},
		{"pool backwards", func(c *Config) { c.Subnets[0].Pools[0].Last = netip.MustParseAddr("10.77.0.5") }, "ends before it starts"},
		{"short lease", func(c *Config) { c.LeaseTime = 2 * time.Minute }, "shorter than 1h0m0s"},
		{"IPv6", func(c *Config) { c.Subnets[0].DNS = []netip.Addr{netip.MustParseAddr("fe80::1")} }, "want IPv4"},
		{"one address twice", func(c *Config) {
			ip := netip.MustParseAddr("10.77.0.9")
			c.Subnets[0].Reservations = []Reservation{{MAC: mac1, IP: ip}, {MAC: mac2, IP: ip}}
		}, "is reserved for 52:54:00:00:00:01 and for"},
		{"one MAC twice", func(c *Config) {
			c.Subnets[0].Reservations = []Reservation{{MAC: mac1, IP: netip.MustParseAddr("10.77.0.8")}, {MAC: mac1, IP: netip.MustParseAddr("10.77.0.9")}}
		}, "two reservations"},
		{"overlap", func(c *Config) { c.Subnets = append(c.Subnets, Subnet{Prefix: netip.MustParsePrefix("10.0.0.0/8")}) }, "overlaps"},
		{"profile", func(c *Config) { c.Profiles = []ProfileRule{{Profile: "best"}} }, `profile rule 1: profile "best"`},
		{"node API", func(c *Config) { c.NodeAPI = "10.77.0.1:8443" }, "want http"},
	} {
		c := rackConfig()
		tc.edit(&c)
		err := c.Validate()
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v; want %q", tc.name, err, tc.want)
		}
	}
}

// The memories that packets of strangers can fill are bounded.
func TestMemoryIsBounded(t *testing.T) {
	w, bk := &watch{}, &book{}
	now := time.Unix(1e9, 0)
	for i := range bookLimit + bookLimit/4 {
		ip := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		bk.put(ip, Client{MAC: fleet.MAC(mac1)}, now.Add(time.Duration(i)))
		w.once(ip.String(), "x", now.Add(time.Duration(i)*time.Second), time.Minute)
	}
	if len(bk.m) > bookLimit || len(w.m) > watchLimit {
		t.Errorf("book holds %d, watch %d; want at most %d and %d", len(bk.m), len(w.m), bookLimit, watchLimit)
	}
	if w.once("10.1.63.255", "x", now.Add(2*bookLimit*time.Second), 1000*time.Hour) {
		t.Error("the newest entry was forgotten")
	}
}
