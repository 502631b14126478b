package vmtest

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
)

// Address is the address of the rack's gateway, where the server under test
// listens, inside the rack's namespace only.
const Address = "10.77.0.1"

// Subnet is the rack's network.
const Subnet = "10.77.0.0/24"

// Bridge is the rack's switch inside its namespace.
const Bridge = "rack0"

// Rack is a network namespace with a bridge and the nodes plugged into it.
type Rack struct {
	Dir       string // logs, disks, TPM states
	Namespace string
	Accel     string // QEMU -accel, "tcg,thread=multi" when empty
	nodes     []*Node
	hosts     []*Host
}

// NewRack makes the namespace. The caller must Close the rack.
func NewRack(dir string) (*Rack, error) {
	if lacks := Missing(); lacks != "" {
		return nil, fmt.Errorf("virtual rack: this machine lacks %s; run `make deps`", lacks)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	dir, err := filepath.Abs(dir) // swtpm wants an absolute path
	if err != nil {
		return nil, err
	}
	r := &Rack{Dir: dir, Namespace: fmt.Sprintf("turnout-%d", os.Getpid())}
	steps := [][]string{
		{"ip", "netns", "add", r.Namespace},
		{"ip", "-n", r.Namespace, "link", "set", "lo", "up"},
		{"ip", "-n", r.Namespace, "link", "add", Bridge, "type", "bridge", "stp_state", "0", "forward_delay", "0"},
		{"ip", "-n", r.Namespace, "addr", "add", Address + "/24", "dev", Bridge},
		{"ip", "-n", r.Namespace, "link", "set", Bridge, "up"},
	}
	for _, s := range steps {
		if err := run(s[0], s[1:]...); err != nil {
			return nil, errors.Join(fmt.Errorf("virtual rack: %w", err), r.Close())
		}
	}
	return r, nil
}

// Command prepares a program to run inside the rack's namespace.
func (r *Rack) Command(ctx context.Context, name string, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", r.Namespace, name}, args...)...)
}

// Nodes returns the rack's nodes in the order in which they were added.
func (r *Rack) Nodes() []*Node { return r.nodes }

// Close cuts the power of every node and removes the namespace.
func (r *Rack) Close() error {
	var errs []error
	for _, n := range r.nodes {
		errs = append(errs, n.PowerOff())
	}
	errs = append(errs, r.closeHosts(), run("ip", "netns", "delete", r.Namespace))
	return errors.Join(errs...)
}
