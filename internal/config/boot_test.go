package config

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
)

const bootText = `
address: 10.77.0.1
dhcp:
  subnet: 10.77.0.0/24
  reservations: {"52:54:00:12:34:56": 10.77.0.7}
  subnets:
    - {subnet: 10.78.0.0/24, router: 10.78.0.254, server: 10.77.0.1, mtu: 9000, lease: 2h, ntp: [10.77.0.1], domain: rack2.example}
  relays: [10.78.0.0/24]
  profiles: [{class: "PXEClient:Arch:00011", cpu: arm64, profile: plain}]
listen: {https_boot: 0}
boot: {offer_https: true}
boot_limits: {rack_rate: 500000000, connection_rate: 100000}
`

func TestBootKeys(t *testing.T) {
	c, err := Parse("/etc/turnout/pxeserver.yaml", []byte(bootText))
	if err != nil {
		t.Fatal(err)
	}
	first, last, err := c.DHCP.Networks()[1].Addresses()
	if err != nil || first.String() != "10.78.0.128" || last.String() != "10.78.0.254" {
		t.Errorf("addresses %s to %s, %v", first, last, err)
	}
	if n := c.DHCP.Subnets[0]; n.Lease != 2*time.Hour || n.MTU != 9000 {
		t.Errorf("%+v", n)
	}
	text, err := Write(c)
	if err != nil {
		t.Fatal(err)
	}
	again, err := Parse("/etc/turnout/pxeserver.yaml", text)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(c, again, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("what is written reads differently:\n%s", d)
	}
}

func TestBootFaults(t *testing.T) {
	for edit, want := range map[string]string{
		"subnet: 10.78.0.0/24|subnet: 10.78.0.1/24":   `dhcp.subnets.subnet: "10.78.0.1/24"`,
		"mtu: 9000|mtu: 12":                           "dhcp.subnets.mtu: 12",
		"lease: 2h|lease: 5m":                         "dhcp.subnets.lease: 5m0s is shorter",
		"10.77.0.7}|10.99.0.7}":                       "dhcp.reservations: 52:54:00:12:34:56",
		"relays: [10.78.0.0/24]|relays: [rack2]":      `dhcp.relays: "rack2"`,
		"profile: plain|profile: pretty":              `dhcp.profiles: profile "pretty"`,
		"cpu: arm64|cpu: arm":                         `dhcp.profiles: cpu "arm"`,
		"https_boot: 0|https_boot: -1":                "boot.offer_https: needs the HTTPS service",
		"offer_https: true|https_key: k.pem":          "boot.https_certificate: certificate and https_key",
		"offer_https: true|url: ftp://x":              `boot.url: "ftp://x"`,
		"offer_https: true|window_size: 99":           "boot.window_size: 99",
		"connection_rate: 100000|connection_rate: 99": "boot_limits.connection_rate: 99 bytes",
		"connection_rate: 100000|rack_downloads: -1":  "boot_limits.rack_downloads: -1",
		"ntp: [10.77.0.1]|ntp: [\"fe80::1\"]":         `dhcp.subnets: "fe80::1" is no IPv4 address`,
	} {
		from, to, _ := strings.Cut(edit, "|")
		text := strings.Replace(bootText, from, to, 1)
		if text == bootText {
			t.Fatalf("%q is not in the text", from)
		}
		if _, err := Parse("x.yaml", []byte(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want %q", edit, err, want)
		}
	}
}
