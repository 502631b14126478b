package config

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

const minimal = `address: 10.77.0.1
dhcp:
  subnet: 10.77.0.0/24
`

func TestLoad(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "pxeserver.yaml")
	if err := os.WriteFile(path, []byte(minimal+"image_keys: [image.pub, /etc/other.pub]\nheartbeat: 2s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := Load(path)
	if err != nil {
		t.Fatal(err)
	}
	want := Default()
	want.Address, want.DHCP.Subnet, want.Heartbeat = "10.77.0.1", "10.77.0.0/24", 2*time.Second
	want.DataDir, want.Tokens = filepath.Join(dir, "data"), filepath.Join(dir, "tokens")
	want.ImageKeys = []string{filepath.Join(dir, "image.pub"), "/etc/other.pub"}
	if d := cmp.Diff(&want, got); d != "" {
		t.Errorf("Load (-want +got):\n%s", d)
	}
	if got.NodeAPI() != "https://10.77.0.1:8443" {
		t.Errorf("NodeAPI = %s", got.NodeAPI())
	}
}

func TestFaultsHaveLines(t *testing.T) {
	for _, tt := range []struct {
		name, text string
		line       int
		msg        string
	}{
		{"unknown key", minimal + "hartbeat: 2s\n", 4, `unknown key "hartbeat"`},
		{"unknown nested key", "address: 10.77.0.1\ndhcp:\n  subnetz: 10.0.0.0/8\n", 3, `unknown key "subnetz" in dhcp`},
		{"wrong type", minimal + "heartbeat: [1]\n", 4, "cannot unmarshal"},
		{"duration without unit", minimal + "heartbeat: 10\n", 4, "a time with a unit"},
		{"broken YAML", "address: [\n", 1, ""},
		{"no address", "dhcp:\n  subnet: 10.77.0.0/24\n", 0, "address"},
		{"address outside", "dhcp:\n  subnet: 10.78.0.0/24\naddress: 10.77.0.1\n", 3, "not in dhcp.subnet"},
		{"subnet with host bits", "address: 10.77.0.1\ndhcp:\n  subnet: 10.77.0.1/24\n", 3, "want an IPv4 network"},
		{"range outside", minimal + "  range: 10.78.0.1-10.78.0.2\n", 4, "not a range in"},
		{"range backwards", minimal + "  range: 10.77.0.9-10.77.0.2\n", 4, "not a range in"},
		{"bad mode", minimal + "  mode: relay\n", 4, "want server, proxy"},
		{"attests too often", minimal + "attestation:\n  every: 1s\n", 5, "want 10s to 24h"},
		{"alarm before the next attestation", minimal + "attestation:\n  every: 1h\n  alarm: 90m\n", 6, "at least twice"},
		{"alarm without attestations", minimal + "attestation:\n  every: 0s\n  alarm: 90m\n", 6, "once per boot"},
		{"bad baseline mode", minimal + "attestation:\n  baseline: strict\n", 5, "off, warn or enforce"},
		{"allowed program by a short digest", minimal + "attestation:\n  allow_applications: {abcd: tool}\n", 5, "64 hex digits"},
		{"allowed program without a name", minimal + "attestation:\n  allow_applications: {" + strings.Repeat("ab", 32) + ": \"\"}\n", 5, "whose program"},
		{"allowed loader", minimal + "attestation:\n  allow_applications: {" + strings.Repeat("ab", 32) + ": systemd-boot}\n", 5, "publish its image"},
		{"cache without a host", minimal + "image_cache:\n  racks: {r7: \"http:///x\"}\n", 5, "URL of a cache"},
		{"cache client by name", minimal + "image_cache:\n  clients: [cache1]\n", 5, "an address or a network"},
		{"cache listener without a port", minimal + "image_cache:\n  listen: 10.77.0.1\n", 5, "want ADDRESS:PORT"},
		{"a peer without a port", minimal + "peers: [\"https://10.77.0.2\"]\n", 4, "URL of another server"},
		{"a peer by plain HTTP", minimal + "peers: [\"http://10.77.0.2:8443\"]\n", 4, "URL of another server"},
		{"bad port", minimal + "listen:\n  tftp: 70000\n", 5, "want a port"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			_, err := parse("x.yaml", []byte(tt.text))
			var e *Error
			if !errors.As(err, &e) {
				t.Fatalf("parse = %v; want an *Error", err)
			}
			if e.Line != tt.line || !strings.Contains(e.Msg, tt.msg) {
				t.Errorf("parse = %v; want line %d and %q", e, tt.line, tt.msg)
			}
		})
	}
}

func TestWriteReadsBack(t *testing.T) {
	c := Default()
	c.Address, c.DHCP.Subnet, c.Interface = "10.77.0.1", "10.77.0.0/24", "eth0"
	c.Names, c.ImageKeys, c.EKRoots = []string{"boot.example.org"}, []string{"image.pub"}, []string{`odd "name".pem`}
	c.Cache = ImageCache{Listen: "10.77.0.1:8081", Clients: []string{"10.7.0.0/24"}, Racks: map[string]string{"r7": "http://10.7.0.2:8081", "*": "http://10.8.0.2"}}
	c.Peers = []string{"https://10.77.0.2:8443", "https://pxe2.example.org:8443"}
	c.DHCP.DNS = []string{"10.77.0.2"}
	c.Attest.Allow = map[string]string{strings.Repeat("ab", 32): `Dell "OEM" tool`}
	text, err := Write(&c)
	if err != nil {
		t.Fatal(err)
	}
	got, err := parse("x.yaml", text)
	if err != nil {
		t.Fatalf("parse(Write(c)): %v\n%s", err, text)
	}
	if d := cmp.Diff(&c, got); d != "" {
		t.Errorf("read back (-want +got):\n%s", d)
	}
}

func TestUpperHalf(t *testing.T) {
	for subnet, want := range map[string]string{
		"10.77.0.0/24": "10.77.0.128 10.77.0.254", "10.0.0.0/8": "10.128.0.0 10.255.255.254", "192.168.1.8/29": "192.168.1.12 192.168.1.14",
	} {
		a, b, err := Network{Subnet: subnet}.Addresses()
		if got := a.String() + " " + b.String(); err != nil || got != want {
			t.Errorf("Addresses(%s) = %s, %v; want %s", subnet, got, err, want)
		}
	}
}
