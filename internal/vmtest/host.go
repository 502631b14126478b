package vmtest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
)

// Host is one more place on the rack's network for a server under test: a
// network namespace with an address of its own and a cable to the bridge.
type Host struct {
	Name      string
	Address   string
	Namespace string
}

// AddHost makes a host with an address in Subnet. Rack.Close removes it.
func (r *Rack) AddHost(name, address string) (*Host, error) {
	h := &Host{Name: name, Address: address, Namespace: r.Namespace + "-" + name}
	cable := fmt.Sprintf("h%d", len(r.hosts))
	r.hosts = append(r.hosts, h)
	for _, s := range [][]string{
		{"ip", "netns", "add", h.Namespace},
		{"ip", "-n", h.Namespace, "link", "set", "lo", "up"},
		{"ip", "-n", r.Namespace, "link", "add", cable, "type", "veth", "peer", "name", Bridge, "netns", h.Namespace},
		{"ip", "-n", r.Namespace, "link", "set", cable, "master", Bridge},
		{"ip", "-n", r.Namespace, "link", "set", cable, "up"},
		{"ip", "-n", h.Namespace, "addr", "add", address + "/24", "dev", Bridge},
		{"ip", "-n", h.Namespace, "link", "set", Bridge, "up"},
	} {
		if err := run(s[0], s[1:]...); err != nil {
			return nil, fmt.Errorf("virtual host %q: %w", name, err)
		}
	}
	return h, nil
}

// Command prepares a program to run in the host's namespace.
func (h *Host) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", h.Namespace, name}, args...)...)
}

// closeHosts removes the namespaces of all hosts.
func (r *Rack) closeHosts() error {
	var errs []error
	for _, h := range r.hosts {
		errs = append(errs, run("ip", "netns", "delete", h.Namespace))
	}
	r.hosts = nil
	return errors.Join(errs...)
}
