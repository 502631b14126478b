// Package egress renders what a node may reach over the network: rules of
// nftables that drop everything but named exceptions, loaded before the
// network comes up, and a health check that they are loaded. It claims no
// more than that: it does not look into connections that are allowed.
package egress

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/recipe"
)

const (
	rulesPath = "/etc/turnout/egress.nft"
	unitName  = "turnout-egress.service"
	table     = "turnout_egress"
)

func init() {
	compat.Register(compat.RuleInfo{Name: "egress-nftables", Text: "egress in an image without nftables"})
}

// Lint finds what keeps the rules from being loaded.
func Lint(r *recipe.Recipe) []compat.Finding {
	if r.Egress.Policy == "" || slices.ContainsFunc(r.Packages, func(p string) bool { n, _, _ := strings.Cut(p, "="); return n == "nftables" }) {
		return nil
	}
	return []compat.Finding{{Rule: "egress-nftables", Severity: compat.Error, Field: "egress", Hint: "add nftables to packages",
		Message: "egress is enforced by nftables, which the image does not have"}}
}

// Files returns the rules and the unit that loads them; nil without a policy.
func Files(r *recipe.Recipe) []recipe.File {
	if r.Egress.Policy == "" {
		return nil
	}
	file := func(path, content string) recipe.File {
		return recipe.File{Path: path, Content: content, Mode: "0644", Owner: "root:root"}
	}
	return []recipe.File{file(rulesPath, Rules(r.Egress)), file("/usr/lib/systemd/system/"+unitName, unit)}
}

// Units returns the units to enable.
func Units(r *recipe.Recipe) []string {
	if r.Egress.Policy == "" {
		return nil
	}
	return []string{unitName}
}

// Checks returns the health check that the rules are loaded.
func Checks(r *recipe.Recipe) []manifest.Check {
	if r.Egress.Policy == "" {
		return nil
	}
	return []manifest.Check{{Name: "egress", Class: "software", Timeout: manifest.Duration(10 * time.Second),
		Exec: []string{"/usr/sbin/nft", "list", "chain", "inet", table, "output"}}}
}

const unit = `# Written by imgbuild from the recipe.
[Unit]
Description=Let the node reach only what its image names
DefaultDependencies=no
After=local-fs.target systemd-modules-load.service
Before=network-pre.target shutdown.target
Wants=network-pre.target
Conflicts=shutdown.target

[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/usr/sbin/nft -f ` + rulesPath + `

[Install]
WantedBy=sysinit.target
`

// Rules renders a policy for nft -f. Loading it twice is the same as once.
func Rules(e recipe.Egress) string {
	var b strings.Builder
	b.WriteString(`# Written by imgbuild from the recipe: what this node may reach.
table inet ` + table + `
delete table inet ` + table + `
table inet ` + table + ` {
	chain named {
`)
	for _, a := range e.Allow {
		for _, line := range accept(a) {
			fmt.Fprintf(&b, "\t\t%s accept comment %q\n", line, a.Name)
		}
	}
	b.WriteString(`	}
	chain refuse {
		limit rate 10/minute log prefix "turnout egress: "
		meta l4proto tcp counter reject with tcp reset
		counter reject with icmpx type admin-prohibited
	}
	chain output {
		type filter hook output priority filter; policy drop;
		oifname "lo" accept
		ct state established,related accept
		udp sport 68 udp dport 67 accept comment "DHCP"
		udp sport 546 udp dport 547 accept comment "DHCPv6"
		icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert, nd-router-solicit, mld2-listener-report } accept comment "neighbours"
		jump named
		jump refuse
	}
	chain forward {
		type filter hook forward priority filter; policy drop;
		ct state established,related accept
		jump named
		jump refuse
	}
}
`)
	return b.String()
}

// accept returns the matches of an exception, one for each IP version.
func accept(a recipe.EgressRule) []string {
	var out []string
	for _, v := range []struct {
		match, icmp string
		is          func(netip.Addr) bool
	}{{"ip", "ip protocol icmp", netip.Addr.Is4}, {"ip6", "meta l4proto icmpv6", netip.Addr.Is6}} {
		var to []string
		for _, s := range a.To {
			if p, err := recipe.ParsePrefix(s); err == nil && v.is(p.Addr()) && !slices.Contains(to, p.String()) {
				to = append(to, p.String())
			}
		}
		if len(to) == 0 {
			continue
		}
		line := fmt.Sprintf("%s daddr { %s }", v.match, strings.Join(to, ", "))
		if a.Protocol == "icmp" {
			line += " " + v.icmp
		} else {
			line += fmt.Sprintf(" %s dport { %s }", a.Protocol, ports(a.Ports))
		}
		out = append(out, line)
	}
	return out
}

func ports(ps []int) string {
	var out []string
	for _, p := range ps {
		out = append(out, fmt.Sprint(p))
	}
	return strings.Join(out, ", ")
}
