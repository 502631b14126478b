package recipe

import (
	"fmt"
	"net/netip"
	"strings"
)

var (
	driverVersionRule = newRule(`[0-9]{3}\.[0-9]+(\.[0-9]+)?`, `a version of the driver such as "535.261.03"`)
	firmwareRule      = newRule(`[A-Za-z0-9][A-Za-z0-9._-]*`, `a firmware version`)
)

// driverDefaults fills in what driver, firmware and egress may leave out.
func (r *Recipe) driverDefaults() {
	if r.Firmware.GSP == "" && (r.has("driver") || r.has("firmware")) {
		r.Firmware.GSP = "needed"
	}
	for i := range r.Egress.Allow {
		if r.Egress.Allow[i].Protocol == "" {
			r.Egress.Allow[i].Protocol = "tcp"
		}
	}
}

func (r *Recipe) validateDriver() error {
	if !r.has("driver") {
		return nil
	}
	d := r.Driver
	if err := first(
		r.required("driver.family", d.Family, "family: nvidia"),
		r.required("driver.flavour", d.Flavour, "flavour: open"),
	); err != nil {
		return err
	}
	switch {
	case d.Family != "nvidia":
		return r.Errorf("driver.family", "", "driver.family %q is not supported, only nvidia", d.Family)
	case !oneOf(d.Flavour, "open", "proprietary"):
		return r.Errorf("driver.flavour", "", "driver.flavour %q is not open or proprietary", d.Flavour)
	case d.Version == "" && d.Branch == 0:
		return r.Errorf("driver", "for example version: 535.261.03, or branch: 535 for the newest of the branch", "driver names neither a version nor a branch")
	case d.Branch < 0 || d.Branch > 999:
		return r.Errorf("driver.branch", "", "driver.branch %d is not the first number of a driver version", d.Branch)
	}
	if d.Version != "" {
		if err := r.match("driver.version", d.Version, driverVersionRule); err != nil {
			return err
		}
		if b := d.BranchNumber(); d.Branch != 0 && d.Branch != b {
			return r.Errorf("driver.branch", "leave it out: the version says it", "driver.branch is %d, but driver.version %s is of branch %d", d.Branch, d.Version, b)
		}
	}
	return first(r.validateDriverPackages(), r.matchAll("driver.modules", d.Modules, moduleRule), r.validateAccept())
}

func (r *Recipe) validateDriverPackages() error {
	seen := map[string]bool{}
	for _, p := range r.Packages {
		name, _, _ := strings.Cut(p, "=")
		seen[name] = true
	}
	for i, p := range r.Driver.Packages {
		field := fmt.Sprintf("driver.packages[%d]", i)
		if name, _, pinned := strings.Cut(p, "="); pinned {
			return r.Errorf(field, "write "+name, "driver package %s has a pin of its own; driver.version is the pin of them all", name)
		}
		if err := r.match(field, p, packageRule); err != nil {
			return err
		}
		if seen[p] {
			return r.Errorf(field, "name it once", "package %s is listed twice", p)
		}
		seen[p] = true
	}
	return nil
}

func (r *Recipe) validateAccept() error {
	seen := map[string]bool{}
	for i, a := range r.Driver.Accept {
		field := fmt.Sprintf("driver.accept[%d]", i)
		if err := first(
			r.required(field+".rule", a.Rule, "rule: branch-eol"),
			r.match(field+".rule", a.Rule, nameRule),
			r.required(field+".reason", a.Reason, `reason: "the pool moves to 580 in spring"`),
			r.match(field+".reason", a.Reason, oneLineRule),
		); err != nil {
			return err
		}
		if seen[a.Rule] {
			return r.Errorf(field+".rule", "", "rule %s is accepted twice", a.Rule)
		}
		seen[a.Rule] = true
	}
	return nil
}

// BranchNumber returns the branch: what Branch says or Version begins with; 0
// when neither does.
func (d Driver) BranchNumber() int {
	b := d.Branch
	if first, _, _ := strings.Cut(d.Version, "."); first != "" {
		_, _ = fmt.Sscanf(first, "%d", &b) // validated by driverVersionRule
	}
	return b
}

// firmwareComponents are the parts whose firmware version a node can read.
var firmwareComponents = []string{"bios", "vbios", "nic"}

func (r *Recipe) validateFirmware() error {
	f := r.Firmware
	if f.GSP != "" && !oneOf(f.GSP, "needed", "all") {
		return r.Errorf("firmware.gsp", "", "firmware.gsp %q is not needed or all", f.GSP)
	}
	packages, components := map[string]bool{}, map[string]bool{}
	for i, p := range f.Packages {
		if err := r.validatePackage(fmt.Sprintf("firmware.packages[%d]", i), p, packages); err != nil {
			return err
		}
	}
	for i, q := range f.Require {
		field := fmt.Sprintf("firmware.require[%d]", i)
		switch {
		case !oneOf(q.Component, firmwareComponents...):
			return r.Errorf(field, "", "%s.component %q is not %s", field, q.Component, strings.Join(firmwareComponents, ", "))
		case q.Min == "" && q.Max == "":
			return r.Errorf(field, "add min, max or both", "%s asks for no version", field)
		case components[q.Component]:
			return r.Errorf(field, "", "%s is required twice", q.Component)
		}
		components[q.Component] = true
		if err := first(r.optional(field+".min", q.Min, firmwareRule), r.optional(field+".max", q.Max, firmwareRule)); err != nil {
			return err
		}
	}
	return nil
}

// serverRule is the exception without which a node could never report.
const serverRule = "server"

func (r *Recipe) validateEgress() error {
	e := r.Egress
	if !r.has("egress") {
		return nil
	}
	if e.Policy != "deny" {
		if r.has("egress.policy") {
			return r.Errorf("egress.policy", "leave the section out to allow everything", "egress.policy %q is not deny", e.Policy)
		}
		return r.Errorf("egress", "add policy: deny", "egress.policy is missing")
	}
	seen := map[string]bool{}
	for i, a := range e.Allow {
		field := fmt.Sprintf("egress.allow[%d]", i)
		if err := r.validateEgressRule(field, a); err != nil {
			return err
		}
		if seen[a.Name] {
			return r.Errorf(field+".name", "", "exception %s is listed twice", a.Name)
		}
		seen[a.Name] = true
	}
	if !seen[serverRule] {
		return r.Errorf("egress", "add an exception with name: server, the address of the provisioning server in to, and its port",
			"egress.policy is deny and no exception is named %q: a node could not report, and would never be confirmed", serverRule)
	}
	return nil
}

func (r *Recipe) validateEgressRule(field string, a EgressRule) error {
	if err := first(r.required(field+".name", a.Name, "name: server"), r.match(field+".name", a.Name, nameRule)); err != nil {
		return err
	}
	if len(a.To) == 0 {
		return r.Errorf(field, `for example to: ["10.0.0.5"]`, "exception %s does not say where to", a.Name)
	}
	for i, to := range a.To {
		if _, err := ParsePrefix(to); err != nil {
			return r.Errorf(fmt.Sprintf("%s.to[%d]", field, i), "names are not resolved: write an address or a prefix such as 10.0.0.0/8", "%s.to: %q is not an address", field, to)
		}
	}
	switch {
	case !oneOf(a.Protocol, "tcp", "udp", "icmp"):
		return r.Errorf(field+".protocol", "", "exception %s: protocol %q is not tcp, udp or icmp", a.Name, a.Protocol)
	case a.Protocol == "icmp" && len(a.Ports) > 0:
		return r.Errorf(field+".ports", "", "exception %s: icmp has no ports", a.Name)
	case a.Protocol != "icmp" && len(a.Ports) == 0:
		return r.Errorf(field, "for example ports: [443]", "exception %s names no ports", a.Name)
	}
	for i, p := range a.Ports {
		if p < 1 || p > 65535 {
			return r.Errorf(fmt.Sprintf("%s.ports[%d]", field, i), "", "exception %s: %d is not a port", a.Name, p)
		}
	}
	return nil
}

// ParsePrefix reads an address as the prefix of its whole length, or a
// prefix, whose bits behind the length it clears.
func ParsePrefix(s string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(s); err == nil && a.Zone() == "" {
		return a.Prefix(a.BitLen())
	}
	p, err := netip.ParsePrefix(s)
	return p.Masked(), err
}
