package netboot

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"
)

// Clients that open connections and never end their request lose them after
// httpHeaderTime; others are served meanwhile.
func TestHTTPSlowLoris(t *testing.T) {
	s, _ := tftpBench(t, body(1000))
	addr := net.JoinHostPort("127.0.0.1", fmt.Sprint(s.Addrs().HTTP))
	var slow []net.Conn
	for i := range 50 {
		c, err := net.Dial("tcp4", addr)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		start := "GET /" + file + " HTTP/1.1\r\nHost: x\r\nX-Slow: "
		if _, err := io.WriteString(c, start[:1+i]); err != nil {
			t.Fatal(err)
		}
		slow = append(slow, c)
	}
	if resp, got := get(t, s, "GET", "/"+file, ""); resp.StatusCode != 200 || len(got) != 1000 {
		t.Errorf("%s, %d bytes while others dawdle", resp.Status, len(got))
	}
	for _, c := range slow {
		_ = c.SetReadDeadline(time.Now().Add(httpHeaderTime + 20*time.Second))
		if _, err := io.ReadAll(c); err != nil && !strings.Contains(err.Error(), "reset") {
			t.Fatalf("a connection without a request stays open: %v", err)
		}
	}
}

// A body, whatever it unpacks to, is not read.
func TestHTTPBodiesAreNotRead(t *testing.T) {
	s, _ := tftpBench(t, body(1000))
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	if _, err := z.Write(make([]byte, 64<<20)); err != nil {
		t.Fatal(err)
	}
	z.Close()
	for method, want := range map[string]int{"GET": 200, "POST": 405} {
		request := fmt.Sprintf("%s /%s HTTP/1.1\r\nHost: x\r\nContent-Encoding: gzip\r\nContent-Length: %d\r\n\r\n%s", method, file, bomb.Len(), &bomb)
		if resp, _ := exchange(t, s, request); resp.StatusCode != want {
			t.Errorf("%s with a bomb: %s; want %d", method, resp.Status, want)
		}
	}
}

// What a forged sender can have sent to somebody else: never more than one
// packet for one, and never much larger.
func TestDHCPDoesNotAmplify(t *testing.T) {
	victim := netip.MustParseAddrPort("203.0.113.9:53")
	for _, mode := range []Mode{ModeServer, ModeProxy} {
		cfg := rackConfig()
		cfg.Mode = mode
		for _, port4011 := range []bool{false, true} {
			b := newBench(t, cfg, always(blob))
			a := wire
			a.src, a.bootServer = victim, port4011
			for name, p := range packets(t) {
				if r := b.through(b.raw(p, a)); r != nil && len(r.msg.ToBytes()) > 2*len(p) {
					t.Errorf("%s, %s: %d bytes for %d", name, mode, len(r.msg.ToBytes()), len(p))
				}
			}
			for kind := range 20 {
				m := pxe(packet(dhcpv4.MessageType(kind), mac1), 7)
				if !port4011 {
					m.GatewayIPAddr = ip4(victim.Addr()) // a relay that is none of ours
				}
				p := m.ToBytes()
				r := b.raw(p, a)
				switch {
				case r == nil:
				case !port4011:
					t.Errorf("%s, type %d: answered through a relay that is not ours", mode, kind)
				case len(r.msg.ToBytes()) > 2*len(p):
					t.Errorf("%s, type %d: %d bytes for %d", mode, kind, len(r.msg.ToBytes()), len(p))
				}
			}
		}
	}
}

// A system that renews its lease, by whatever way, stays what it is: same
// address, no boot file, no event that would move the node.
func TestRenewalChangesNothing(t *testing.T) {
	b := newBench(t, rackConfig(), always(blob))
	ip := b.lease(mac1, 60, "udhcp 1.36")
	before := b.rec.String()
	for _, how := range []string{"unicast", "broadcast", "reboot"} {
		m := packet(msgRequest, mac1, 60, "udhcp 1.36")
		a := wire
		switch how {
		case "unicast":
			m.ClientIPAddr = ip4(ip)
			a.src, a.dst = netip.AddrPortFrom(ip, 68), us
		case "broadcast":
			m.ClientIPAddr = ip4(ip)
		case "reboot":
			m.Options[50] = ip4(ip)
		}
		r := b.must(m, a, msgAck)
		if addr4(r.msg.YourIPAddr) != ip || opt(r, 67) != "" || r.msg.BootFileName != "" || opt(r, 60) != "" {
			t.Errorf("%s: %s", how, r.msg.Summary())
		}
	}
	if after := b.rec.String(); strings.Contains(strings.TrimPrefix(after, before), "offer") {
		t.Errorf("events:\n%s", after)
	}
}
