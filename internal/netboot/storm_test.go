package netboot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/turnout-project/turnout/internal/netboot/wiretest"
)

// A rack's worth of racks powers up at once: 500 machines get an address
// through a relay, load the file by TFTP and then by HTTP, each from its own
// address. Nobody fails, and memory stays where it was.
func TestBootStorm(t *testing.T) {
	const machines = 500
	h := wiretest.NewHost(t, "h1")
	wiretest.Link(t, "h1", "10.77.0.1/16")
	h.Run("ip", "addr", "add", "10.77.0.9/16", "dev", "eth0")
	h.Run("ip", "route", "add", "local", "10.77.16.0/20", "dev", "lo") // every machine's address
	want := body(300_000)
	cfg := rackConfig()
	cfg.Subnets[0].Prefix = netip.MustParsePrefix("10.77.0.0/16")
	cfg.Subnets[0].Pools = []Range{{netip.MustParseAddr("10.77.16.0"), netip.MustParseAddr("10.77.31.254")}}
	s := &Server{Config: cfg, Policy: always(installer(want)), Log: slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelWarn}))}
	start(t, s)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	ips := stormLeases(t, h, machines)
	seen := map[netip.Addr]bool{}
	for _, ip := range ips {
		seen[ip] = true
	}
	if len(seen) != machines {
		t.Fatalf("%d machines got %d addresses", machines, len(seen))
	}
	var conns []*net.UDPConn // sockets are made in the machines' namespace, used from here
	h.Do(func() error {
		for _, ip := range ips {
			c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: ip4(ip)})
			if err != nil {
				return err
			}
			conns = append(conns, c)
		}
		return nil
	})
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() {
			defer c.Close()
			if err := stormFetch(c, want, 1+i%3*3); err != nil {
				t.Errorf("machine %s: %v", ips[i], err)
			}
		})
	}
	wg.Wait()
	stormHTTP(t, h, ips, want)
	wiretest.WaitFor(t, "all transfers to be counted", func() bool { return s.Stats().TFTPSent.Load() == machines && s.Stats().HTTPSent.Load() == machines })
	if n := s.Stats().TFTPFailed.Load() + s.Stats().HTTPFailed.Load() + s.Stats().Overflow.Load(); n != 0 {
		t.Errorf("%d failures", n)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	if grown := int64(after.HeapInuse) - int64(before.HeapInuse); grown > 64<<20 {
		t.Errorf("heap grew by %d MiB", grown>>20)
	}
}

// stormLeases takes machines from DISCOVER to ACK, all at once.
func stormLeases(t *testing.T, h *wiretest.Host, n int) []netip.Addr {
	t.Helper()
	var c *net.UDPConn
	h.Do(func() (err error) {
		c, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(10, 77, 0, 9), Port: serverPort})
		return err
	})
	defer c.Close()
	_ = c.SetReadBuffer(4 << 20)
	send := func(m *dhcpv4.DHCPv4) {
		m.GatewayIPAddr = net.IP{10, 77, 0, 9}
		if _, err := c.WriteTo(m.ToBytes(), &net.UDPAddr{IP: net.IPv4(10, 77, 0, 1), Port: serverPort}); err != nil {
			t.Fatal(err)
		}
	}
	for i := range n {
		send(machine(msgDiscover, uint32(i)))
	}
	ips := make([]netip.Addr, n)
	buf := make([]byte, 2048)
	for left := n; left > 0; {
		_ = c.SetReadDeadline(time.Now().Add(5 * time.Second))
		k, err := c.Read(buf)
		if err != nil {
			t.Fatalf("%d machines without an answer: %v", left, err)
		}
		m, err := dhcpv4.FromBytes(buf[:k])
		if err != nil {
			t.Fatal(err)
		}
		i := int(m.ClientHWAddr[4])<<8 | int(m.ClientHWAddr[5])
		switch m.MessageType() {
		case msgOffer:
			r := machine(msgRequest, uint32(i))
			r.Options[50], r.Options[54] = m.YourIPAddr.To4(), m.ServerIdentifier().To4()
			send(r)
		case msgAck:
			ips[i] = addr4(m.YourIPAddr)
			left--
		default:
			t.Fatalf("machine %d: %s", i, m.MessageType())
		}
	}
	return ips
}

// stormFetch is a TFTP client that repeats itself by timer.
func stormFetch(c *net.UDPConn, want []byte, window int) error {
	server := net.UDPAddrFromAddrPort(netip.MustParseAddrPort("10.77.0.1:69"))
	last := fmt.Appendf(nil, "\x00\x01%s\x00octet\x00blksize\x001400\x00windowsize\x00%d\x00", file, window)
	to, next, inWindow := server, uint16(1), 0
	var got []byte
	buf := make([]byte, 2048)
	for tries := 0; ; {
		if last != nil {
			if _, err := c.WriteToUDP(last, to); err != nil {
				return err
			}
			last = nil
		}
		_ = c.SetReadDeadline(time.Now().Add(3 * time.Second))
		k, from, err := c.ReadFromUDP(buf)
		if errors.Is(err, os.ErrDeadlineExceeded) && tries < 5 {
			tries++
			last = []byte{0, opACK, byte((next - 1) >> 8), byte(next - 1)}
			if to == server {
				last = fmt.Appendf(nil, "\x00\x01%s\x00octet\x00blksize\x001400\x00windowsize\x00%d\x00", file, window)
			}
			inWindow = 0
			continue
		}
		if err != nil {
			return err
		}
		to = from
		switch block := uint16(buf[2])<<8 | uint16(buf[3]); {
		case buf[1] == opERROR:
			return fmt.Errorf("server: %q", buf[4:k])
		case buf[1] == opOACK:
			last = []byte{0, opACK, 0, 0}
		case buf[1] == opDATA && block == next:
			got = append(got, buf[4:k]...)
			next++
			if inWindow++; inWindow == window || k < 1404 {
				last, inWindow = []byte{0, opACK, buf[2], buf[3]}, 0
			}
			if k < 1404 {
				_, _ = c.WriteToUDP(last, to)
				if !bytes.Equal(got, want) {
					return fmt.Errorf("%d bytes that differ", len(got))
				}
				return nil
			}
		}
	}
}

// stormHTTP loads the file from each address, all at once.
func stormHTTP(t *testing.T, h *wiretest.Host, ips []netip.Addr, want []byte) {
	t.Helper()
	conns := make([]net.Conn, len(ips))
	h.Do(func() (err error) {
		for i, ip := range ips {
			d := net.Dialer{LocalAddr: &net.TCPAddr{IP: ip4(ip)}}
			if conns[i], err = d.Dial("tcp4", "10.77.0.1:8080"); err != nil {
				return err
			}
		}
		return nil
	})
	var wg sync.WaitGroup
	for i, c := range conns {
		wg.Go(func() {
			defer c.Close()
			tr := &http.Transport{DialContext: func(context.Context, string, string) (net.Conn, error) { return c, nil }}
			resp, err := (&http.Client{Transport: tr, Timeout: time.Minute}).Get("http://10.77.0.1:8080/" + file)
			if err != nil {
				t.Errorf("machine %s: %v", ips[i], err)
				return
			}
			defer resp.Body.Close()
			if b, err := io.ReadAll(resp.Body); err != nil || !bytes.Equal(b, want) {
				t.Errorf("machine %s: %s, %d bytes, %v", ips[i], resp.Status, len(b), err)
			}
		})
	}
	wg.Wait()
}
