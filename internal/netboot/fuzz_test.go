package netboot

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/insomniacslk/dhcp/dhcpv4"

	"github.com/turnout-project/turnout/internal/netboot/mmsg"
)

// FuzzTransfer has a client send whatever it likes: a transfer never counts
// more than the file has, ends well only with all of it, and asks for each
// piece of the file once.
func FuzzTransfer(f *testing.F) {
	f.Add(uint8(1), uint16(3000), []byte{4, 0, 0, 4, 0, 1, 4, 0, 2, 4, 0, 3, 4, 0, 4, 4, 0, 5, 4, 0, 6})
	f.Add(uint8(4), uint16(5000), []byte{4, 0, 0, 4, 0, 4, 4, 0, 4, 4, 0, 2, 4, 0, 8, 4, 0, 9, 4, 0, 10})
	f.Add(uint8(16), uint16(0), []byte{4, 0, 0, 4, 0, 1, 5, 0, 0})
	f.Add(uint8(3), uint16(65535), []byte{4, 0, 0, 9, 9, 9, 4, 255, 255, 4, 128, 0})
	conn, err := mmsg.Listen(netip.MustParseAddr("127.0.0.1"), 0, pumpPacket, 1<<20, time.Millisecond)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, window uint8, size uint16, packets []byte) {
		rq := readRequest{window: int(window), order: []string{"windowsize"}}
		st := &Stats{}
		tr := newTransfer(netip.MustParseAddrPort("127.0.0.1:9"), netip.Addr{}, rq, int64(size), DefaultConfig(), st)
		run := tr.block * tr.windowN
		tr.buf = make([]byte, 0, 3*run)
		tr.lib = newLibrary(tr, 2*run)
		p := &pump{conn: conn, stats: st, peers: map[netip.AddrPort]*transfer{tr.peer: tr}, epoch: 1}
		tr.pump = p
		tr.begin()
		content, fed, whole := body(int(size)), 0, false
		feed := func() {
			for tr.lib.ready == nil && !whole && !tr.ended {
				select {
				case <-tr.lib.answers:
				default:
				}
				n := min(len(content)-fed, tr.lib.chunk)
				whole = n < tr.lib.chunk
				_, _ = tr.lib.WriteTo(append([]byte{0, opDATA, 0, 1}, content[fed:fed+n]...), nil)
				fed += n
			}
		}
		now := time.Now()
		for len(packets) >= 3 && !tr.ended {
			feed()
			p.mu.Lock()
			tr.packetIn([]byte{0, packets[0], packets[1], packets[2]}, now)
			now = now.Add(300 * time.Millisecond)
			tr.tick(now)
			p.flush()
			p.mu.Unlock()
			packets = packets[3:]
			if at := int(tr.sent); at > int(size) || tr.out > 0 && tr.oack == nil && !bytes.HasPrefix(content[at:], tr.buf[tr.from:min(tr.from+tr.block, len(tr.buf))]) {
				t.Fatalf("%d of %d bytes are acknowledged, and what is sent next is not what follows", at, size)
			}
		}
		if tr.ended && tr.err == nil && tr.sent != int64(size) {
			t.Fatalf("ended well after %d of %d bytes", tr.sent, size)
		}
		select {
		case <-tr.lib.answers:
		default:
		}
	})
}

// FuzzOptions puts any bytes into the options that decide what a client is:
// whatever they hold, a reply that names a file keeps the rules of its kind.
func FuzzOptions(f *testing.F) {
	f.Add([]byte("PXEClient:Arch:00007:UNDI:003016"), []byte{6, 1, 8, 255}, []byte("iPXE"), []byte{0, 7}, []byte{1, 4, 1, 2, 3, 4}, byte(1), true)
	f.Add([]byte("HTTPClient:Arch:00016:UNDI:003001"), []byte{71, 4, 0, 0, 0, 0}, []byte("\x04iPXE"), []byte{0, 16}, []byte{5, 4, 10, 77, 0, 1}, byte(3), false)
	f.Add([]byte("HTTPClient"), []byte{0, 0, 71, 200}, []byte{255}, []byte{1}, []byte{11, 4, 1, 1, 1, 1}, byte(8), true)
	f.Fuzz(func(t *testing.T, o60, o43, o77, o93, o82 []byte, kind byte, boot bool) {
		m := packet(dhcpv4.MessageType(kind), mac1)
		for code, v := range map[uint8][]byte{60: o60, 43: o43, 77: o77, 93: o93, 82: o82} {
			if len(v) > 0 && len(v) < 256 {
				m.Options[code] = v
			}
		}
		for _, mode := range []Mode{ModeServer, ModeProxy} {
			c := rackConfig()
			c.Mode = mode
			e := fuzzEngine(c)
			a := wire
			a.bootServer = boot
			r := e.handle(t.Context(), m.ToBytes(), a)
			if r == nil {
				continue
			}
			got, err := dhcpv4.FromBytes(r.msg.ToBytes())
			if err != nil {
				t.Fatalf("our own reply does not parse: %v", err)
			}
			if len(o82) > 0 && len(o82) < 256 && !bytes.Equal(got.Options[82], o82) {
				t.Fatalf("option 82 % x came back as % x", o82, got.Options[82])
			}
			class := string(got.Options[60])
			if class == classPXE && len(got.Options[43]) == 0 && !e.hasBootServer {
				t.Fatal("option 60 PXEClient without 43, and nobody on port 4011")
			}
			if class == classHTTP && !bytes.HasPrefix(got.Options[67], []byte("http")) {
				t.Fatalf("HTTPClient with the file %q", got.Options[67])
			}
		}
	})
}

// fuzzEngine is an engine without sockets, quiet.
func fuzzEngine(c Config) *engine {
	s := &Server{Config: c, Policy: always(installer([]byte("x")))}
	s.init()
	s.engine.pool = newPool(s.Config.Subnets, nil)
	s.engine.httpPort = 8080
	return s.engine
}
