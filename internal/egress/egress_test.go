package egress

import (
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/recipe"
)

var policy = recipe.Egress{Policy: "deny", Allow: []recipe.EgressRule{
	{Name: "server", To: []string{"10.9.0.2", "fd00:9::/64", "10.9.0.2/32"}, Protocol: "tcp", Ports: []int{8443, 443}},
	{Name: "time", To: []string{"192.0.2.0/24"}, Protocol: "udp", Ports: []int{123}},
	{Name: "ping", To: []string{"10.9.0.0/24", "fd00:9::1"}, Protocol: "icmp"},
}}

func TestRules(t *testing.T) {
	got := Rules(policy)
	for _, want := range []string{
		`ip daddr { 10.9.0.2/32 } tcp dport { 8443, 443 } accept comment "server"`,
		`ip6 daddr { fd00:9::/64 } tcp dport { 8443, 443 } accept comment "server"`,
		`ip daddr { 192.0.2.0/24 } udp dport { 123 } accept comment "time"`,
		`ip daddr { 10.9.0.0/24 } ip protocol icmp accept comment "ping"`,
		`ip6 daddr { fd00:9::1/128 } meta l4proto icmpv6 accept comment "ping"`,
	} {
		if !strings.Contains(got, want) {
			t.Errorf("the rules lack %q:\n%s", want, got)
		}
	}
}

func TestNothingWithoutPolicy(t *testing.T) {
	r := &recipe.Recipe{}
	if len(Files(r))+len(Units(r))+len(Checks(r))+len(Lint(r)) > 0 {
		t.Error("a recipe without egress gets files, units, checks or findings")
	}
	r.Egress = policy
	if fs := Lint(r); len(fs) != 1 {
		t.Errorf("without nftables Lint finds %v", fs)
	}
	if r.Packages = []string{"nftables=1.0.*"}; len(Lint(r)) > 0 {
		t.Errorf("with nftables Lint finds %v", Lint(r))
	}
}

// The kernel itself decides: in a network namespace with the rules loaded,
// the server can be reached and its neighbour's port cannot.
func TestRulesInForce(t *testing.T) {
	for _, tool := range []string{"nft", "ip"} {
		if _, err := exec.LookPath(tool); err != nil && os.Getenv("CI") == "" {
			t.Skipf("%v; install nftables and iproute2", err)
		}
	}
	if os.Geteuid() != 0 && os.Getenv("CI") == "" {
		t.Skip("network namespaces need root")
	}
	runtime.LockOSThread() // and never unlock: the thread ends with its namespace
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		t.Fatal(err)
	}
	rules := filepath.Join(t.TempDir(), "egress.nft")
	if err := os.WriteFile(rules, []byte(Rules(policy)), 0o644); err != nil {
		t.Fatal(err)
	}
	// Everything is sent into a cable with nobody at its end, by the output
	// hook; nobody answers.
	for _, args := range [][]string{
		{"ip", "link", "set", "lo", "up"},
		{"ip", "link", "add", "out0", "type", "veth", "peer", "name", "in0"}, {"ip", "addr", "add", "10.9.0.1/24", "dev", "out0"},
		{"ip", "link", "set", "in0", "up"}, {"ip", "link", "set", "out0", "arp", "off", "up"}, {"ip", "route", "add", "default", "dev", "out0"},
		{"nft", "-f", rules}, {"nft", "-f", rules},
	} {
		if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
			t.Fatalf("%v: %v\n%s", args, err, out)
		}
	}
	for _, tt := range []struct {
		network, address string
		refused          bool
	}{
		{"tcp", "10.9.0.2:8443", false}, {"tcp", "10.9.0.2:22", true}, {"tcp", "10.9.0.3:443", true},
		{"tcp", "203.0.113.1:443", true}, {"udp", "192.0.2.7:123", false}, {"udp", "192.0.2.7:53", true},
	} {
		if got := refused(tt.network, tt.address); got != tt.refused {
			t.Errorf("%s to %s: refused %v, want %v", tt.network, tt.address, got, tt.refused)
		}
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	if refused("tcp", l.Addr().String()) {
		t.Error("the node cannot reach itself")
	}
	for _, c := range Checks(&recipe.Recipe{Egress: policy}) {
		path, _ := exec.LookPath("nft")
		if out, err := exec.Command(path, c.Exec[1:]...).CombinedOutput(); err != nil {
			t.Errorf("health check %s: %v\n%s", c.Name, err, out)
		}
	}
}

// refused tells whether the rules refuse a packet: the sender is told at
// once, whereas one that was sent into the void is not answered. The calls
// are made by this thread, which is in the namespace; those of package net
// might be made by another.
func refused(network, address string) bool {
	a, err := net.ResolveTCPAddr("tcp", address)
	if err != nil {
		panic(err)
	}
	kind := unix.SOCK_STREAM
	if network == "udp" {
		kind = unix.SOCK_DGRAM
	}
	fd, err := unix.Socket(unix.AF_INET, kind|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		panic(err)
	}
	defer unix.Close(fd)
	limit := unix.NsecToTimeval(int64(300 * time.Millisecond))
	if err := unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit); err != nil {
		panic(err)
	}
	err = unix.Connect(fd, &unix.SockaddrInet4{Port: a.Port, Addr: [4]byte(a.IP.To4())})
	if network == "udp" && err == nil {
		err = unix.Send(fd, []byte("x"), 0)
	}
	switch err {
	case nil, unix.EINPROGRESS, unix.EAGAIN, unix.ETIMEDOUT:
		return false
	case unix.EHOSTUNREACH, unix.ECONNREFUSED, unix.EACCES, unix.EPERM:
		return true
	}
	panic(fmt.Sprintf("%s to %s: %v", network, address, err))
}
