package netboot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/turnout-project/turnout/internal/netboot/wiretest"
)

const envBenchDHCP = "NETBOOT_BENCH_DHCP"

// benchDHCPServer serves 10.77.0.0/16 until it is killed.
func benchDHCPServer() {
	cfg := rackConfig()
	cfg.Ports.HTTP, cfg.Ports.TFTP = -1, -1
	cfg.Subnets[0].Prefix = netip.MustParsePrefix("10.77.0.0/16")
	cfg.Subnets[0].Pools = []Range{{netip.MustParseAddr("10.77.16.0"), netip.MustParseAddr("10.77.255.254")}}
	panic((&Server{Config: cfg, Policy: always(blob)}).Serve(context.Background()))
}

// BenchmarkDHCP takes machines from DISCOVER to ACK, sixty-four at a time, as
// a relay would pass them on. Compare with dnsmasq in one run only.
func BenchmarkDHCP(b *testing.B) {
	exe, err := os.Executable()
	if err != nil {
		b.Fatal(err)
	}
	for _, name := range []string{"dnsmasq", "ours"} {
		b.Run(name, func(b *testing.B) {
			h := wiretest.NewHost(b, "bench0")
			wiretest.Link(b, "bench0", "10.77.0.9/16")
			h.Run("ip", "addr", "add", "10.77.0.1/16", "dev", "eth0")
			dir := b.TempDir()
			cmd := h.Command("dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--port=0", "--user=root", "--pid-file="+dir+"/pid",
				"--dhcp-leasefile="+dir+"/leases", "--dhcp-range=10.77.16.0,10.77.255.254,255.255.0.0", "--dhcp-lease-max=60000", "--quiet-dhcp", "--no-ping",
				"--dhcp-authoritative", "--dhcp-boot=x.efi")
			if name == "ours" {
				cmd = h.Command(exe)
				cmd.Env = append(os.Environ(), envBenchDHCP+"=1")
			}
			if err := cmd.Start(); err != nil {
				b.Fatal(err)
			}
			b.Cleanup(func() { _ = cmd.Process.Kill(); _ = cmd.Wait() })
			wiretest.WaitFor(b, "the server", func() bool { return h.Run("ss", "-ulnH", "sport = :67") != "" })
			g := newGenerator(b)
			g.run(100) // warm
			b.ResetTimer()
			g.run(b.N)
			b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "leases/s")
			b.ReportMetric(float64(g.repeats), "repeats")
		})
	}
}

// generator is many machines behind one relay.
type generator struct {
	b       *testing.B
	c       *net.UDPConn
	next    uint32
	repeats int
}

func newGenerator(b *testing.B) *generator {
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 77, 0, 9), Port: serverPort})
	if err != nil {
		b.Fatal(err)
	}
	_ = c.SetReadBuffer(4 << 20)
	b.Cleanup(func() { c.Close() })
	return &generator{b: b, c: c}
}

func (g *generator) send(m *dhcpv4.DHCPv4, id uint32) {
	m.GatewayIPAddr = net.IP{10, 77, 0, 9}
	m.TransactionID = dhcpv4.TransactionID{byte(id >> 24), byte(id >> 16), byte(id >> 8), byte(id)}
	if _, err := g.c.WriteTo(m.ToBytes(), &net.UDPAddr{IP: net.IPv4(10, 77, 0, 1), Port: serverPort}); err != nil {
		g.b.Fatal(err)
	}
}

func machine(t dhcpv4.MessageType, id uint32) *dhcpv4.DHCPv4 {
	return pxe(packet(t, fmt.Sprintf("52:54:%02x:%02x:%02x:%02x", byte(id>>24), byte(id>>16), byte(id>>8), byte(id))), 7)
}

// run leases n addresses to new machines.
func (g *generator) run(n int) {
	const parallel = 64
	started, open := 0, map[uint32]time.Time{}
	begin := func() {
		g.next++
		started++
		open[g.next] = time.Now()
		g.send(machine(msgDiscover, g.next), g.next)
	}
	for started < min(n, parallel) {
		begin()
	}
	buf := make([]byte, 2048)
	for len(open) > 0 {
		_ = g.c.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		k, err := g.c.Read(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			for id := range open {
				g.repeats++
				g.send(machine(msgDiscover, id), id)
			}
			continue
		}
		if err != nil {
			g.b.Fatal(err)
		}
		m, err := dhcpv4.FromBytes(buf[:k])
		if err != nil {
			g.b.Fatal(err)
		}
		x := m.TransactionID
		id := uint32(x[0])<<24 | uint32(x[1])<<16 | uint32(x[2])<<8 | uint32(x[3])
		switch _, ok := open[id]; {
		case !ok:
		case m.MessageType() == msgOffer:
			r := machine(msgRequest, id)
			r.Options[50], r.Options[54] = m.YourIPAddr.To4(), m.ServerIdentifier().To4()
			g.send(r, id)
		case m.MessageType() == msgAck:
			delete(open, id)
			if started < n {
				begin()
			}
		default:
			g.b.Fatalf("machine %d: %s", id, m.MessageType())
		}
	}
}
