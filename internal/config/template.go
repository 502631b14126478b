package config

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/template"
)

// Write returns the text of a configuration file with every key explained.
// Load reads it back as c.
func Write(c *Config) ([]byte, error) {
	var b strings.Builder
	if err := fileText.Execute(&b, c); err != nil {
		return nil, fmt.Errorf("writing the configuration: %w", err)
	}
	return []byte(b.String()), nil
}

var fileText = template.Must(template.New("pxeserver.yaml").Funcs(template.FuncMap{
	"networks": flowNetworks, "json": func(m map[string]string) (string, error) { return flowJSON(maps.Collect(maps.All(m))) }, "profiles": func(p []Profile) (string, error) { return flowJSON(append([]Profile{}, p...)) },
	"steps": flowSteps, "pools": flowPools, "flow": flowAlerts, "hooks": flowHooks,
	"q": func(s string) string { return fmt.Sprintf("%q", s) },
	"allow": func(m map[string]string) string {
		var parts []string
		for _, d := range slices.Sorted(maps.Keys(m)) {
			parts = append(parts, fmt.Sprintf("%q: %q", d, m[d]))
		}
		return "{" + strings.Join(parts, ", ") + "}"
	},
	"list": func(ss []string) string {
		qs := make([]string, len(ss))
		for i, s := range ss {
			qs[i] = fmt.Sprintf("%q", s)
		}
		return "[" + strings.Join(qs, ", ") + "]"
	},
}).Parse(`# Configuration of pxeserver. Check it with: pxeserver check-config
# File names are relative to this file's folder.

# Fleet state (SQLite), images and the CA's private key. Back it up.
data_dir: {{q .DataDir}}

# Where fleet state is kept instead, for several servers at once:
# "postgres://USER@HOST/DATABASE"; "" is the file. See docs/high-availability.md.
store: {{q .Store}}
store_password_file: {{q .StorePassword}}  # file with the password of that user

# The IPv4 address under which nodes reach this server.
address: {{q .Address}}

# The network interface for DHCP. "" means every one with an address in the subnet.
interface: {{q .Interface}}

# More names and addresses of this server, for its certificate.
names: {{list .Names}}

# URLs of the other servers of this fleet, "https://10.77.0.2:8443". Nodes are
# told them, and turn to them when this one does not answer. [] where it is alone.
peers: {{list .Peers}}

# Images by way of HTTP caches in racks (see docs/operating.md).
image_cache:
  listen: {{q .Cache.Listen}}     # ADDRESS:PORT where caches fetch from, plain HTTP; "": off
  clients: {{list .Cache.Clients}}    # addresses or networks of the caches; []: anybody
  racks: {{allow .Cache.Racks}}      # what nodes ask first: {"r7": "http://10.7.0.2:8081", "*": "http://…"}

listen:
  api: {{q .Listen.API}}     # HTTPS: nodes, commands, other programs
  http_boot: {{.Listen.HTTPBoot}}      # UEFI HTTP boot; 0 is the usual port 8080, -1 turns it off
  https_boot: {{.Listen.HTTPS}}     # HTTPS boot; 0 is 8444, -1 turns it off
  tftp: {{.Listen.TFTP}}           # 0 is 69
  dhcp: {{.Listen.DHCP}}           # 0 is 67
  proxy: {{.Listen.Proxy}}          # 0 is 4011

dhcp:
  mode: {{.DHCP.Mode}}      # server; proxy: beside another DHCP server; off
  subnet: {{q .DHCP.Subnet}}
  range: {{q .DHCP.Range}}       # "10.77.0.100-10.77.0.199"; "" is the upper half of the subnet
  router: {{q .DHCP.Router}}
  dns: {{list .DHCP.DNS}}
  lease: {{.DHCP.Lease}}
  reservations: {{json .DHCP.Reservations}}  # {"52:54:00:12:34:56": "10.77.0.7"}
  # More networks, such as racks behind relays, with the same keys and: ntp, domain, mtu,
  # server (this server's address as seen from there):
  # [{"subnet": "10.78.0.0/24", "router": "10.78.0.1", "reservations": {}}]
  subnets: {{networks .DHCP.Subnets}}
  # Networks that relays may sit in. None: any at a private address, or in a subnet above.
  relays: {{list .DHCP.Relays}}
  # Shapes of replies (plain, direct, boot-server, header; see docs/netboot.md) for firmware
  # that needs another, by start of option 60, start of MAC, processor; the first match wins:
  # [{"class": "PXEClient:Arch:00011", "mac": "0c:42:a1", "cpu": "arm64", "profile": "plain"}]
  profiles: {{profiles .DHCP.Profiles}}

boot:
  url: {{q .Boot.URL}}               # base of boot URLs, if a cache stands before this server: "http://cache.example:80"
  offer_https: {{.Boot.OfferHTTPS}}    # name files to UEFI HTTP firmware by https URLs; it has to know the CA
  https_certificate: {{q .Boot.Cert}}  # PEM, with https_key; "": one is made in data_dir (boot-https.pem)
  https_key: {{q .Boot.Key}}
  block_size: {{.Boot.BlockSize}}       # largest TFTP block; 1400 leaves room for tunnels
  window_size: {{.Boot.WindowSize}}       # largest TFTP window, in blocks; 1: one at a time

# How much goes out at a time, shared evenly. A rack is the failure domain of
# a node, else what is behind one relay, else a subnet. Rates are bytes per
# second; 0 is no limit. Taken in on reload, by what runs as well.
boot_limits:
  downloads: {{.Limits.Downloads}}        # HTTP downloads; others wait, and are told to come back after 4 s
  rack_downloads: {{.Limits.RackDownloads}}      # of those, to one rack
  transfers: {{.Limits.Transfers}}        # TFTP transfers
  connection_rate: {{.Limits.Connection}}     # of one HTTP connection: for firmware that hangs on fast links
  rack_rate: {{.Limits.Rack}}
  total_rate: {{.Limits.Total}}

# What a machine that nobody added gets: the installer, which waits in this
# pool until someone approves it. Disabled: nothing.
discovery:
  enabled: {{.Discovery.Enabled}}
  pool: {{q .Discovery.Pool}}

# How much of the history is kept: events older than that, and all but so many
# of the newest, are dropped every hour. 0 is no limit.
events:
  keep: {{.Events.Keep}}
  most: {{.Events.Most}}

# Public keys (PEM) that may sign images. None: no image can be published.
image_keys: {{list .ImageKeys}}

# CA certificates (PEM) of TPM makers. With any, only TPMs with a certificate
# from one of them can enrol. With none, approving a node pins its TPM.
ek_roots: {{list .EKRoots}}

# Where a console server (conserver, ipmitool) keeps the serial consoles of
# nodes, to show their ends: "/var/log/consoles/{node}.log"; "": none.
console_logs: {{q .Console}}

# Operators' tokens, one a line: NAME ROLE SHA256-OF-TOKEN.
# Roles: viewer (looks), operator (acts), admin (also clears TPMs).
tokens: {{q .Tokens}}

heartbeat: {{.Heartbeat}}          # how often nodes report
node_certificate: {{.NodeCert}}   # how long a node's certificate lasts; it gets a new one by itself

attestation:
  every: {{.Attest.Every}}       # how often a node proves again what it runs; 0s: once per boot
  alarm: {{.Attest.Alarm}}      # tell when a node was not verified for so long; 0s: never
  # Firmware (PCR 0, 2, 3, 7) by hardware model, see: pxeserver baseline list.
  # off; warn: a difference to what was approved is told; enforce: it is refused.
  baseline: {{.Attest.Baseline}}
  # Programs that a vendor's firmware starts beside ours, by the digest that
  # the verdict shows: "4f1c…": Dell OEM tool
  allow_applications: {{allow .Attest.Allow}}

# What is done by itself about nodes that fall silent or fail their checks.
recovery:
  mode: {{.Recovery.Mode}}          # off; tell: say what would be done; act
  steps: {{steps .Recovery.Steps}}
  # Steps that take a node from its work (flip and the ones after it), at most:
  pool_per_hour: {{.Recovery.PerHour}}    # of a pool, rounded down, at least 1
  pool_at_once: {{.Recovery.AtOnce}}
  fleet_per_hour: {{.Recovery.FleetPerHour}}
  node_per_day: {{.Recovery.NodePerDay}}      # then it is quarantined
  storm: {{.Recovery.Storm}}           # of a pool, domain or the fleet silent at once: nothing is done, it is told
  # What differs by pool: {"inference": {"mode": "act", "steps": ["recheck", "power-cycle"]}}
  pools: {{pools .Recovery.Pools}}

# How rollouts drain nodes (see docs/operating.md), by name. Only this file can make one:
# {"slurm": {"exec": ["/usr/local/lib/turnout/slurm-drain"], "timeout": "1m"}}
hooks: {{hooks .Hooks}}

# Webhooks that are told of events, signed (see docs/alerts.md):
# [{"name": "pager", "url": "https://…", "secret_file": "pager.secret", "kinds": ["node.lost", "recovery."]}]
alerts: {{flow .Alerts}}
`))
