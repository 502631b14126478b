package main

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/turnout-project/turnout/internal/netboot/mmsg"
)

const bootFile = "b/0123456789ab/installer.efi"

// load is one TFTP client.
type load struct {
	addr   netip.Addr
	to     mmsg.Peer
	tid    uint16 // of the server, 0 before its first packet
	next   uint16 // block
	got    int64
	in     int // blocks since the last ACK
	last   [4]byte
	done   bool
	heard  time.Time
	missed int
}

// tftpLoad loads a file with many clients, each with an address of its own
// behind one socket.
func tftpLoad(o options) error {
	to, err := netip.ParseAddrPort(o.server)
	if err != nil {
		return err
	}
	ls := make([]load, o.clients)
	for i := range ls {
		ls[i].addr = machineAddr(i)
	}
	n, d, err := tftpRun(o, to, ls)
	if err != nil {
		return err
	}
	report(n, d)
	return nil
}

func tftpRun(o options, to netip.AddrPort, ls []load) (int64, time.Duration, error) {
	const window = 4 << 20
	c, err := mmsg.Listen(netip.Addr{}, 0, o.block+4, window, 100*time.Millisecond)
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	by := map[netip.Addr]*load{}
	start := time.Now()
	for i := range ls {
		l := &ls[i]
		by[l.addr], l.next, l.heard = l, 1, start
		l.request(c, o, to)
	}
	c.Flush()
	var sum int64
	for left := len(ls); left > 0; {
		n, err := c.Receive()
		if err != nil {
			return 0, 0, err
		}
		now := time.Now()
		for i := range n {
			b, from, dst := c.Packet(i)
			l := by[dst]
			if l == nil || l.done || len(b) < 4 {
				continue
			}
			if l.heard = now; l.tid == 0 {
				l.tid, l.to = from.Port(), mmsg.NewPeer(from, dst)
			}
			if from.Port() != l.tid {
				continue
			}
			if err := l.packet(c, o, b); err != nil {
				return 0, 0, fmt.Errorf("%s: %w", dst, err)
			}
			if l.done {
				left--
				sum += l.got
			}
		}
		for i := range ls {
			if l := &ls[i]; n == 0 && !l.done && now.Sub(l.heard) > time.Second {
				if l.missed++; l.missed > 10 {
					return 0, 0, fmt.Errorf("%s: no answer after %d bytes", l.addr, l.got)
				}
				l.heard, l.in = now, 0
				if l.tid == 0 {
					l.request(c, o, to)
				} else {
					c.Send(&l.to, l.last[:], nil)
				}
			}
		}
		c.Flush()
	}
	return sum, time.Since(start), nil
}

func (l *load) request(c *mmsg.Conn, o options, to netip.AddrPort) {
	rq := fmt.Appendf(nil, "\x00\x01%s\x00octet\x00blksize\x00%d\x00", o.name, o.block)
	if o.window > 0 {
		rq = fmt.Appendf(rq, "windowsize\x00%d\x00", o.window)
	}
	p := mmsg.NewPeer(to, l.addr)
	c.Send(&p, nil, rq)
	c.Flush()
}

// packet takes a packet of the server.
func (l *load) packet(c *mmsg.Conn, o options, b []byte) error {
	block := uint16(b[2])<<8 | uint16(b[3])
	switch {
	case b[1] == 5:
		return fmt.Errorf("refused: %q", b[4:])
	case b[1] == 6:
		l.last = [4]byte{0, 4}
		c.Send(&l.to, l.last[:], nil)
	case b[1] == 3 && block == l.next:
		l.got += int64(len(b) - 4)
		l.next++
		l.in++
		end := len(b)-4 < o.block
		if o.size > 0 && l.got >= o.size && !end {
			c.Send(&l.to, nil, []byte("\x00\x05\x00\x00enough\x00"))
			l.done = true
			return nil
		}
		if l.last = [4]byte{0, 4, b[2], b[3]}; end || l.in >= max(o.window, 1) {
			c.Send(&l.to, l.last[:], nil)
			l.in = 0
		}
		l.done = end
	}
	return nil
}
