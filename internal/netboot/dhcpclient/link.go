package dhcpclient

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/pause"
)

// openNIC brings the interface up and opens its socket.
func openNIC(ifname string) (*nic, error) {
	link, err := netlink.LinkByName(ifname)
	if err != nil {
		return nil, err
	}
	if err := netlink.LinkSetUp(link); err != nil {
		return nil, fmt.Errorf("bringing the link up: %w", err)
	}
	a := link.Attrs()
	if len(a.HardwareAddr) == 0 {
		return nil, errors.New("it has no hardware address")
	}
	s, err := newSocket(a.Index, linkBroadcast(ifname))
	if err != nil {
		return nil, err
	}
	return &nic{name: ifname, hw: a.HardwareAddr, ib: a.EncapType == "infiniband", sock: s}, nil
}

// linkBroadcast asks the kernel for the link's broadcast address, which is
// not all ones on InfiniBand.
func linkBroadcast(ifname string) net.HardwareAddr {
	b, err := os.ReadFile(filepath.Join("/sys/class/net", filepath.Base(ifname), "broadcast"))
	if err == nil {
		if hw, err := net.ParseMAC(strings.TrimSpace(string(b))); err == nil {
			return hw
		}
	}
	return bytes.Repeat([]byte{255}, 6)
}

// waitCarrier waits until the link has one. A link that cannot tell (state
// unknown) counts as having one.
func waitCarrier(ctx context.Context, ifname string) error {
	for {
		link, err := netlink.LinkByName(ifname)
		if err != nil {
			return err
		}
		a := link.Attrs()
		if a.OperState == netlink.OperUp || a.OperState == netlink.OperUnknown && a.RawFlags&unix.IFF_RUNNING != 0 {
			return nil
		}
		if err := pause.For(ctx, 50*time.Millisecond); err != nil {
			return err
		}
	}
}

// Interfaces returns the names of the interfaces worth asking: those with a
// device behind them (not loopback, bridges, tunnels), in the kernel's order.
func Interfaces() ([]string, error) {
	ifs, err := net.Interfaces()
	if err != nil {
		return nil, fmt.Errorf("listing interfaces: %w", err)
	}
	var names []string
	for _, i := range ifs {
		if i.Flags&net.FlagLoopback != 0 || len(i.HardwareAddr) == 0 {
			continue
		}
		if _, err := os.Stat(filepath.Join("/sys/class/net", i.Name, "device")); err == nil {
			names = append(names, i.Name)
		}
	}
	return names, nil
}

// AcquireAny asks all of names at once (nil: all Interfaces) and returns the
// first lease that names pxeserver; if there is none within a few seconds of
// the first lease, that one. Leases not taken are left to expire. It waits
// until ctx ends.
func AcquireAny(ctx context.Context, names []string, log *slog.Logger) (Lease, error) {
	if names == nil {
		var err error
		if names, err = Interfaces(); err != nil {
			return Lease{}, err
		}
	}
	if len(names) == 0 {
		return Lease{}, errors.New("no network interface: is its driver in the image's recipe?")
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	type result struct {
		lease Lease
		err   error
	}
	results := make(chan result, len(names))
	for _, name := range names {
		go func() {
			l, err := Acquire(ctx, name, log)
			results <- result{l, err}
		}()
	}
	var first *Lease
	var errs []error
	var grace <-chan time.Time
	for range names {
		select {
		case r := <-results:
			if r.err != nil {
				errs = append(errs, r.err)
				continue
			}
			if r.lease.ServerURL != "" {
				return r.lease, nil
			}
			if first == nil {
				first = &r.lease
				grace = time.After(3 * time.Second)
			}
		case <-grace:
			return *first, nil
		}
	}
	if first != nil {
		return *first, nil
	}
	return Lease{}, fmt.Errorf("no lease on %s: %w", strings.Join(names, ", "), errors.Join(errs...))
}

// Apply puts the lease's address on its interface, replacing other IPv4
// addresses there, and sets default route and MTU. It may be repeated.
func Apply(l Lease) error {
	link, err := netlink.LinkByName(l.Interface)
	if err != nil {
		return fmt.Errorf("applying lease to %s: %w", l.Interface, err)
	}
	if err := apply(link, l); err != nil {
		return fmt.Errorf("applying lease %s to %s: %w", l.Address, l.Interface, err)
	}
	return nil
}

func apply(link netlink.Link, l Lease) error {
	if err := netlink.LinkSetUp(link); err != nil {
		return fmt.Errorf("bringing the link up: %w", err)
	}
	if l.MTU >= 576 && l.MTU < link.Attrs().MTU {
		if err := netlink.LinkSetMTU(link, l.MTU); err != nil {
			return fmt.Errorf("setting MTU %d: %w", l.MTU, err)
		}
	}
	ip := &net.IPNet{IP: l.IP().AsSlice(), Mask: net.CIDRMask(l.Address.Bits(), 32)}
	if err := netlink.AddrReplace(link, &netlink.Addr{IPNet: ip}); err != nil {
		return fmt.Errorf("setting address: %w", err)
	}
	if err := dropOthers(link, ip); err != nil {
		return err
	}
	if !l.Router.IsValid() || l.Router.IsUnspecified() {
		return nil
	}
	route := &netlink.Route{LinkIndex: link.Attrs().Index, Gw: l.Router.AsSlice(), Dst: &net.IPNet{IP: net.IPv4zero, Mask: net.CIDRMask(0, 32)}}
	if !l.Address.Masked().Contains(l.Router) {
		route.Flags = int(netlink.FLAG_ONLINK)
	}
	if err := netlink.RouteReplace(route); err != nil {
		return fmt.Errorf("setting default route by %s: %w", l.Router, err)
	}
	return nil
}

func dropOthers(link netlink.Link, keep *net.IPNet) error {
	addrs, err := netlink.AddrList(link, netlink.FAMILY_V4)
	if err != nil {
		return fmt.Errorf("listing addresses: %w", err)
	}
	for _, a := range addrs {
		if a.IPNet.String() == keep.String() {
			continue
		}
		if err := netlink.AddrDel(link, &a); err != nil {
			return fmt.Errorf("removing address %s: %w", a.IPNet, err)
		}
	}
	return nil
}
