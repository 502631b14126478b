package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/config"
)

// The answers become the configuration; what is wrong is asked again.
func TestInitAsks(t *testing.T) {
	dir := t.TempDir()
	r := commandIn("fe80::1\n10.9.0.1\nperhaps\nserver\n10.9.0.1/24\n10.9.0.0/24\n/nowhere/image.pub\n\n", "init", "--dir", dir, "--ask")
	if r.code != exitOK {
		t.Fatalf("init: %+v", r)
	}
	c, err := config.Load(filepath.Join(dir, "pxeserver.yaml"))
	if err != nil {
		t.Fatal(err)
	}
	if c.Address != "10.9.0.1" || c.DHCP.Mode != "server" || c.DHCP.Subnet != "10.9.0.0/24" || len(c.ImageKeys) != 0 {
		t.Errorf("configuration: address %s, DHCP %+v, keys %v", c.Address, c.DHCP, c.ImageKeys)
	}
	for _, want := range []string{"IPv4 address", "server, proxy or off", "want a network", "/nowhere/image.pub"} {
		if !strings.Contains(r.out, want) {
			t.Errorf("%q is not said in:\n%s", want, r.out)
		}
	}
}

// What flags said is not asked, and an end of the answers writes nothing.
func TestInitAsksOnlyWhatIsNotSaid(t *testing.T) {
	dir := t.TempDir()
	r := commandIn("", "init", "--dir", dir, "--ask", "--address", "10.9.0.1", "--dhcp", "proxy")
	if r.code == exitOK || strings.Contains(r.out, "DHCP:") || !strings.Contains(r.out, "Public key") || !strings.Contains(r.errOut, "nothing was written") {
		t.Errorf("init: %+v", r)
	}
	left, err := os.ReadDir(dir)
	if err != nil || len(left) != 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A script that forgets the address is not asked: it gets the one error.
func TestInitWithoutAddressOrTerminal(t *testing.T) {
	r := commandIn("1\n", "init", "--dir", t.TempDir())
	if r.code != exitUsage || !strings.Contains(r.errOut, "--address") {
		t.Errorf("init: %+v", r)
	}
}
