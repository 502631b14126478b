package netboot

import (
	"bufio"
	"context"
	"encoding/binary"
	"encoding/hex"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// packets returns the captured packets of testdata by the first word of their
// names (P02, P07, …).
func packets(t testing.TB) map[string][]byte {
	t.Helper()
	f, err := os.Open("testdata/packets.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	out := map[string][]byte{}
	for sc := bufio.NewScanner(f); sc.Scan(); {
		name, data, _ := strings.Cut(sc.Text(), " ")
		b, err := hex.DecodeString(data)
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		name, _, _ = strings.Cut(name, "_")
		out[name] = b
	}
	if len(out) < 6 {
		t.Fatalf("testdata/packets.txt holds %d packets, want 6", len(out))
	}
	return out
}

// packet builds a request: type, MAC, then options.
func packet(t dhcpv4.MessageType, mac string, opts ...any) *dhcpv4.DHCPv4 {
	hw, err := net.ParseMAC(mac)
	if err != nil {
		panic(err)
	}
	zero := net.IP{0, 0, 0, 0}
	m := &dhcpv4.DHCPv4{OpCode: dhcpv4.OpcodeBootRequest, HWType: 1, ClientHWAddr: hw, TransactionID: dhcpv4.TransactionID{1, 2, 3, 4},
		ClientIPAddr: zero, YourIPAddr: zero, ServerIPAddr: zero, GatewayIPAddr: zero, Options: dhcpv4.Options{53: {byte(t)}}}
	for i := 0; i < len(opts); i += 2 {
		code := uint8(opts[i].(int))
		switch v := opts[i+1].(type) {
		case string:
			m.Options[code] = []byte(v)
		case []byte:
			m.Options[code] = v
		case netip.Addr:
			m.Options[code] = ip4(v)
		}
	}
	return m
}

// pxe adds what UEFI PXE firmware of the given architecture sends.
func pxe(m *dhcpv4.DHCPv4, arch uint16) *dhcpv4.DHCPv4 {
	m.Options[60] = []byte("PXEClient:Arch:00007:UNDI:003016")
	m.Options[93] = binary.BigEndian.AppendUint16(nil, arch)
	m.Options[94] = []byte{1, 3, 16}
	return m
}

const mac1, mac2, mac3 = "52:54:00:00:00:01", "52:54:00:00:00:02", "52:54:00:00:00:03"

// bench is a server without sockets.
type bench struct {
	t   *testing.T
	s   *Server
	rec *recorder
}

func newBench(t *testing.T, c Config, p Policy) *bench {
	t.Helper()
	b := &bench{t: t, rec: &recorder{}}
	b.s = &Server{Config: c, Policy: p, Log: testLog(t), Events: b.rec.event}
	if err := c.Validate(); err != nil {
		t.Fatal(err)
	}
	b.s.init()
	b.s.engine.pool = newPool(c.Subnets, nil)
	b.s.engine.httpPort, b.s.engine.hasBootServer = 8080, c.Ports.Proxy >= 0
	return b
}

// wire is how packets of clients on the rack's own network come in.
var wire = arrival{iface: "br0", ifindex: 7, addrs: []netip.Prefix{netip.MustParsePrefix("10.77.0.1/24")},
	src: netip.MustParseAddrPort("0.0.0.0:68"), dst: broadcastAll}

func (b *bench) raw(p []byte, a arrival) *reply {
	return b.s.engine.handle(context.Background(), p, a)
}

// send passes m to the server and checks that the reply survives the wire.
func (b *bench) send(m *dhcpv4.DHCPv4, a arrival) *reply {
	b.t.Helper()
	return b.through(b.raw(m.ToBytes(), a))
}

func (b *bench) through(r *reply) *reply {
	b.t.Helper()
	if r == nil {
		return nil
	}
	m, err := dhcpv4.FromBytes(r.msg.ToBytes())
	if err != nil {
		b.t.Fatalf("reply does not parse: %v", err)
	}
	r.msg = m
	return r
}

// must is send for requests that have to be answered by type t.
func (b *bench) must(m *dhcpv4.DHCPv4, a arrival, t dhcpv4.MessageType) *reply {
	b.t.Helper()
	r := b.send(m, a)
	if r == nil {
		b.t.Fatalf("no answer to %s; want %s", m.MessageType(), t)
	}
	if got := r.msg.MessageType(); got != t {
		b.t.Fatalf("answer to %s = %s (%s); want %s", m.MessageType(), got, r.msg.Message(), t)
	}
	return r
}

// lease takes mac through DISCOVER and REQUEST.
func (b *bench) lease(mac string, opts ...any) netip.Addr {
	b.t.Helper()
	o := b.must(packet(dhcpv4.MessageTypeDiscover, mac, opts...), wire, dhcpv4.MessageTypeOffer)
	ip := addr4(o.msg.YourIPAddr)
	req := packet(dhcpv4.MessageTypeRequest, mac, append(opts, 50, ip, 54, addr4(o.msg.ServerIdentifier()))...)
	a := b.must(req, wire, dhcpv4.MessageTypeAck)
	if got := addr4(a.msg.YourIPAddr); got != ip {
		b.t.Fatalf("ACK of %s after OFFER of %s", got, ip)
	}
	return ip
}

func opt(r *reply, code uint8) string { return string(r.msg.Options[code]) }
