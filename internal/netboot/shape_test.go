package netboot

import (
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/insomniacslk/dhcp/dhcpv4"
)

// C01, D9: an HTTP client gets the class HTTPClient and an absolute URL, from
// the full server, for a node with a reservation too, and from the proxy.
func TestHTTPClientGetsURL(t *testing.T) {
	const url = "http://10.77.0.1:8080/b/0123456789ab/installer.efi"
	reserved := rackConfig()
	reserved.Subnets[0].Reservations = []Reservation{{MAC: "60:be:b4:06:13:37", IP: netip.MustParseAddr("10.77.0.50"), Hostname: "n1"}}
	proxy := rackConfig()
	proxy.Mode = ModeProxy
	for name, cfg := range map[string]Config{"server": rackConfig(), "reservation": reserved, "proxy": proxy} {
		b := newBench(t, cfg, always(blob))
		r := b.through(b.raw(packets(t)["P02"], wire))
		if r == nil {
			t.Fatalf("%s: no answer", name)
		}
		if opt(r, 60) != "HTTPClient" || opt(r, 67) != url || r.msg.BootFileName != url {
			t.Errorf("%s: option 60 %q, 67 %q, file %q; want HTTPClient and %s twice", name, opt(r, 60), opt(r, 67), r.msg.BootFileName, url)
		}
		if addr4(r.msg.YourIPAddr).IsUnspecified() != (name == "proxy") {
			t.Errorf("%s: yiaddr %s", name, r.msg.YourIPAddr)
		}
		if r.to != netip.MustParseAddrPort("255.255.255.255:68") || r.msg.Flags != 0x8000 {
			t.Errorf("%s: sent to %s with flags %#x; want broadcast, as asked", name, r.to, r.msg.Flags)
		}
	}
}

// C14, D1-D4: option 60 comes with 43 or with somebody on port 4011.
func TestReplyProfiles(t *testing.T) {
	type shape struct{ class, vendor, file, opt67, sname, opt66 string }
	const file, srv = "b/0123456789ab/installer.efi", "10.77.0.1"
	full := shape{"", "", file, file, srv, srv}
	direct := full
	direct.class, direct.vendor = "PXEClient", "\x06\x01\x08\xff"
	for _, tc := range []struct {
		mode    Mode
		profile Profile
		port    int
		want    shape
	}{
		{ModeServer, ProfileAuto, 4011, full},
		{ModeServer, ProfilePlain, 4011, full},
		{ModeServer, ProfileDirect, 4011, direct},
		{ModeServer, ProfileHeader, 4011, shape{"", "", file, "", srv, ""}},
		{ModeServer, ProfileBootServer, 4011, shape{class: "PXEClient"}},
		{ModeServer, ProfileBootServer, -1, direct}, // nobody answers 4011: the file has to be in the offer
		{ModeProxy, ProfileAuto, 4011, direct},
		{ModeProxy, ProfilePlain, 4011, direct},
		{ModeProxy, ProfileBootServer, 4011, shape{class: "PXEClient"}},
	} {
		cfg := rackConfig()
		cfg.Mode, cfg.Ports.Proxy = tc.mode, tc.port
		ans := blob
		ans.Profile = tc.profile
		b := newBench(t, cfg, always(ans))
		r := b.must(pxe(packet(msgDiscover, mac1, 97, "\x00"+same(0)), 7), wire, msgOffer)
		got := shape{opt(r, 60), opt(r, 43), r.msg.BootFileName, opt(r, 67), r.msg.ServerHostName, opt(r, 66)}
		if d := cmp.Diff(tc.want, got, cmp.AllowUnexported(shape{})); d != "" {
			t.Errorf("%s, profile %q, port %d (-want +got):\n%s", tc.mode, tc.profile, tc.port, d)
		}
		if addr4(r.msg.ServerIPAddr) != us || opt(r, 97) != "\x00"+same(0) {
			t.Errorf("%s, profile %q: siaddr %s, option 97 %x; want ours and the echo", tc.mode, tc.profile, r.msg.ServerIPAddr, opt(r, 97))
		}
	}
}

// Port 4011 answers the sender with the file, whatever the profile.
func TestBootServer(t *testing.T) {
	ans := blob
	ans.Profile = ProfileBootServer
	b := newBench(t, rackConfig(), always(ans))
	at4011 := wire
	at4011.bootServer, at4011.src, at4011.dst = true, netip.MustParseAddrPort("10.77.0.120:4011"), us
	m := pxe(packet(msgRequest, mac1, 43, "\x47\x04\x80\x00\x00\x00\xff"), 7)
	m.ClientIPAddr = []byte{10, 77, 0, 120}
	r := b.must(m, at4011, msgAck)
	if r.to != at4011.src || r.hw != nil {
		t.Errorf("sent to %s; want the sender %s", r.to, at4011.src)
	}
	if r.msg.BootFileName != blob.File || opt(r, 60) != "PXEClient" || opt(r, 43) != "\x06\x01\x08\x47\x04\x80\x00\x00\x00\xff" {
		t.Errorf("file %q, 60 %q, 43 %x", r.msg.BootFileName, opt(r, 60), opt(r, 43))
	}
	if c := b.s.engine.clientAt(netip.MustParseAddr("10.77.0.120"), "tftp"); c.MAC != mac1 || c.Kind != KindUEFIPXE {
		t.Errorf("client at 10.77.0.120 = %+v; want it known from the request", c)
	}
	if r := b.send(packet(msgRequest, mac1), at4011); r != nil {
		t.Error("a client that does not boot was answered on 4011")
	}
}

// C16: iPXE is known by its raw user class, and gets a URL.
func TestIPXEGetsURL(t *testing.T) {
	b := newBench(t, rackConfig(), always(blob))
	r := b.must(pxe(packet(msgDiscover, mac1, 77, "iPXE"), 7), wire, msgOffer)
	if want := "http://10.77.0.1:8080/" + blob.File; opt(r, 67) != want || r.msg.BootFileName != want {
		t.Errorf("67 %q, file %q; want %s", opt(r, 67), r.msg.BootFileName, want)
	}
	if opt(r, 175) != "\xb0\x01\x01" || opt(r, 60) != "" {
		t.Errorf("175 %x, 60 %q; want no-pxedhcp and no class", opt(r, 175), opt(r, 60))
	}
	if r := b.send(pxe(packet(msgDiscover, mac2, 77, "iPXE"), 0), wire); r != nil {
		t.Error("iPXE for BIOS was answered; it cannot start a UKI")
	}
	if b.rec.count("dhcp.refused") != 1 || !strings.Contains(b.rec.String(), "UEFI") {
		t.Errorf("events %q; want the refusal with its remedy", b.rec)
	}
}

// D19: how a reply reaches a client on our own wire.
func TestReplyAddress(t *testing.T) {
	b := newBench(t, rackConfig(), always(blob))
	m := packet(msgDiscover, mac1)
	r := b.must(m, wire, msgOffer)
	if r.to.Addr() != addr4(r.msg.YourIPAddr) || r.to.Port() != 68 || r.hw.String() != mac1 {
		t.Errorf("flag clear: to %s, frame to %s; want unicast", r.to, r.hw)
	}
	m.Flags = 0x8000
	if r = b.must(m, wire, msgOffer); r.to.Addr() != broadcastAll || r.hw != nil || r.ifindex != wire.ifindex {
		t.Errorf("flag set: to %s on %d; want broadcast on the same interface", r.to, r.ifindex)
	}
	ip := b.lease(mac1)
	renew := packet(msgRequest, mac1)
	renew.ClientIPAddr = ip4(ip)
	if r = b.must(renew, wire, msgAck); r.to != netip.AddrPortFrom(ip, 68) || r.hw != nil || addr4(r.msg.YourIPAddr) != ip {
		t.Errorf("renewal: to %s, yiaddr %s", r.to, r.msg.YourIPAddr)
	}
	inform := packet(dhcpv4.MessageTypeInform, mac2)
	inform.ClientIPAddr = []byte{10, 77, 0, 9}
	r = b.must(inform, wire, msgAck)
	if !addr4(r.msg.YourIPAddr).IsUnspecified() || opt(r, 51) != "" || opt(r, 1) == "" || r.to.String() != "10.77.0.9:68" {
		t.Errorf("INFORM: yiaddr %s, 51 %x, 1 %x, to %s", r.msg.YourIPAddr, opt(r, 51), opt(r, 1), r.to)
	}
}

func TestNodeAPIOption(t *testing.T) {
	b := newBench(t, rackConfig(), always(Answer{Kind: AnswerRefuse, Reason: "not asked"}))
	url := rackConfig().NodeAPI
	for _, tc := range []struct {
		name string
		opts []any
		want string
	}{
		{"our agent", []any{60, "turnout-nodeagent"}, url},
		{"whoever asks", []any{60, "systemd", 55, "\x01\x03\xe0"}, url},
		{"others", []any{55, "\x01\x03"}, ""},
	} {
		r := b.must(packet(msgDiscover, mac1, tc.opts...), wire, msgOffer)
		if opt(r, 224) != tc.want {
			t.Errorf("%s: option 224 = %q; want %q", tc.name, opt(r, 224), tc.want)
		}
		if r.msg.BootFileName != "" || opt(r, 67) != "" {
			t.Errorf("%s: got a boot file", tc.name)
		}
	}
}

func TestNetworkOptions(t *testing.T) {
	cfg := rackConfig()
	s := &cfg.Subnets[0]
	s.Domain, s.MTU, s.NTP, s.LeaseTime = "rack.example", 9000, []netip.Addr{us}, 2*time.Hour
	b := newBench(t, cfg, always(blob))
	got := b.must(packet(msgDiscover, mac1), wire, msgOffer).msg
	want := map[uint8]string{
		1: "\xff\xff\xff\x00", 3: "\x0a\x4d\x00\x01", 6: "\x0a\x4d\x00\x01", 15: "rack.example", 26: "\x23\x28", 28: "\x0a\x4d\x00\xff", 42: "\x0a\x4d\x00\x01",
		51: "\x00\x00\x1c\x20", 53: "\x02", 54: "\x0a\x4d\x00\x01", 58: "\x00\x00\x0e\x10", 59: "\x00\x00\x18\x9c",
	}
	have := map[uint8]string{}
	for k, v := range got.Options {
		have[k] = string(v)
	}
	if d := cmp.Diff(want, have, cmpopts.EquateEmpty()); d != "" {
		t.Errorf("options (-want +got):\n%s", d)
	}
}

// A reply never outgrows what the client can take.
func TestReplyFits(t *testing.T) {
	cfg := rackConfig()
	cfg.Subnets[0].Domain = strings.Repeat("long.example.", 18)
	cfg.NodeAPI = "https://" + strings.Repeat("a", 200) + ":8443"
	b := newBench(t, cfg, always(blob))
	r := b.must(packet(msgDiscover, mac1, 60, "turnout-nodeagent"), wire, msgOffer)
	if n := len(r.msg.ToBytes()) + 28; n > 576 {
		t.Errorf("packet of %d bytes; the client takes 576", n)
	}
	if opt(r, 224) != cfg.NodeAPI || opt(r, 1) == "" || opt(r, 3) == "" {
		t.Error("what the client cannot do without was left out")
	}
	r = b.must(packet(msgDiscover, mac1, 60, "turnout-nodeagent", 57, "\x05\xc0"), wire, msgOffer)
	if opt(r, 15) == "" {
		t.Error("option 15 left out although the client takes 1472 bytes")
	}
}

// In proxy mode systems are left alone, and REQUESTs to the other server tell
// who has which address.
func TestProxyLeavesSystemsAlone(t *testing.T) {
	cfg := rackConfig()
	cfg.Mode, cfg.Subnets = ModeProxy, nil
	b := newBench(t, cfg, always(blob))
	for _, m := range []*dhcpv4.DHCPv4{
		packet(msgDiscover, mac1), packet(msgRequest, mac1, 50, us), packet(dhcpv4.MessageTypeInform, mac1),
		packet(dhcpv4.MessageTypeRelease, mac1), packet(dhcpv4.MessageTypeDecline, mac1, 50, us),
	} {
		if r := b.send(m, wire); r != nil {
			t.Errorf("%s of a system was answered", m.MessageType())
		}
	}
	r := b.must(pxe(packet(msgDiscover, mac2), 7), wire, msgOffer)
	if !addr4(r.msg.YourIPAddr).IsUnspecified() || opt(r, 51) != "" || opt(r, 1) != "" || opt(r, 3) != "" {
		t.Error("a proxy offer holds an address or network options")
	}
	his := netip.MustParseAddr("10.77.0.33")
	if r := b.send(pxe(packet(msgRequest, mac2, 50, his, 54, netip.MustParseAddr("10.77.0.5")), 7), wire); r != nil {
		t.Error("REQUEST to the other server was answered")
	}
	if c := b.s.engine.clientAt(his, "tftp"); c.MAC != mac2 || c.Kind != KindUEFIPXE {
		t.Errorf("client at %s = %+v", his, c)
	}
	a := b.must(packet(msgDiscover, mac3, 60, "turnout-nodeagent"), wire, msgOffer)
	if opt(a, 224) != cfg.NodeAPI || opt(a, 60) != "turnout-nodeagent" || !addr4(a.msg.YourIPAddr).IsUnspecified() {
		t.Error("our agent is not told the node API")
	}
}
