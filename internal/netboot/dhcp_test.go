package netboot

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
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
	// A relay that sends from another port gets its answers there (RFC 8357).
	other := far
	other.src = netip.AddrPortFrom(giaddr, 12067)
	for sub, port := range map[string]uint16{info + "\x13\x00": 12067, info: 67, info + "\x13\x02ab": 67} {
		for _, m := range []*dhcpv4.DHCPv4{relayed(packet(msgDiscover, mac1), sub), relayed(packet(msgRequest, mac1, 50, netip.MustParseAddr("10.9.9.9")), sub)} {
			if r := b.send(m, other); r == nil || r.to != netip.AddrPortFrom(giaddr, port) || opt(r, 82) != sub {
				t.Errorf("82 % x: %+v; want it at port %d", sub, r, port)
			}
		}
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
	cfg := rackConfig()
	cfg.Relays = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
	if r := newBench(t, cfg, always(blob)).send(relayed(packet(msgDiscover, mac3), sonic), far); r != nil {
		t.Error("a relay that is not one of ours was answered")
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
