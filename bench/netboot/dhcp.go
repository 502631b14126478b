package main

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"time"

	"github.com/turnout-project/turnout/internal/netboot/mmsg"
)

// relay is the address of the relay agent that all machines are behind.
var relay = netip.AddrFrom4([4]byte{10, 78, 0, 9})

// dhcpLoad takes machines from DISCOVER to ACK and prints how many a second.
func dhcpLoad(o options) error {
	start := time.Now()
	ips, repeats, err := lease(o)
	if err != nil {
		return err
	}
	fmt.Printf("%d repeated\n%.0f\n", repeats, float64(len(ips))/time.Since(start).Seconds())
	return nil
}

// lease returns the addresses that o.clients machines got.
func lease(o options) ([]netip.Addr, int, error) {
	server, err := netip.ParseAddr(o.server)
	if err != nil {
		return nil, 0, err
	}
	c, err := mmsg.Listen(relay, 67, 1500, 8<<20, 500*time.Millisecond)
	if err != nil {
		return nil, 0, err
	}
	defer c.Close()
	to := mmsg.NewPeer(netip.AddrPortFrom(server, 67), relay)
	ips := make([]netip.Addr, o.clients)
	open := map[uint32]bool{}
	started, repeats, silent := 0, 0, 0
	begin := func() {
		id := uint32(started)
		started++
		open[id] = true
		c.Send(&to, nil, request(id, 1, netip.Addr{}, nil))
	}
	for started < min(o.clients, o.parallel) {
		begin()
	}
	c.Flush()
	for len(open) > 0 {
		n, err := c.Receive()
		if err != nil {
			return nil, 0, err
		}
		if n == 0 {
			if silent++; silent > 20 {
				return nil, 0, fmt.Errorf("%d machines get no answer", len(open))
			}
			for id := range open {
				repeats++
				c.Send(&to, nil, request(id, 1, netip.Addr{}, nil))
			}
		}
		for i := range n {
			silent = 0
			b, _, _ := c.Packet(i)
			id, kind, ip, server := reply(b)
			switch {
			case !open[id]:
			case kind == 2:
				c.Send(&to, nil, request(id, 3, ip, server))
			case kind == 5:
				ips[id] = ip
				delete(open, id)
				if started < o.clients {
					begin()
				}
			default:
				return nil, 0, fmt.Errorf("machine %d: DHCP message type %d", id, kind)
			}
		}
		c.Flush()
	}
	for i, ip := range ips {
		if !ip.IsValid() {
			return nil, repeats, fmt.Errorf("machine %d has no address", i)
		}
	}
	return ips, repeats, nil
}

// request is a packet of UEFI firmware: 1 DISCOVER, 3 REQUEST.
func request(id uint32, kind byte, ip netip.Addr, server []byte) []byte {
	b := make([]byte, 240, 320)
	b[0], b[1], b[2], b[3] = 1, 1, 6, 1
	binary.BigEndian.PutUint32(b[4:], id)
	copy(b[24:], relay.AsSlice())
	b[28], b[29] = 0x52, 0x54
	binary.BigEndian.PutUint32(b[30:], id)
	copy(b[236:], "\x63\x82\x53\x63")
	b = append(b, 53, 1, kind, 57, 2, 5, 192, 55, 7, 1, 3, 43, 54, 60, 66, 67)
	b = append(append(b, 60, 32), "PXEClient:Arch:00007:UNDI:003016"...)
	b = append(b, 93, 2, 0, 7, 94, 3, 1, 3, 16)
	if kind == 3 {
		b = append(append(b, 50, 4), ip.AsSlice()...)
		b = append(append(b, 54, 4), server...)
	}
	return append(b, 255)
}

// reply reads what matters in a packet of the server.
func reply(b []byte) (id uint32, kind byte, ip netip.Addr, server []byte) {
	if len(b) < 240 {
		return 1<<32 - 1, 0, ip, nil
	}
	ip, _ = netip.AddrFromSlice(b[16:20])
	for o := b[240:]; len(o) > 2 && o[0] != 255; {
		if o[0] == 0 {
			o = o[1:]
			continue
		}
		n := 2 + int(o[1])
		if n > len(o) {
			break
		}
		switch o[0] {
		case 53:
			kind = o[2]
		case 54:
			server = append([]byte{}, o[2:n]...)
		}
		o = o[n:]
	}
	return binary.BigEndian.Uint32(b[4:]), kind, ip, server
}
