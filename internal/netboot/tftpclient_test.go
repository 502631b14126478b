package netboot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"
)

// tftpBench is a server on loopback whose client at 127.0.0.1 may have body.
func tftpBench(t *testing.T, body []byte) (*Server, *recorder) {
	t.Helper()
	cfg := DefaultConfig()
	cfg.Mode, cfg.Ports, cfg.Listen = ModeOff, Ports{}, netip.MustParseAddr("127.0.0.1")
	s := &Server{Config: cfg, Policy: newSwapPolicy(always(installer(body)))}
	rec := start(t, s)
	s.engine.book.put(netip.MustParseAddr("127.0.0.1"), Client{MAC: mac1, Kind: KindUEFIPXE, Arch: ArchX64, HasArch: true}, time.Now())
	return s, rec
}

// tftpClient is a TFTP client that does only what a test says.
type tftpClient struct {
	t    *testing.T
	c    *net.UDPConn
	to   *net.UDPAddr // port 69, then the transfer's
	sent int
	got  int // datagrams
}

func newTFTPClient(t *testing.T, s *Server) *tftpClient {
	t.Helper()
	c, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return &tftpClient{t: t, c: c, to: &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: s.Addrs().TFTP}}
}

func (c *tftpClient) send(b []byte) {
	c.t.Helper()
	if _, err := c.c.WriteTo(b, c.to); err != nil {
		c.t.Fatal(err)
	}
	c.sent++
}

func (c *tftpClient) rrq(fields ...string) {
	c.t.Helper()
	c.send(append([]byte{0, opRRQ}, strings.Join(fields, "\x00")+"\x00"...))
}

func (c *tftpClient) ack(block int) {
	c.t.Helper()
	c.send([]byte{0, opACK, byte(block >> 8), byte(block)})
}

// recv returns the next packet, nil after wait.
func (c *tftpClient) recv(wait time.Duration) []byte {
	c.t.Helper()
	_ = c.c.SetReadDeadline(time.Now().Add(wait))
	b := make([]byte, 70000)
	n, from, err := c.c.ReadFromUDP(b)
	if errors.Is(err, os.ErrDeadlineExceeded) {
		return nil
	}
	if err != nil {
		c.t.Fatal(err)
	}
	c.to = from
	c.got++
	return b[:n]
}

// must returns the next packet, which has to start with prefix.
func (c *tftpClient) must(prefix string) []byte {
	c.t.Helper()
	b := c.recv(10 * time.Second)
	if !bytes.HasPrefix(b, []byte(prefix)) {
		c.t.Fatalf("received %.60q; want %q…", b, prefix)
	}
	return b
}

func data(block int) string { return string([]byte{0, opDATA, byte(block >> 8), byte(block)}) }

// fetch loads a whole file, acknowledging each window.
func (c *tftpClient) fetch(block, window int) []byte {
	c.t.Helper()
	var out []byte
	for n := 1; ; n++ {
		b := c.must(data(n & 0xffff))
		out = append(out, b[4:]...)
		last := len(b)-4 < block
		if n%window == 0 || last {
			c.ack(n & 0xffff)
		}
		if last {
			return out
		}
	}
}

func body(n int) []byte {
	b := make([]byte, n)
	for i := 0; i+8 <= n; i += 8 {
		binary.BigEndian.PutUint64(b[i:], uint64(i)*0x9e3779b97f4a7c15)
	}
	return b
}

const file = "b/0123456789ab/installer.efi"
