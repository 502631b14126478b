package mmsg

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

var loopback = netip.MustParseAddr("127.0.0.1")

func listen(t *testing.T) *Conn {
	t.Helper()
	c, err := Listen(netip.Addr{}, 0, 64, 1<<20, 50*time.Millisecond)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// More datagrams than fit one call arrive whole and in order, with the
// addresses of both ends; what is longer than asked for is cut.
func TestBatches(t *testing.T) {
	a, b := listen(t), listen(t)
	from := netip.MustParseAddr("127.0.0.7")
	to := NewPeer(netip.AddrPortFrom(loopback, uint16(b.Port())), from)
	const n = Batch + 20
	for i := range n {
		a.Send(&to, []byte{byte(i)}, []byte(fmt.Sprint("body ", i)))
	}
	a.Send(&to, nil, bytes.Repeat([]byte("x"), 100))
	a.Send(&to, nil, nil)
	a.Flush()
	var got [][]byte
	for len(got) < n+2 {
		k, err := b.Receive()
		if err != nil || k == 0 {
			t.Fatalf("%d datagrams after %d, %v", k, len(got), err)
		}
		for i := range k {
			p, src, dst := b.Packet(i)
			if src != netip.AddrPortFrom(from, uint16(a.Port())) || dst != loopback {
				t.Fatalf("from %s to %s", src, dst)
			}
			got = append(got, bytes.Clone(p))
		}
	}
	for i := range n {
		if want := append([]byte{byte(i)}, fmt.Sprint("body ", i)...); !bytes.Equal(got[i], want) {
			t.Errorf("datagram %d: %q", i, got[i])
		}
	}
	if len(got[n]) != 64 || len(got[n+1]) != 0 {
		t.Errorf("%d and %d bytes; want 64 and 0", len(got[n]), len(got[n+1]))
	}
}

func TestReceiveEndsAfterItsTime(t *testing.T) {
	if n, err := listen(t).Receive(); n != 0 || err != nil {
		t.Errorf("%d, %v; want 0", n, err)
	}
}

// A closed port is told with its address, and costs no other datagram.
func TestClosedPort(t *testing.T) {
	a, b := listen(t), listen(t)
	gone, err := net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	if err != nil {
		t.Fatal(err)
	}
	closed := gone.LocalAddr().(*net.UDPAddr).AddrPort()
	gone.Close()
	dead, live := NewPeer(closed, netip.Addr{}), NewPeer(netip.AddrPortFrom(loopback, uint16(b.Port())), netip.Addr{})
	for range 3 {
		a.Send(&dead, nil, []byte("x"))
		a.Send(&live, nil, []byte("y"))
		a.Flush()
	}
	live3 := 0
	for live3 < 3 {
		k, err := b.Receive()
		if err != nil || k == 0 {
			t.Fatalf("%d of 3 datagrams, %v", live3, err)
		}
		live3 += k
	}
	told := 0
	for told == 0 {
		if _, err := a.Receive(); err != nil {
			t.Fatal(err)
		}
		a.Errors(func(at netip.AddrPort, err error) {
			if at != closed || !errors.Is(err, unix.ECONNREFUSED) {
				t.Errorf("%s: %v", at, err)
			}
			told++
		})
	}
}
