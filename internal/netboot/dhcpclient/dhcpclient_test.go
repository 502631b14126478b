package dhcpclient_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/netboot"
	"github.com/turnout-project/turnout/internal/netboot/dhcpclient"
	"github.com/turnout-project/turnout/internal/netboot/wiretest"
)

// envNode makes the test binary play the node: its value is a command.
const envNode = "DHCPCLIENT_TEST_NODE"

func TestMain(m *testing.M) {
	if cmd := os.Getenv(envNode); cmd != "" {
		if err := node(cmd); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	wiretest.Main(m)
}

// node does what the initrd does, and prints the lease.
func node(cmd string) error {
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	if name, ok := strings.CutPrefix(cmd, "survey "); ok {
		found, err := dhcpclient.Survey(ctx, name, 5*time.Second)
		if err != nil {
			return err
		}
		return json.NewEncoder(os.Stdout).Encode(found)
	}
	var l dhcpclient.Lease
	var err error
	switch name, rest, _ := strings.Cut(cmd, " "); name {
	case "acquire":
		l, err = dhcpclient.AcquireAny(ctx, strings.Fields(rest), nil)
		if err == nil {
			err = dhcpclient.Apply(l)
		}
	case "renew":
		if err := json.Unmarshal([]byte(rest), &l); err != nil {
			return err
		}
		l, err = dhcpclient.Renew(ctx, l)
	}
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(l)
}

// play runs the node's side in h.
func play(t *testing.T, h *wiretest.Host, cmd string) (dhcpclient.Lease, error) {
	t.Helper()
	var l dhcpclient.Lease
	err := playInto(t, h, cmd, &l)
	return l, err
}

// playInto is play for a command that prints something else.
func playInto(t *testing.T, h *wiretest.Host, cmd string, v any) error {
	t.Helper()
	exe, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	c := h.Command(exe)
	c.Env = append(os.Environ(), envNode+"="+cmd)
	var errOut bytes.Buffer
	c.Stderr = &errOut
	out, err := c.Output()
	if err != nil {
		return fmt.Errorf("%w: %s%s", err, bytes.TrimSpace(out), &errOut)
	}
	if err := json.Unmarshal(bytes.TrimSpace(out), v); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	return nil
}

func must(t *testing.T, h *wiretest.Host, cmd string) dhcpclient.Lease {
	t.Helper()
	l, err := play(t, h, cmd)
	if err != nil {
		t.Fatalf("%s: %v", cmd, err)
	}
	return l
}

// serve runs our server for net (such as "10.77.0").
func serve(t *testing.T, net, nodeAPI string, edit func(*netboot.Config)) *netboot.Server {
	t.Helper()
	cfg := netboot.DefaultConfig()
	cfg.Ports = netboot.Ports{DHCP: 67, Proxy: 4011, TFTP: -1, HTTP: -1}
	cfg.NodeAPI = nodeAPI
	cfg.Subnets = []netboot.Subnet{{
		Prefix: netip.MustParsePrefix(net + ".0/24"),
		Pools:  []netboot.Range{{First: netip.MustParseAddr(net + ".100"), Last: netip.MustParseAddr(net + ".120")}},
		Router: netip.MustParseAddr(net + ".1"), DNS: []netip.Addr{netip.MustParseAddr(net + ".1")}, MTU: 1400,
	}}
	if edit != nil {
		edit(&cfg)
	}
	s := &netboot.Server{Config: cfg, Policy: netboot.PolicyFunc(func(context.Context, netboot.Client) (netboot.Answer, error) {
		return netboot.Answer{Kind: netboot.AnswerRefuse, Reason: "not asked"}, nil
	}), Events: func(string, fleet.MAC, string) {}}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	select {
	case <-s.Ready():
	case err := <-done:
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return s
}

const api = "https://10.77.0.1:8443"

func TestAcquireApplyRenew(t *testing.T) {
	h := wiretest.NewHost(t, "n1")
	wiretest.Link(t, "n1", "10.77.0.1/24")
	s := serve(t, "10.77.0", api, nil)
	l := must(t, h, "acquire eth0")
	if l.ServerURL != api || l.Router.String() != "10.77.0.1" || l.Server.String() != "10.77.0.1" || l.Address.Bits() != 24 ||
		l.Time != 24*time.Hour || l.Renew != 12*time.Hour || l.Rebind != 21*time.Hour || l.MTU != 1400 || len(l.DNS) != 1 {
		t.Errorf("lease %+v", l)
	}
	if out := h.Run("ip", "-4", "addr", "show", "eth0"); !strings.Contains(out, l.Address.String()) || !strings.Contains(out, "mtu 1400") {
		t.Errorf("address not applied:\n%s", out)
	}
	if out := h.Run("ip", "route"); !strings.Contains(out, "default via 10.77.0.1") {
		t.Errorf("route not applied:\n%s", out)
	}
	if c, ok := s.ClientAt(l.IP()); !ok || c.Kind != netboot.KindNodeAgent {
		t.Errorf("the server takes it for %+v", c)
	}
	b, err := json.Marshal(l)
	if err != nil {
		t.Fatal(err)
	}
	again := must(t, h, "renew "+string(b))
	if again.Address != l.Address || again.ServerURL != api || !again.Got.After(l.Got) {
		t.Errorf("renewed %+v", again)
	}
	l.Rebind = 0 // ask everybody
	if b, err = json.Marshal(l); err != nil {
		t.Fatal(err)
	}
	if again = must(t, h, "renew "+string(b)); again.Address != l.Address {
		t.Errorf("rebound %+v", again)
	}
	// Acquiring once more keeps the address, alone.
	if l2 := must(t, h, "acquire eth0"); l2.Address != l.Address {
		t.Errorf("second lease %s; want %s", l2.Address, l.Address)
	}
}

// A lease that the server has given to another ends in ErrLost.
func TestRenewLost(t *testing.T) {
	h := wiretest.NewHost(t, "n1")
	wiretest.Link(t, "n1", "10.77.0.1/24")
	serve(t, "10.77.0", api, nil)
	l := must(t, h, "acquire eth0")
	l.Address = netip.MustParsePrefix("10.77.0.55/24") // not of the pool
	l.Rebind = 0
	b, _ := json.Marshal(l)
	if _, err := play(t, h, "renew "+string(b)); err == nil || !strings.Contains(err.Error(), dhcpclient.ErrLost.Error()) {
		t.Errorf("renewing an address of nobody: %v", err)
	}
}

// Two cables: one to a network whose server knows nothing of us, one to ours,
// and one to nobody. Ours wins, however late.
func TestAcquireAnyPrefersOurServer(t *testing.T) {
	h := wiretest.NewHost(t, "n1")
	wiretest.Link(t, "n1", "10.77.0.1/24")
	more(t, h, "n2", "eth1", "10.78.0.1/24")
	more(t, h, "n3", "eth2")
	serve(t, "10.77.0", "", func(c *netboot.Config) { c.Interfaces = []string{"n1"} })
	serve(t, "10.78.0", api, func(c *netboot.Config) { c.Interfaces = []string{"n2"} })
	if l := must(t, h, "acquire eth0 eth1 eth2"); l.Interface != "eth1" || l.ServerURL != api {
		t.Errorf("lease %+v; want that of eth1", l)
	}
	if l := must(t, h, "acquire eth0 eth2"); l.Interface != "eth0" || l.ServerURL != "" {
		t.Errorf("lease %+v; want that of eth0, for lack of a better one", l)
	}
}

// more cables another interface of h to us.
func more(t *testing.T, h *wiretest.Host, name, inside string, addrs ...string) {
	t.Helper()
	other := wiretest.NewHost(t, name)
	other.Run("ip", "link", "set", "eth0", "netns", fmt.Sprint(h.PID), "name", inside)
	wiretest.Link(t, name, addrs...)
}

// Beside another server, the proxy tells our agent the node API.
func TestAcquireBesideProxy(t *testing.T) {
	wiretest.NeedTool(t, "dnsmasq")
	h := wiretest.NewHost(t, "n1")
	wiretest.Link(t, "n1", "10.77.0.1/24")
	serve(t, "10.77.0", api, func(c *netboot.Config) { c.Mode, c.Subnets = netboot.ModeProxy, nil })
	// The other server sits on the same cable: a second interface of the node's own switch.
	other := wiretest.NewHost(t, "o1")
	for _, args := range [][]string{{"ip", "addr", "flush", "dev", "n1"}, {"ip", "link", "add", "br0", "type", "bridge"},
		{"ip", "link", "set", "n1", "master", "br0"}, {"ip", "link", "set", "o1", "master", "br0"},
		{"ip", "addr", "add", "10.77.0.1/24", "dev", "br0"}, {"ip", "link", "set", "br0", "up"}} {
		run(t, args...)
	}
	t.Cleanup(func() { run(t, "ip", "link", "del", "br0") })
	other.Run("ip", "addr", "add", "10.77.0.5/24", "dev", "eth0")
	dir := t.TempDir()
	cmd := other.Command("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--pid-file="+dir+"/pid",
		"--dhcp-leasefile="+dir+"/leases", "--dhcp-range=10.77.0.200,10.77.0.220", "--dhcp-authoritative", "--dhcp-boot=other.efi")
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	var found []dhcpclient.Answer
	if err := playInto(t, h, "survey eth0", &found); err != nil {
		t.Fatal(err)
	}
	if len(found) == 0 || found[0].Server.String() != "10.77.0.5" || !found[0].Address.IsValid() || found[0].BootFile != "other.efi" {
		t.Errorf("survey: %+v; want an address and other.efi of 10.77.0.5", found)
	}
	l := must(t, h, "acquire eth0")
	if l.ServerURL != api || l.Server.String() != "10.77.0.5" || !netip.MustParsePrefix("10.77.0.192/26").Contains(l.IP()) {
		t.Errorf("lease %+v; want the other server's address and our URL", l)
	}
}

func TestNobodyAnswers(t *testing.T) {
	wiretest.NeedRoot(t)
	wiretest.NewHost(t, "n1")
	ctx, cancel := context.WithTimeout(context.Background(), 1500*time.Millisecond)
	defer cancel()
	if _, err := dhcpclient.AcquireAny(ctx, []string{"n1"}, nil); !errors.Is(err, context.DeadlineExceeded) || !strings.Contains(err.Error(), "n1") {
		t.Errorf("AcquireAny = %v", err)
	}
	if _, err := dhcpclient.Acquire(ctx, "nothing0", nil); err == nil || !strings.Contains(err.Error(), "nothing0") {
		t.Errorf("Acquire of an interface that is not there = %v", err)
	}
	if _, err := dhcpclient.AcquireAny(ctx, []string{}, nil); err == nil || !strings.Contains(err.Error(), "driver") {
		t.Errorf("AcquireAny of no interface = %v", err)
	}
}

func run(t *testing.T, args ...string) {
	t.Helper()
	if out, err := exec.Command(args[0], args[1:]...).CombinedOutput(); err != nil {
		t.Fatalf("%s: %v: %s", strings.Join(args, " "), err, out)
	}
}
