package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"time"

	"github.com/turnout-project/turnout/internal/netboot/dhcpclient"
)

// Interface examines whether the address that nodes use is on this machine,
// on the interface that is named ("" is any), and returns the interface it is
// on, "" if none.
func Interface(address, name string) (Finding, string) {
	const check = "interface"
	want, err := netip.ParseAddr(address)
	if err != nil {
		return failure(check, "correct `address`", "%v", err), ""
	}
	ifs, err := net.Interfaces()
	if err != nil {
		return failure(check, "", "%v", err), ""
	}
	var known []string
	for _, i := range ifs {
		known = append(known, i.Name)
		if !holds(i, want) {
			continue
		}
		switch {
		case name != "" && i.Name != name:
			return failure(check, "correct `interface` or `address` in the configuration", "%s is on %s, and the configuration says %s", address, i.Name, name), i.Name
		case i.Flags&net.FlagUp == 0:
			return failure(check, "ip link set "+i.Name+" up", "%s, which has %s, is down", i.Name, address), i.Name
		case i.Flags&net.FlagRunning == 0:
			return failure(check, "look at the cable and the switch port", "%s, which has %s, has no carrier", i.Name, address), i.Name
		}
		return ok(check, "%s has %s, and is up", i.Name, address), i.Name
	}
	return failure(check, "give it the address, or correct `address` in the configuration", "no interface has %s (there are %s)", address, strings.Join(known, ", ")), ""
}

func holds(i net.Interface, want netip.Addr) bool {
	addrs, err := i.Addrs()
	if err != nil {
		return false
	}
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil && p.Addr().Unmap() == want {
			return true
		}
	}
	return false
}

// Port is one that the server wants.
type Port struct {
	Network string // "udp" or "tcp"
	Address string // host:port
	For     string // what it is for, such as "TFTP"
}

// Ports examines whether the server can have its ports, or has them.
// running says that a server of this configuration runs.
func Ports(ports []Port, running bool) []Finding {
	var out []Finding
	for _, p := range ports {
		_, number, _ := net.SplitHostPort(p.Address)
		check := fmt.Sprintf("port %s/%s", number, p.Network)
		err := tryPort(p)
		switch {
		case err == nil && running:
			out = append(out, failure(check, "look at the server's log: journalctl -u pxeserver", "%s: the server runs, and does not listen there", p.For))
		case err == nil:
			out = append(out, ok(check, "%s: free", p.For))
		case errors.Is(err, syscall.EADDRINUSE):
			out = append(out, inUse(check, p, holder(p.Network, number)))
		case errors.Is(err, syscall.EACCES):
			out = append(out, warning(check, "run `pxeserver doctor` as root, or the server from its unit, which has CAP_NET_BIND_SERVICE", "%s: this user may not listen there", p.For))
		default:
			out = append(out, failure(check, "correct `address` or `listen` in the configuration", "%s: %v", p.For, err))
		}
	}
	return out
}

func inUse(check string, p Port, who string) Finding {
	switch {
	case strings.HasPrefix(who, "pxeserver "):
		return ok(check, "%s: the server has it", p.For)
	case who == "":
		who = "another program"
	}
	return failure(check, "stop that program, or give this service another port (listen: in the configuration)", "%s: %s has it", p.For, who)
}

// tryPort opens and closes the port.
func tryPort(p Port) error {
	if p.Network == "tcp" {
		l, err := net.Listen("tcp", p.Address)
		if err == nil {
			l.Close()
		}
		return err
	}
	c, err := net.ListenPacket("udp", p.Address)
	if err == nil {
		c.Close()
	}
	return err
}

// OtherServers examines which other DHCP servers answer on an interface; mode
// is the one of the configuration. It broadcasts a question there.
func OtherServers(ctx context.Context, ifname, mode string, wait time.Duration) []Finding {
	const check = "other DHCP servers"
	found, err := dhcpclient.Survey(ctx, ifname, wait)
	if err != nil {
		return []Finding{warning(check, "run `pxeserver doctor` as root", "could not ask: %v", err)}
	}
	return judgeServers(check, ifname, mode, found)
}

func judgeServers(check, ifname, mode string, found []dhcpclient.Answer) []Finding {
	leases, boots := "", ""
	for _, a := range found {
		if a.Address.IsValid() {
			leases = a.Server.String()
		}
		if a.BootFile != "" {
			boots = fmt.Sprintf("%s, which says to boot %q", a.Server, a.BootFile)
		}
	}
	var out []Finding
	switch {
	case mode == "server" && leases != "":
		out = append(out, failure(check, "turn that server off on this network, or set dhcp.mode to proxy", "%s leases addresses on %s too: machines take whichever answer is first", leases, ifname))
	case mode == "proxy" && leases == "":
		out = append(out, warning(check, "start the site's DHCP server, or set dhcp.mode to server", "none answers on %s, and in proxy mode this one leases no addresses", ifname))
	case leases != "":
		out = append(out, ok(check, "%s leases the addresses on %s", leases, ifname))
	default:
		out = append(out, ok(check, "none on %s", ifname))
	}
	if boots != "" {
		out = append(out, failure(check, "take the boot file (options 66 and 67, next-server) out of that server", "machines may boot from %s", boots))
	}
	return out
}
