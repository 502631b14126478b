package netboot

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/turnout-project/turnout/internal/fleet"
)

const (
	msgDiscover = dhcpv4.MessageTypeDiscover
	msgOffer    = dhcpv4.MessageTypeOffer
	msgRequest  = dhcpv4.MessageTypeRequest
	msgAck      = dhcpv4.MessageTypeAck
	msgNak      = dhcpv4.MessageTypeNak
)

var (
	blob = installer([]byte("a UKI"))
	us   = netip.MustParseAddr("10.77.0.1")
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

// C02: one placeholder GUID on two boards: two clients and a warning.
func TestPlaceholderUUIDMergesNobody(t *testing.T) {
	b := newBench(t, rackConfig(), always(blob))
	p := packets(t)["P02"]
	first := b.through(b.raw(p, wire))
	other := append([]byte{}, p...)
	other[33] ^= 1 // last byte of chaddr
	second := b.through(b.raw(other, wire))
	if first == nil || second == nil || first.msg.YourIPAddr.Equal(second.msg.YourIPAddr) {
		t.Fatalf("offers %v and %v; want two addresses", first, second)
	}
	if n := b.rec.count("dhcp.uuid"); n != 2 {
		t.Errorf("%d warnings about the UUID; want one for each board:\n%s", n, b.rec)
	}
}

// C06, C11: what cannot be understood is dropped and counted.
func TestBrokenPacketsAreDropped(t *testing.T) {
	ps := packets(t)
	good := ps["P02"]
	edit := func(at int, v ...byte) []byte {
		b := append([]byte{}, good...)
		copy(b[at:], v)
		return b
	}
	for _, tc := range []struct {
		name    string
		packet  []byte
		ignored bool
	}{
		{"bare BOOTP", ps["P07"], true},
		{"overrunning option", ps["P09"], false},
		{"empty", nil, false},
		{"one byte", []byte{1}, false},
		{"cut before the cookie", good[:239], false},
		{"cut inside an option", good[:250], false},
		{"wrong cookie", edit(236, 0x63, 0x82, 0x53, 0x62), false},
		{"hlen 255", edit(2, 255), false},
		{"a reply", edit(0, 2), true},
		{"opcode 0", edit(0, 0), true},
		{"Ethernet without address", edit(2, 0), false},
		{"huge", append(append([]byte{}, good...), make([]byte, 2000)...), false},
	} {
		b := newBench(t, rackConfig(), always(blob))
		if r := b.raw(tc.packet, wire); r != nil {
			t.Errorf("%s: answered", tc.name)
		}
		if m, i := b.s.stats.Malformed.Load(), b.s.stats.Ignored.Load(); (m == 1) == tc.ignored || (i == 1) != tc.ignored {
			t.Errorf("%s: malformed %d, ignored %d", tc.name, m, i)
		}
		if b.raw(good, wire) == nil {
			t.Errorf("%s: the next good packet was not answered", tc.name)
		}
	}
}

// C10, D22, D23: padding after End, a missing End.
func TestForgivenPackets(t *testing.T) {
	b := newBench(t, rackConfig(), always(blob))
	if b.raw(packets(t)["P10"], wire) == nil {
		t.Error("0xFF padding after End: not answered")
	}
	noEnd := packet(msgDiscover, mac1, 60, "x").ToBytes()
	for i := len(noEnd) - 1; noEnd[i] != 255; i-- {
		noEnd = noEnd[:i]
	}
	if b.raw(noEnd[:len(noEnd)-1], wire) == nil {
		t.Error("no End option: not answered")
	}
}

// C12: InfiniBand ports are told apart by their GUID and answered by
// broadcast.
func TestInfiniBand(t *testing.T) {
	ps := packets(t)
	b := newBench(t, rackConfig(), always(blob))
	p11, p12 := b.through(b.raw(ps["P11"], wire)), b.through(b.raw(ps["P12"], wire))
	if p11 == nil || p12 == nil {
		t.Fatal("not answered")
	}
	if !p11.msg.YourIPAddr.Equal(p12.msg.YourIPAddr) {
		t.Errorf("one port, two forms: %s and %s; want one address", p11.msg.YourIPAddr, p12.msg.YourIPAddr)
	}
	if p12.to.Addr() != broadcastAll || p12.msg.HWType != 32 || len(p12.msg.ClientHWAddr) != 0 {
		t.Errorf("sent to %s, htype %d, hlen %d; want broadcast, 32, 0", p12.to, p12.msg.HWType, len(p12.msg.ClientHWAddr))
	}
	if !strings.Contains(opt(p12, 61), "\x20\xe0\x07\x1b") {
		t.Errorf("option 61 = %x; want it echoed", opt(p12, 61))
	}
	other := append([]byte{}, ps["P12"]...)
	i := strings.Index(string(other), "\x79\xd0\x84")
	other[i+2]++
	if r := b.through(b.raw(other, wire)); r == nil || r.msg.YourIPAddr.Equal(p12.msg.YourIPAddr) {
		t.Error("another port GUID got the same address")
	}
	// The same port without option 61: nothing tells it apart, nothing is merged.
	bare, _ := dhcpv4.FromBytes(ps["P12"])
	delete(bare.Options, 61)
	if r := b.send(bare, wire); r != nil {
		t.Error("port without any identity was answered")
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

// D16, D18, D20: relays.
func TestRelay(t *testing.T) {
	const info = "\x01\x04\x20\x00\x00\x02"
	giaddr := netip.MustParseAddr("10.77.0.254")
	relayed := func(m *dhcpv4.DHCPv4, info string) *dhcpv4.DHCPv4 {
		m.GatewayIPAddr, m.HopCount, m.Flags = ip4(giaddr), 1, 0x8000
		m.Options[82] = []byte(info)
		return m
	}
	far := arrival{iface: "up0", ifindex: 9, addrs: []netip.Prefix{netip.MustParsePrefix("192.0.2.1/24")},
		src: netip.AddrPortFrom(giaddr, 67), dst: netip.MustParseAddr("192.0.2.1")}
	b := newBench(t, rackConfig(), always(blob))
	r := b.must(relayed(pxe(packet(msgDiscover, mac1), 7), info), far, msgOffer)
	if r.to != netip.AddrPortFrom(giaddr, 67) || r.ifindex != 0 || r.hw != nil {
		t.Errorf("sent to %s (interface %d, %v); want %s:67, routed", r.to, r.ifindex, r.hw, giaddr)
	}
	if opt(r, 82) != info || r.msg.Flags != 0x8000 || addr4(r.msg.GatewayIPAddr) != giaddr {
		t.Errorf("82 %x, flags %#x, giaddr %s; want all copied", opt(r, 82), r.msg.Flags, r.msg.GatewayIPAddr)
	}
	if wire := r.msg.ToBytes(); !strings.Contains(string(wire), "\x52\x06"+info+"\xff") {
		t.Error("option 82 is not the last one")
	}
	if got := addr4(r.msg.ServerIdentifier()); got.String() != "192.0.2.1" || r.from != got {
		t.Errorf("option 54 %s, from %s; want the address the relay wrote to", got, r.from)
	}
	n := b.must(relayed(packet(msgRequest, mac1, 50, netip.MustParseAddr("10.9.9.9"), 54, netip.MustParseAddr("192.0.2.1")), info), far, msgNak)
	if n.to != netip.AddrPortFrom(giaddr, 67) || opt(n, 82) != info || n.msg.Flags != 0x8000 {
		t.Errorf("NAK to %s with 82 %x", n.to, opt(n, 82))
	}
	// Link selection (5) chooses the subnet, server identifier override (11) the name we go by.
	giaddr = netip.MustParseAddr("172.16.255.1")
	sonic := "\x05\x04\x0a\x4d\x00\x01\x0b\x04\xac\x10\xff\x01"
	r = b.must(relayed(packet(msgDiscover, mac2), sonic), far, msgOffer)
	if !rackConfig().Subnets[0].Prefix.Contains(addr4(r.msg.YourIPAddr)) || addr4(r.msg.ServerIdentifier()) != giaddr {
		t.Errorf("yiaddr %s, option 54 %s; want one of the selected link, and the relay's", r.msg.YourIPAddr, r.msg.ServerIdentifier())
	}
	b.must(relayed(packet(msgRequest, mac2, 50, addr4(r.msg.YourIPAddr), 54, giaddr), sonic), far, msgAck)
	if r := b.send(relayed(packet(msgDiscover, mac3), info), far); r != nil {
		t.Error("a relay of a network we do not serve was answered")
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

// D29: another client identifier at each stage of a boot, still one address;
// and the address stays when it is renewed, released or asked for again.
func TestOneAddressPerClient(t *testing.T) {
	b := newBench(t, rackConfig(), always(blob))
	ip := b.lease(mac1, 61, "\x00"+same(3))
	for _, id := range []string{"\x01\x52\x54\x00\x00\x00\x01", "\xff\x00\x00\x00\x01\x00\x02"} {
		if got := b.lease(mac1, 61, id); got != ip {
			t.Errorf("client identifier %x: %s; want %s again", id, got, ip)
		}
	}
	rel := packet(dhcpv4.MessageTypeRelease, mac1)
	rel.ClientIPAddr = ip4(ip)
	if r := b.send(rel, wire); r != nil {
		t.Error("RELEASE was answered")
	}
	if c := b.s.engine.clientAt(ip, "http"); c.MAC != mac1 {
		t.Error("a released address is not known any more; firmware goes on using it (H13)")
	}
	if got := b.lease(mac1); got != ip {
		t.Errorf("after RELEASE: %s; want %s", got, ip)
	}
}

func TestRequestIsRefusedOrIgnored(t *testing.T) {
	b := newBench(t, rackConfig(), always(blob))
	ip := b.lease(mac1)
	other := netip.MustParseAddr("10.77.0.77")
	for _, tc := range []struct {
		name string
		msg  *dhcpv4.DHCPv4
		want dhcpv4.MessageType
	}{
		{"another client's address", packet(msgRequest, mac2, 50, ip, 54, us), msgNak},
		{"reboot with another client's address", packet(msgRequest, mac2, 50, ip), msgNak},
		{"address outside the pool", packet(msgRequest, mac2, 50, other), msgNak},
		{"address of another network", packet(msgRequest, mac2, 50, netip.MustParseAddr("192.168.1.5")), msgNak},
		{"no address at all", packet(msgRequest, mac2, 54, us), msgNak},
		{"the server's own", packet(msgRequest, mac2, 50, us), msgNak},
		{"network address", packet(msgRequest, mac2, 50, netip.MustParseAddr("10.77.0.0")), msgNak},
		{"chosen another server", packet(msgRequest, mac2, 50, other, 54, netip.MustParseAddr("10.77.0.5")), 0},
		{"reboot with a free address of ours", packet(msgRequest, mac3, 50, netip.MustParseAddr("10.77.0.150")), msgAck},
	} {
		r := b.send(tc.msg, wire)
		if tc.want == 0 {
			if r != nil {
				t.Errorf("%s: answered", tc.name)
			}
			continue
		}
		if r == nil || r.msg.MessageType() != tc.want {
			t.Errorf("%s: %v; want %s", tc.name, r, tc.want)
			continue
		}
		if tc.want == msgNak && (r.to.Addr() != broadcastAll || opt(r, 56) == "" || opt(r, 54) == "" || opt(r, 51) != "") {
			t.Errorf("%s: NAK to %s, 56 %q", tc.name, r.to, opt(r, 56))
		}
	}
}

func TestDeclineQuarantinesAddress(t *testing.T) {
	b := newBench(t, rackConfig(), always(blob))
	ip := b.lease(mac1)
	b.send(packet(dhcpv4.MessageTypeDecline, mac2, 50, ip), wire) // not his to decline
	if got := b.lease(mac1); got != ip {
		t.Fatalf("a stranger's DECLINE took %s away", ip)
	}
	b.send(packet(dhcpv4.MessageTypeDecline, mac1, 50, ip, 54, us), wire)
	if got := b.lease(mac1); got == ip {
		t.Errorf("%s offered again after DECLINE", ip)
	}
	if b.rec.count("dhcp.decline") != 1 {
		t.Errorf("events:\n%s", b.rec)
	}
}

func TestPoolExhaustionAndExpiry(t *testing.T) {
	cfg := rackConfig()
	cfg.Subnets[0].Pools = []Range{{netip.MustParseAddr("10.77.0.10"), netip.MustParseAddr("10.77.0.11")}}
	b := newBench(t, cfg, always(blob))
	now := time.Unix(1e9, 0)
	b.s.engine.now = func() time.Time { return now }
	first, second := b.lease(mac1), b.lease(mac2)
	if first == second {
		t.Fatalf("two clients on %s", first)
	}
	if r := b.send(packet(msgDiscover, mac3), wire); r != nil {
		t.Fatalf("offer of %s from a full pool", r.msg.YourIPAddr)
	}
	if b.rec.count("dhcp.exhausted") != 1 {
		t.Errorf("events:\n%s", b.rec)
	}
	now = now.Add(23 * time.Hour)
	if got := b.lease(mac2); got != second {
		t.Fatalf("renewed as %s", got)
	}
	now = now.Add(2 * time.Hour) // the first lease is over, the second is not
	if got := b.lease(mac3); got != first {
		t.Errorf("after expiry: %s; want %s", got, first)
	}
}

// An offer holds its address for a while, then gives it free.
func TestOfferHold(t *testing.T) {
	cfg := rackConfig()
	cfg.Subnets[0].Pools = []Range{{netip.MustParseAddr("10.77.0.10"), netip.MustParseAddr("10.77.0.10")}}
	b := newBench(t, cfg, always(blob))
	now := time.Unix(1e9, 0)
	b.s.engine.now = func() time.Time { return now }
	b.must(packet(msgDiscover, mac1), wire, msgOffer)
	now = now.Add(time.Minute)
	if b.send(packet(msgDiscover, mac2), wire) != nil {
		t.Error("address offered to two clients within a minute (D32)")
	}
	now = now.Add(2 * time.Minute)
	b.must(packet(msgDiscover, mac2), wire, msgOffer)
	// Taking another server's msgOffer frees ours at once.
	b.send(packet(msgRequest, mac2, 50, netip.MustParseAddr("10.77.0.9"), 54, netip.MustParseAddr("10.77.0.5")), wire)
	b.must(packet(msgDiscover, mac1), wire, msgOffer)
}

func TestReservation(t *testing.T) {
	cfg := rackConfig()
	ip := netip.MustParseAddr("10.77.0.110") // inside the pool
	cfg.Subnets[0].Reservations = []Reservation{{MAC: mac1, IP: ip, Hostname: "n1"}}
	b := newBench(t, cfg, always(blob))
	for i := range 99 { // everybody else takes the rest
		b.lease(fmt.Sprintf("52:54:00:00:01:%02x", i))
	}
	if r := b.send(packet(msgDiscover, mac2, 50, ip), wire); r != nil {
		t.Errorf("reserved address offered to another: %s", r.msg.YourIPAddr)
	}
	o := b.must(packet(msgDiscover, mac1), wire, msgOffer)
	if addr4(o.msg.YourIPAddr) != ip || opt(o, 12) != "n1" {
		t.Errorf("offer of %s, host name %q", o.msg.YourIPAddr, opt(o, 12))
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

// A policy without an answer, or that says no, leaves firmware alone; systems
// get their address all the same.
func TestPolicyAnswers(t *testing.T) {
	for _, tc := range []struct {
		ans   Answer
		err   error
		event string
	}{
		{Answer{Kind: AnswerNone, Reason: "cordoned"}, nil, "dhcp.ignored"},
		{Answer{Kind: AnswerRefuse, Reason: "pool allows no discovery"}, nil, "dhcp.refused"},
		{Answer{}, errors.New("store is down"), ""},
	} {
		b := newBench(t, rackConfig(), PolicyFunc(func(context.Context, Client) (Answer, error) { return tc.ans, tc.err }))
		if r := b.send(pxe(packet(msgDiscover, mac1), 7), wire); r != nil {
			t.Errorf("%v: firmware was answered", tc.ans)
		}
		b.must(packet(msgDiscover, mac1), wire, msgOffer)
		if tc.event != "" && (b.rec.count(tc.event) != 1 || !strings.Contains(b.rec.String(), tc.ans.Reason)) {
			t.Errorf("%v: events %q; want %s with the reason", tc.ans, b.rec, tc.event)
		}
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

func TestOffersNeverTakenUp(t *testing.T) {
	b := newBench(t, rackConfig(), always(blob))
	for range 9 {
		b.must(pxe(packet(msgDiscover, mac1), 7), wire, msgOffer)
	}
	if b.rec.count("dhcp.unanswered") != 1 || !strings.Contains(b.rec.String(), "offered 5 times, never requested") {
		t.Errorf("events:\n%s", b.rec)
	}
	if b.rec.count("dhcp.offer") != 1 {
		t.Errorf("%d offers told; want the repetitions left out", b.rec.count("dhcp.offer"))
	}
	for range 9 {
		b.lease(mac2)
	}
	if b.rec.count("dhcp.unanswered") != 1 {
		t.Error("offers that were taken up were counted")
	}
}

// Leases survive a restart, with what TFTP and HTTP need to know.
func TestLeasesSurviveRestart(t *testing.T) {
	store := &MemoryLeases{}
	b := newBench(t, rackConfig(), always(blob))
	b.s.engine.store = store
	o := b.must(pxe(packet(msgDiscover, mac1), 7), wire, msgOffer)
	ip := addr4(o.msg.YourIPAddr)
	b.must(pxe(packet(msgRequest, mac1, 50, ip, 54, us), 7), wire, msgAck)
	saved, err := store.AllLeases(t.Context())
	if err != nil || len(saved) != 1 {
		t.Fatalf("AllLeases = %v, %v", saved, err)
	}
	again := newBench(t, rackConfig(), always(blob))
	again.s.engine.pool = newPool(rackConfig().Subnets, saved)
	if c := again.s.engine.clientAt(ip, "http"); c.MAC != mac1 || c.Kind != KindUEFIPXE || c.CPU() != "amd64" {
		t.Errorf("client at %s after a restart = %+v", ip, c)
	}
	if r := again.send(packet(msgRequest, mac2, 50, ip), wire); r == nil || r.msg.MessageType() != msgNak {
		t.Error("address given to another client after a restart")
	}
	if got := again.lease(mac1); got != ip {
		t.Errorf("after a restart: %s; want %s", got, ip)
	}
}

// A lease that cannot be stored is not promised.
func TestNoAckWithoutStore(t *testing.T) {
	b := newBench(t, rackConfig(), always(blob))
	b.s.engine.store = brokenStore{}
	o := b.must(packet(msgDiscover, mac1), wire, msgOffer)
	if r := b.send(packet(msgRequest, mac1, 50, addr4(o.msg.YourIPAddr), 54, us), wire); r != nil {
		t.Error("acknowledged a lease that was not stored")
	}
}

type brokenStore struct{}

func (brokenStore) AllLeases(context.Context) ([]Lease, error) {
	return nil, errors.New("disk is gone")
}
func (brokenStore) PutLease(context.Context, Lease) error { return errors.New("disk is gone") }

func TestConfigValidate(t *testing.T) {
	for _, tc := range []struct {
		name string
		edit func(*Config)
		want string
	}{
		{"good", func(*Config) {}, ""},
		{"no subnet", func(c *Config) { c.Subnets = nil }, "at least one subnet"},
		{"proxy needs none", func(c *Config) { c.Mode, c.Subnets = ModeProxy, nil }, ""},
		{"mode", func(c *Config) { c.Mode = "relay" }, `mode "relay"`},
		{"host bits", func(c *Config) { c.Subnets[0].Prefix = netip.MustParsePrefix("10.77.0.1/24") }, "did you mean 10.77.0.0/24"},
		{"pool outside", func(c *Config) { c.Subnets[0].Pools[0].Last = netip.MustParseAddr("10.77.1.1") }, "not inside the network"},
		{"pool with broadcast", func(c *Config) { c.Subnets[0].Pools[0].Last = netip.MustParseAddr("10.77.0.255") }, "not inside the network"},
		{"pool backwards", func(c *Config) { c.Subnets[0].Pools[0].Last = netip.MustParseAddr("10.77.0.5") }, "ends before it starts"},
		{"short lease", func(c *Config) { c.LeaseTime = 2 * time.Minute }, "shorter than 1h0m0s"},
		{"IPv6", func(c *Config) { c.Subnets[0].DNS = []netip.Addr{netip.MustParseAddr("fe80::1")} }, "want IPv4"},
		{"one address twice", func(c *Config) {
			ip := netip.MustParseAddr("10.77.0.9")
			c.Subnets[0].Reservations = []Reservation{{MAC: mac1, IP: ip}, {MAC: mac2, IP: ip}}
		}, "is reserved for 52:54:00:00:00:01 and for"},
		{"one MAC twice", func(c *Config) {
			c.Subnets[0].Reservations = []Reservation{{MAC: mac1, IP: netip.MustParseAddr("10.77.0.8")}, {MAC: mac1, IP: netip.MustParseAddr("10.77.0.9")}}
		}, "two reservations"},
		{"overlap", func(c *Config) { c.Subnets = append(c.Subnets, Subnet{Prefix: netip.MustParsePrefix("10.0.0.0/8")}) }, "overlaps"},
		{"node API", func(c *Config) { c.NodeAPI = "10.77.0.1:8443" }, "want http"},
	} {
		c := rackConfig()
		tc.edit(&c)
		err := c.Validate()
		if (err == nil) != (tc.want == "") || err != nil && !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: %v; want %q", tc.name, err, tc.want)
		}
	}
}

// The memories that packets of strangers can fill are bounded.
func TestMemoryIsBounded(t *testing.T) {
	w, bk := &watch{}, &book{}
	now := time.Unix(1e9, 0)
	for i := range bookLimit + bookLimit/4 {
		ip := netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})
		bk.put(ip, Client{MAC: fleet.MAC(mac1)}, now.Add(time.Duration(i)))
		w.once(ip.String(), "x", now.Add(time.Duration(i)*time.Second), time.Minute)
	}
	if len(bk.m) > bookLimit || len(w.m) > watchLimit {
		t.Errorf("book holds %d, watch %d; want at most %d and %d", len(bk.m), len(w.m), bookLimit, watchLimit)
	}
	if w.once("10.1.63.255", "x", now.Add(2*bookLimit*time.Second), time.Hour) {
		t.Error("the newest entry was forgotten")
	}
}
