package netboot

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
	"github.com/vishvananda/netlink"

	"github.com/turnout-project/turnout/internal/netboot/wiretest"
)

// udhcpc asks once for an address in h and returns what it was told, in its
// own words (ip=…, router=…, siaddr=…, boot_file=…, opt224=…).
func udhcpc(t *testing.T, h *wiretest.Host, args ...string) map[string]string {
	t.Helper()
	wiretest.NeedTool(t, "busybox")
	script := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(script, []byte("#!/bin/sh\n[ \"$1\" = bound ] && env\nexit 0\n"), 0o700); err != nil {
		t.Fatal(err)
	}
	out := h.Run(append([]string{"busybox", "udhcpc", "-i", "eth0", "-f", "-q", "-n", "-t", "5", "-T", "2", "-s", script}, args...)...)
	vars := map[string]string{}
	for line := range strings.Lines(out) {
		if k, v, ok := strings.Cut(strings.TrimSpace(line), "="); ok {
			vars[k] = v
		}
	}
	return vars
}

// dnsmasq runs a real other server, or relay, in h until the test ends.
func dnsmasq(t *testing.T, h *wiretest.Host, args ...string) {
	t.Helper()
	wiretest.NeedTool(t, "dnsmasq")
	dir := t.TempDir()
	cmd := h.Command(append([]string{"dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--log-dhcp", "--log-facility=-",
		"--pid-file=" + filepath.Join(dir, "pid"), "--dhcp-leasefile=" + filepath.Join(dir, "leases")}, args...)...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log := &lockedBuffer{}
	cmd.Stderr, cmd.Stdout = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
		if t.Failed() {
			t.Logf("dnsmasq:\n%s", log)
		}
	})
	wiretest.WaitFor(t, "dnsmasq to listen", func() bool { return strings.Contains(h.Run("ss", "-ulnH", "sport = :67"), ":67") })
}

// A plain client on the wire, with the flag for broadcast replies and without.
func TestUdhcpc(t *testing.T) {
	h := wiretest.NewHost(t, "h1")
	wiretest.Link(t, "h1", "10.77.0.1/24")
	start(t, &Server{Config: rackConfig(), Policy: always(blob)})
	first := udhcpc(t, h, "-O", "224")
	if first["ip"] == "" || first["router"] != "10.77.0.1" || first["subnet"] != "255.255.255.0" || first["lease"] != "86400" || first["serverid"] != "10.77.0.1" {
		t.Errorf("udhcpc: %v", first)
	}
	if second := udhcpc(t, h, "-B"); second["ip"] != first["ip"] {
		t.Errorf("with broadcast flag: %q; want %q again", second["ip"], first["ip"])
	}
	h.Run("ip", "addr", "add", first["ip"]+"/24", "dev", "eth0") // it renews by unicast
	if again := udhcpc(t, h, "-r", first["ip"]); again["ip"] != first["ip"] {
		t.Errorf("asked for %q, got %q", first["ip"], again["ip"])
	}
}

// C08: a real relay between client and server.
func TestRealRelay(t *testing.T) {
	client, relay := wiretest.NewHost(t, "c1"), wiretest.NewHost(t, "r1")
	wiretest.Link(t, "r1", "192.0.2.1/24")
	wireThrough(t, client, relay)
	relay.Run("ip", "addr", "add", "192.0.2.2/24", "dev", "eth0")
	relay.Run("ip", "addr", "add", "10.77.0.254/24", "dev", "down0")
	relay.Run("sh", "-c", "echo 1 > /proc/sys/net/ipv4/ip_forward")
	route(t, "10.77.0.0/24", "192.0.2.2")
	dnsmasq(t, relay, "--dhcp-relay=10.77.0.254,192.0.2.1")
	cfg := rackConfig()
	cfg.Subnets[0].Router = netip.MustParseAddr("10.77.0.254")
	s := &Server{Config: cfg, Policy: always(installer(body(3000)))}
	start(t, s)
	for _, flags := range [][]string{{}, {"-B"}} {
		got := udhcpc(t, client, append(flags, "-V", "PXEClient:Arch:00007:UNDI:003016", "-x", "0x5d:0007", "-O", "66", "-O", "67")...)
		if got["ip"] == "" || got["router"] != "10.77.0.254" || got["siaddr"] != "192.0.2.1" || got["boot_file"] != blob.File {
			t.Errorf("%v: %v", flags, got)
		}
	}
	// The very file, over TFTP and HTTP, from the address just leased.
	ip := s.LeaseTable()[0].IP.String()
	client.Run("ip", "addr", "add", ip+"/24", "dev", "eth0")
	client.Run("ip", "route", "add", "default", "via", "10.77.0.254")
	wiretest.NeedTool(t, "busybox")
	if out := client.Run("busybox", "tftp", "-g", "-b", "1024", "-r", blob.File, "-l", "/proc/self/fd/1", "192.0.2.1"); len(out) != 3000 {
		t.Errorf("busybox tftp: %d bytes: %.100q", len(out), out)
	}
	if out := client.Run("busybox", "wget", "-q", "-O", "-", "http://192.0.2.1:8080/"+blob.File); len(out) != 3000 {
		t.Errorf("busybox wget: %d bytes: %.100q", len(out), out)
	}
}

// wireThrough moves the server's end of a client's cable to another host, as
// its interface down0.
func wireThrough(t *testing.T, client, to *wiretest.Host) {
	t.Helper()
	l, err := netlink.LinkByName(client.Name)
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetNsPid(l, to.PID); err != nil {
		t.Fatal(err)
	}
	to.Run("ip", "link", "set", client.Name, "name", "down0")
	to.Run("ip", "link", "set", "down0", "up")
}

func route(t *testing.T, prefix, via string) {
	t.Helper()
	if out, err := exec.Command("ip", "route", "replace", prefix, "via", via).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	t.Cleanup(func() { _ = exec.Command("ip", "route", "del", prefix).Run() })
}

// bridge joins the server's ends of the hosts' cables into one network.
func bridge(t *testing.T, hosts ...*wiretest.Host) {
	t.Helper()
	br, err := netlink.LinkByName("br0")
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range hosts {
		if err := netlink.LinkSetMaster(wiretest.Link(t, h.Name), br); err != nil {
			t.Fatal(err)
		}
	}
}

// Real firmware between a real DHCP server and us as proxy. The other server
// knows nothing of booting.
func TestOVMFBootsBesideDnsmasq(t *testing.T) {
	const mac, text = "52:54:00:77:00:03", "NETBOOT-PROXY-OK"
	for _, profile := range []Profile{ProfileAuto, ProfileBootServer} {
		t.Run(string(profile), func(t *testing.T) {
			rack(t, "tap0")
			other := wiretest.NewHost(t, "o1")
			bridge(t, other)
			other.Run("ip", "addr", "add", "10.77.0.5/24", "dev", "eth0")
			dnsmasq(t, other, "--interface=eth0", "--dhcp-range=10.77.0.200,10.77.0.220", "--dhcp-authoritative")
			cfg := rackConfig()
			cfg.Mode, cfg.Subnets = ModeProxy, nil
			ans := installer(efiProgram("amd64", text, 1<<20))
			ans.Profile = profile
			s := &Server{Config: cfg, Policy: PolicyFunc(func(_ context.Context, c Client) (Answer, error) {
				if c.Kind != KindUEFIPXE {
					return Answer{Kind: AnswerNone, Reason: "not under test"}, nil
				}
				return ans, nil
			})}
			rec := start(t, s)
			out := ovmf.boot(t, "tap0", mac, 2*time.Minute)
			if !strings.Contains(out, text) || rec.count("tftp.sent") != 1 {
				t.Errorf("the program did not run; events:\n%s\nconsole:\n%s", rec, out)
			}
			if len(s.LeaseTable()) != 0 {
				t.Error("a proxy leased an address")
			}
			// The other server's clients are its own business.
			c := wiretest.NewHost(t, "c1")
			bridge(t, c)
			if got := udhcpc(t, c); got["serverid"] != "10.77.0.5" || got["boot_file"] != "" {
				t.Errorf("udhcpc beside a proxy: %v", got)
			}
		})
	}
}

// C11: a flood of broken packets, then a good one, answered within a second.
func TestFloodOfBrokenPackets(t *testing.T) {
	h := wiretest.NewHost(t, "h1")
	wiretest.Link(t, "h1", "10.77.0.1/24")
	s := &Server{Config: rackConfig(), Policy: always(blob), Log: slog.New(slog.NewTextHandler(testWriter{t}, nil))}
	start(t, s)
	ps := packets(t)
	bad := [][]byte{ps["P07"], ps["P09"], ps["P02"][:239], ps["P02"][:1], {}}
	h.Run("ip", "addr", "add", "10.77.0.9/24", "dev", "eth0")
	floodFrom(t, h, bad, 10_000)
	wiretest.WaitFor(t, "the flood to be counted", func() bool {
		st := s.Stats()
		return st.Malformed.Load()+st.Ignored.Load()+st.Overflow.Load() > 0
	})
	begun := time.Now()
	if got := udhcpc(t, h); got["ip"] == "" {
		t.Errorf("after the flood: %v", got)
	}
	t.Logf("answered %s after the flood", time.Since(begun).Round(time.Millisecond))
}

// floodFrom sends n packets from h to the server.
func floodFrom(t *testing.T, h *wiretest.Host, ps [][]byte, n int) {
	t.Helper()
	h.Do(func() error {
		c, err := net.DialUDP("udp4", &net.UDPAddr{Port: clientPort}, &net.UDPAddr{IP: net.IPv4(10, 77, 0, 1), Port: serverPort})
		if err != nil {
			return err
		}
		defer c.Close()
		for i := range n {
			if _, err := c.Write(ps[i%len(ps)]); err != nil {
				return err
			}
		}
		return nil
	})
}

// A second server on the host is a clear error at start, not a silent sharing
// of packets (D35).
func TestSecondServerIsRefused(t *testing.T) {
	wiretest.NeedRoot(t)
	start(t, &Server{Config: rackConfig(), Policy: always(blob)})
	err := (&Server{Config: rackConfig(), Policy: always(blob)}).Serve(t.Context())
	if err == nil || !strings.Contains(err.Error(), "another server on this host uses it") {
		t.Errorf("Serve = %v", err)
	}
}

// D36: two networks: each client is answered on its own, from the address
// there.
func TestTwoNetworks(t *testing.T) {
	a, b := wiretest.NewHost(t, "h1"), wiretest.NewHost(t, "h2")
	wiretest.Link(t, "h1", "10.77.0.1/24")
	wiretest.Link(t, "h2", "10.78.0.1/24")
	cfg := rackConfig()
	cfg.Subnets = append(cfg.Subnets, Subnet{Prefix: netip.MustParsePrefix("10.78.0.0/24"),
		Pools: []Range{{netip.MustParseAddr("10.78.0.10"), netip.MustParseAddr("10.78.0.20")}}})
	for _, names := range [][]string{nil, {"h1", "h2"}} {
		cfg.Interfaces = names
		t.Run(fmt.Sprint(names), func(t *testing.T) {
			start(t, &Server{Config: cfg, Policy: always(blob)})
			for h, server := range map[*wiretest.Host]string{a: "10.77.0.1", b: "10.78.0.1"} {
				for _, flag := range []string{"-q", "-B"} {
					if got := udhcpc(t, h, flag); got["serverid"] != server || !strings.HasPrefix(got["ip"], server[:6]) {
						t.Errorf("%s: %v; want an address from %s", h.Name, got, server)
					}
				}
			}
		})
	}
}

// Somebody sits on an address of the pool without a lease: the client that
// was offered it gets another.
func TestAddressInUse(t *testing.T) {
	rack(t)
	squatter, c := wiretest.NewHost(t, "s1"), wiretest.NewHost(t, "c1")
	bridge(t, squatter, c)
	squatter.Run("ip", "addr", "add", "10.77.0.100/24", "dev", "eth0")
	cfg := rackConfig()
	cfg.Subnets[0].Pools = []Range{{netip.MustParseAddr("10.77.0.100"), netip.MustParseAddr("10.77.0.100")}}
	s := &Server{Config: cfg, Policy: always(blob)}
	rec := start(t, s)
	if out, err := c.Command("busybox", "udhcpc", "-i", "eth0", "-f", "-q", "-n", "-t", "3", "-T", "1", "-s", "/bin/true").CombinedOutput(); err == nil {
		t.Errorf("leased an address that is in use:\n%s", out)
	}
	if rec.count("dhcp.conflict") != 1 || !strings.Contains(rec.String(), "10.77.0.100 is in use by ") {
		t.Errorf("events:\n%s", rec)
	}
	// A machine that still holds the address of its last boot is no conflict.
	squatter.Run("ip", "addr", "flush", "dev", "eth0")
	s.engine.pool.mu.Lock()
	clear(s.engine.pool.byIP)
	s.engine.pool.mu.Unlock()
	c.Run("ip", "addr", "add", "10.77.0.100/24", "dev", "eth0")
	if got := udhcpc(t, c); got["ip"] != "10.77.0.100" {
		t.Errorf("its own old address: %v", got)
	}
}

// ISC's relay puts option 82 in, wants it back byte for byte, and takes it out
// again: what the client gets has none.
func TestISCRelay(t *testing.T) {
	wiretest.NeedTool(t, "dhcrelay")
	client, relay := wiretest.NewHost(t, "c1"), wiretest.NewHost(t, "r1")
	wiretest.Link(t, "r1", "192.0.2.1/24")
	wireThrough(t, client, relay)
	relay.Run("ip", "addr", "add", "192.0.2.2/24", "dev", "eth0")
	relay.Run("ip", "addr", "add", "10.77.0.254/24", "dev", "down0")
	route(t, "10.77.0.0/24", "192.0.2.2")
	cmd := relay.Command("dhcrelay", "-4", "-d", "-a", "-D", "-m", "discard", "--no-pid", "-i", "down0", "-i", "eth0", "192.0.2.1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	log := &lockedBuffer{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
	wiretest.WaitFor(t, "the relay", func() bool { return strings.Contains(log.String(), "Listening on LPF/eth0") })
	var seen atomic.Int64
	s := &Server{Config: rackConfig(), Policy: always(blob), Trace: func(x Trace) {
		if m, err := dhcpv4.FromBytes(x.Request); err == nil && len(m.Options[82]) > 0 {
			if r, err := dhcpv4.FromBytes(x.Reply); err == nil && string(r.Options[82]) == string(m.Options[82]) {
				seen.Add(1)
			}
		}
	}}
	start(t, s)
	got := udhcpc(t, client, "-V", "PXEClient:Arch:00007:UNDI:003016", "-x", "0x5d:0007", "-O", "66", "-O", "67")
	if got["ip"] == "" || got["siaddr"] != "192.0.2.1" || got["boot_file"] != blob.File {
		t.Errorf("%v\nrelay:\n%s", got, log)
	}
	if seen.Load() < 2 {
		t.Errorf("option 82 went both ways %d times; want OFFER and ACK\nrelay:\n%s", seen.Load(), log)
	}
}

// Two VLANs on one cable, each a network of its own.
func TestVLANs(t *testing.T) {
	h := wiretest.NewHost(t, "h1")
	parent, err := netlink.LinkByName("h1")
	if err != nil {
		t.Fatal(err)
	}
	cfg := rackConfig()
	cfg.Subnets = append(cfg.Subnets, Subnet{Prefix: netip.MustParsePrefix("10.78.0.0/24"),
		Pools: []Range{{netip.MustParseAddr("10.78.0.10"), netip.MustParseAddr("10.78.0.20")}}})
	for id, addr := range map[int]string{7: "10.77.0.1/24", 8: "10.78.0.1/24"} {
		name := fmt.Sprintf("v%d", id)
		if err := netlink.LinkAdd(&netlink.Vlan{LinkAttrs: netlink.LinkAttrs{Name: name, ParentIndex: parent.Attrs().Index}, VlanId: id}); errors.Is(err, syscall.EOPNOTSUPP) {
			t.Skip("this kernel has no VLANs (8021q)")
		} else if err != nil {
			t.Fatal(err)
		}
		wiretest.Link(t, name, addr)
		h.Run("ip", "link", "add", "link", "eth0", "name", name, "type", "vlan", "id", fmt.Sprint(id))
		h.Run("ip", "link", "set", name, "up")
	}
	start(t, &Server{Config: cfg, Policy: always(blob)})
	for id, server := range map[int]string{7: "10.77.0.1", 8: "10.78.0.1"} {
		for _, flag := range []string{"-q", "-B"} {
			if got := udhcpc(t, h, flag, "-i", fmt.Sprintf("v%d", id)); got["serverid"] != server || !strings.HasPrefix(got["ip"], server[:6]) {
				t.Errorf("VLAN %d: %v; want an address from %s", id, got, server)
			}
		}
	}
}

// Another DHCP server on the network, and we are no proxy: machines get an
// address all the same, each from one of the two; those that took the other's
// are told.
func TestSecondServerOnTheWire(t *testing.T) {
	rack(t)
	other, c := wiretest.NewHost(t, "o1"), wiretest.NewHost(t, "c1")
	bridge(t, other, c)
	other.Run("ip", "addr", "add", "10.77.0.2/24", "dev", "eth0")
	dnsmasq(t, other, "--dhcp-range=10.77.0.200,10.77.0.220", "--dhcp-authoritative")
	s := &Server{Config: rackConfig(), Policy: always(blob)}
	rec := start(t, s)
	asBooting := []string{"-V", "PXEClient:Arch:00007:UNDI:003016", "-x", "0x5d:0007"}
	from := map[string]int{}
	for range 3 {
		from[udhcpc(t, c, asBooting...)["serverid"]]++
	}
	// One that is bound to take the other's: it asks for an address of its pool and waits for none of ours.
	m := pxe(packet(msgRequest, mac2, 50, netip.MustParseAddr("10.77.0.210"), 54, netip.MustParseAddr("10.77.0.2")), 7)
	if r := s.engine.handle(t.Context(), m.ToBytes(), wire); r != nil {
		t.Errorf("answered a request to another server: %s", r.msg.MessageType())
	}
	if from["10.77.0.1"]+from["10.77.0.2"] != 3 {
		t.Errorf("servers chosen: %v", from)
	}
	if rec.count("dhcp.elsewhere") == 0 || !strings.Contains(rec.String(), "another DHCP server, 10.77.0.2") {
		t.Errorf("events:\n%s", rec)
	}
}
