// Package config reads the configuration of pxeserver: one YAML file, in
// which an unknown key, a wrong type or a value that cannot work is an error
// with its line.
package config

import (
	"bytes"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"time"

	"gopkg.in/yaml.v3"
)

// Config is the file. File names in it are relative to its folder; Load
// makes them whole.
type Config struct {
	DataDir   string        `yaml:"data_dir"`         // fleet state, images, CA
	Store     string        `yaml:"store"`            // "": a file in DataDir; else the URL of a PostgreSQL database
	Address   string        `yaml:"address"`          // IPv4 address told to nodes
	Interface string        `yaml:"interface"`        // for DHCP; "" means all that have an address in the subnet
	Names     []string      `yaml:"names"`            // more names and addresses of the server for its certificate
	Peers     []string      `yaml:"peers"`            // URLs of the other servers of this fleet, which nodes turn to when this one does not answer
	Cache     ImageCache    `yaml:"image_cache"`      //
	Listen    Listen        `yaml:"listen"`           //
	DHCP      DHCP          `yaml:"dhcp"`             //
	Boot      Boot          `yaml:"boot"`             //
	Limits    BootLimits    `yaml:"boot_limits"`      // taken over on reload
	Discovery Discovery     `yaml:"discovery"`        //
	ImageKeys []string      `yaml:"image_keys"`       // public keys (PEM) that may sign images
	EKRoots   []string      `yaml:"ek_roots"`         // CA certificates (PEM) of TPM makers; none: TPMs are pinned when approved
	Tokens    string        `yaml:"tokens"`           // file with operators' tokens
	Heartbeat time.Duration `yaml:"heartbeat"`        // how often nodes report
	NodeCert  time.Duration `yaml:"node_certificate"` // how long a node's certificate lasts
	Events    Events        `yaml:"events"`           // how much of the history is kept
	Attest    Attestation   `yaml:"attestation"`      //

	Hooks         map[string]Hook `yaml:"hooks"`               // by name: how rollouts drain nodes
	StorePassword string          `yaml:"store_password_file"` // with the password of Store's user
	Recovery      Recovery        `yaml:"recovery"`            // what is done by itself about nodes in trouble
	Alerts        []Alert         `yaml:"alerts"`              // webhooks
	Console       string          `yaml:"console_logs"`        // files of nodes' serial consoles, with {node} in the name
}

// Events says how much of the history is kept; 0 is no limit.
type Events struct {
	Keep time.Duration `yaml:"keep"` // older ones are dropped
	Most int           `yaml:"most"` // and all but so many of the newest
}

// Listen says where the services listen. Ports of 0 are the usual ones, -1
// turns a service off.
type Listen struct {
	API      string `yaml:"api"`        // address:port of the API (HTTPS)
	HTTPBoot int    `yaml:"http_boot"`  // 8080
	HTTPS    int    `yaml:"https_boot"` // 8444
	TFTP     int    `yaml:"tftp"`       // 69
	DHCP     int    `yaml:"dhcp"`       // 67
	Proxy    int    `yaml:"proxy"`      // 4011
}

// DHCP says who gets which address.
type DHCP struct {
	Mode   string        `yaml:"mode"`   // "server", "proxy", "off"
	Subnet string        `yaml:"subnet"` // 10.77.0.0/24
	Range  string        `yaml:"range"`  // 10.77.0.100-10.77.0.199
	Router string        `yaml:"router"`
	DNS    []string      `yaml:"dns"`
	Lease  time.Duration `yaml:"lease"`

	Reservations map[string]string `yaml:"reservations"` // MAC -> address in Subnet
	Subnets      []Network         `yaml:"subnets"`      // more of them
	Relays       []string          `yaml:"relays"`       // networks that relays may sit in; none: private ones, and those that are served
	Profiles     []Profile         `yaml:"profiles"`     // first match wins
}

// Attestation says how nodes are verified beyond the boot of their image.
type Attestation struct {
	Every    time.Duration     `yaml:"every"`              // pace of attestations; 0: once per boot
	Alarm    time.Duration     `yaml:"alarm"`              // age of a verification that is told; 0: none
	Baseline string            `yaml:"baseline"`           // firmware of a model: "off", "warn", "enforce"
	Allow    map[string]string `yaml:"allow_applications"` // digest (SHA-256, Authenticode) of a vendor's program -> its name
}

func (a Attestation) check() error {
	bad := func(key, format string, args ...any) error {
		return &fault{"attestation." + key, fmt.Sprintf(format, args...)}
	}
	switch {
	case a.Every != 0 && (a.Every < 10*time.Second || a.Every > 24*time.Hour):
		return bad("every", "%s: want 10s to 24h, or 0 for once per boot", a.Every)
	case a.Alarm < 0 || a.Alarm != 0 && a.Every != 0 && a.Alarm < 2*a.Every:
		return bad("alarm", "%s: want at least twice attestation.every (%s), or 0 for none", a.Alarm, a.Every)
	case a.Alarm != 0 && a.Every == 0:
		return bad("alarm", "%s: nodes attest once per boot (attestation.every is 0), so every one would be told", a.Alarm)
	}
	switch a.Baseline {
	case "off", "warn", "enforce":
	default:
		return bad("baseline", "%q: want off, warn or enforce", a.Baseline)
	}
	for d, name := range a.Allow {
		if b, err := hex.DecodeString(d); err != nil || len(b) != 32 {
			return bad("allow_applications", "%q: want the 64 hex digits that a verdict shows as seen", d)
		}
		if name == "" {
			return bad("allow_applications", "%s: say whose program it is", d)
		}
		if name == "systemd-boot" {
			return bad("allow_applications", "%s: a loader cannot be allowed here; publish its image", d)
		}
	}
	return nil
}

// Discovery says what happens to a machine nobody added.
type Discovery struct {
	Enabled bool   `yaml:"enabled"` // it boots the installer and waits for approval
	Pool    string `yaml:"pool"`    // where it waits
}

// Default returns the values of keys that are absent.
func Default() Config {
	return Config{
		DataDir: "data", Tokens: "tokens", Heartbeat: 10 * time.Second, NodeCert: 24 * time.Hour,
		Hooks:  map[string]Hook{},
		Events: Events{Keep: 180 * 24 * time.Hour, Most: 1_000_000},
		Listen: Listen{API: ":8443", HTTPS: -1},
		DHCP:   DHCP{Mode: "server", Lease: 24 * time.Hour, Reservations: map[string]string{}},
		Boot:   defaultBoot(), Limits: defaultBootLimits(),
		Discovery: Discovery{Enabled: true, Pool: "default"},
		Attest:    Attestation{Every: 10 * time.Minute, Alarm: time.Hour, Baseline: "warn"},
		Recovery:  defaultRecovery(),
	}
}

// Error is a fault of the file. Line is 0 where it has none.
type Error struct {
	File string
	Line int
	Msg  string
}

// Error implements error.
func (e *Error) Error() string {
	if e.Line > 0 {
		return fmt.Sprintf("%s:%d: %s", e.File, e.Line, e.Msg)
	}
	return e.File + ": " + e.Msg
}

// Load reads and checks a file. Faults of its contents are *Error.
func Load(path string) (*Config, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("configuration: %w; make one with `pxeserver init`", err)
	}
	return Parse(path, b)
}

// Parse is Load for text that is, or will be, in the file at path.
func Parse(path string, b []byte) (*Config, error) {
	c, err := parse(path, b)
	if err != nil {
		return nil, err
	}
	c.resolve(filepath.Dir(path))
	return c, nil
}

func parse(path string, b []byte) (*Config, error) {
	c := Default()
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&c); err != nil && !errors.Is(err, io.EOF) {
		return nil, explain(path, err)
	}
	if err := c.check(); err != nil {
		var f *fault
		if errors.As(err, &f) {
			return nil, &Error{path, lineOf(b, f.key), f.Error()}
		}
		return nil, &Error{path, 0, err.Error()}
	}
	if len(c.Recovery.Pools) == 0 {
		c.Recovery.Pools = nil
	}
	if len(c.Alerts) == 0 {
		c.Alerts = nil
	}
	if len(c.DHCP.Subnets) == 0 {
		c.DHCP.Subnets = nil
	}
	if len(c.DHCP.Relays) == 0 {
		c.DHCP.Relays = nil
	}
	if len(c.DHCP.Profiles) == 0 {
		c.DHCP.Profiles = nil
	}
	return &c, nil
}

// explain turns the YAML reader's words into ours: the first fault only.
func explain(path string, err error) error {
	msg := err.Error()
	var te *yaml.TypeError
	if errors.As(err, &te) && len(te.Errors) > 0 {
		msg = te.Errors[0]
	}
	msg = strings.TrimPrefix(msg, "yaml: ")
	line := 0
	if _, e := fmt.Sscanf(msg, "line %d:", &line); e == nil {
		_, msg, _ = strings.Cut(msg, ": ")
	}
	if key, rest, ok := strings.Cut(strings.TrimPrefix(msg, "field "), " not found in type "); ok {
		msg = fmt.Sprintf("unknown key %q", key)
		if where := strings.ToLower(strings.TrimPrefix(rest, "config.")); where != "config" {
			msg += " in " + where
		}
		msg += "; `pxeserver init` writes a file with every key explained"
	}
	if strings.HasSuffix(msg, "into time.Duration") {
		msg += ": want a time with a unit, such as 10s"
	}
	return &Error{path, line, msg}
}

// fault is a value that cannot work.
type fault struct {
	key string // "dhcp.subnet"
	msg string
}

func (f *fault) Error() string { return f.key + ": " + f.msg }

// lineOf finds the line of a key, 0 if it is not in the file.
func lineOf(b []byte, key string) int {
	var doc yaml.Node
	if yaml.Unmarshal(b, &doc) != nil || len(doc.Content) == 0 {
		return 0
	}
	at, line := doc.Content[0], 0
	for _, k := range strings.Split(key, ".") {
		found := false
		for i := 0; at.Kind == yaml.MappingNode && i+1 < len(at.Content); i += 2 {
			if at.Content[i].Value == k {
				at, line, found = at.Content[i+1], at.Content[i].Line, true
				break
			}
		}
		if !found {
			return line
		}
	}
	return line
}

func (c *Config) check() error {
	bad := func(key, format string, a ...any) error { return &fault{key, fmt.Sprintf(format, a...)} }
	if a, err := netip.ParseAddr(c.Address); err != nil || !a.Is4() || a.IsUnspecified() {
		return bad("address", "%q: want the IPv4 address under which nodes reach this server", c.Address)
	}
	for _, p := range c.Peers {
		if u, err := url.Parse(p); err != nil || u.Scheme != "https" || u.Hostname() == "" || u.Port() == "" || u.Path != "" || u.RawQuery != "" || u.User != nil {
			return bad("peers", "%q: want the URL of another server, such as https://10.77.0.2:8443", p)
		}
	}
	if c.Events.Keep < 0 || c.Events.Most < 0 {
		return bad("events", "keep %s, most %d: want 0 or more", c.Events.Keep, c.Events.Most)
	}
	if _, _, err := net.SplitHostPort(c.Listen.API); err != nil {
		return bad("listen.api", "%q: want ADDRESS:PORT, such as :8443", c.Listen.API)
	}
	for key, p := range map[string]int{"http_boot": c.Listen.HTTPBoot, "https_boot": c.Listen.HTTPS, "tftp": c.Listen.TFTP, "dhcp": c.Listen.DHCP, "proxy": c.Listen.Proxy} {
		if p < -1 || p > 65535 {
			return bad("listen."+key, "%d: want a port, 0 for the usual one, or -1 for off", p)
		}
	}
	switch {
	case c.Heartbeat < time.Second || c.Heartbeat > 10*time.Minute:
		return bad("heartbeat", "%s: want 1s to 10m", c.Heartbeat)
	case c.NodeCert < 10*time.Minute:
		return bad("node_certificate", "%s: want at least 10m", c.NodeCert)
	case c.Discovery.Enabled && c.Discovery.Pool == "":
		return bad("discovery.pool", "name the pool in which new machines wait")
	case c.DataDir == "":
		return bad("data_dir", "name a folder")
	case c.Console != "" && !strings.Contains(filepath.Base(c.Console), "{node}"):
		return bad("console_logs", "%q: want a file name with {node} in it, such as /var/log/consoles/{node}.log", c.Console)
	}
	if err := errors.Join(c.checkStore(), c.Cache.check(), checkHooks(c.Hooks), c.Attest.check(), c.Recovery.check(), checkAlerts(c.Alerts),
		c.Boot.check(c.Listen.HTTPS), c.Limits.check(), c.DHCP.checkReplies()); err != nil {
		return err
	}
	return c.checkDHCP()
}

func (c *Config) checkDHCP() error {
	bad := func(key, format string, a ...any) error { return &fault{key, fmt.Sprintf(format, a...)} }
	switch c.DHCP.Mode {
	case "server":
	case "proxy", "off":
		return nil
	default:
		return bad("dhcp.mode", "%q: want server, proxy (beside another DHCP server) or off", c.DHCP.Mode)
	}
	if err := c.DHCP.check(); err != nil {
		return err
	}
	if p := netip.MustParsePrefix(c.DHCP.Subnet); !p.Contains(netip.MustParseAddr(c.Address)) {
		return bad("address", "%s is not in dhcp.subnet %s", c.Address, p)
	}
	return nil
}

func upperHalf(p netip.Prefix) (first, last netip.Addr, err error) {
	if p.Bits() > 29 {
		return first, last, fmt.Errorf("%s is too small for a range of its own; name one", p)
	}
	lo, hi := p.Addr().As4(), p.Addr().As4()
	lo[p.Bits()/8] |= 0x80 >> (p.Bits() % 8)
	for i := p.Bits(); i < 32; i++ {
		hi[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(lo), netip.AddrFrom4(hi).Prev(), nil
}

// resolve makes file names whole.
func (c *Config) resolve(dir string) {
	whole := func(p *string) {
		if *p != "" && !filepath.IsAbs(*p) {
			*p = filepath.Join(dir, *p)
		}
	}
	whole(&c.DataDir)
	whole(&c.Console)
	whole(&c.Tokens)
	whole(&c.StorePassword)
	whole(&c.Boot.Cert)
	whole(&c.Boot.Key)
	resolveAlerts(dir, c.Alerts)
	resolveHooks(dir, c.Hooks)
	for i := range c.ImageKeys {
		whole(&c.ImageKeys[i])
	}
	for i := range c.EKRoots {
		whole(&c.EKRoots[i])
	}
}

// NodeAPI returns the URL of the API as nodes are told it.
func (c *Config) NodeAPI() string {
	_, port, _ := net.SplitHostPort(c.Listen.API)
	return "https://" + net.JoinHostPort(c.Address, port)
}

// Servers returns the URLs of all servers of the fleet, this one first; nil
// where it is the only one.
func (c *Config) Servers() []string {
	if len(c.Peers) == 0 {
		return nil
	}
	return append([]string{c.NodeAPI()}, c.Peers...)
}

// Paths of files that belong together.

// CAFile is the certificate of the server's CA, beside the configuration in
// the data folder's parent: images are built with it.
func (c *Config) CAFile() string { return filepath.Join(filepath.Dir(c.Tokens), "ca.pem") }

// CAKeyFile is the CA's private key.
func (c *Config) CAKeyFile() string { return filepath.Join(c.DataDir, "ca.key") }

// BMCKeyFile is the key that seals the passwords of BMCs.
func (c *Config) BMCKeyFile() string { return filepath.Join(c.DataDir, "bmc.key") }

// ReportKeyFile is the key that signs reports of nodes.
func (c *Config) ReportKeyFile() string { return filepath.Join(c.DataDir, "report.key") }

// StateFile is the fleet state.
func (c *Config) StateFile() string { return filepath.Join(c.DataDir, "fleet.db") }

// StateName is where the fleet state is, for people.
func (c *Config) StateName() string {
	if c.Store != "" {
		return c.Store
	}
	return c.StateFile()
}

// ImageDir is the image store, an OCI layout.
func (c *Config) ImageDir() string { return filepath.Join(c.DataDir, "images") }

// TokenFile is the operator's token that `init` made, for commands run with
// this configuration.
func (c *Config) TokenFile() string { return filepath.Join(filepath.Dir(c.Tokens), "operator.token") }
