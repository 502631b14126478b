package netboot

import (
	"fmt"
	"net/netip"
	"runtime"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/netboot/mmsg"
)

// pump moves the packets of many transfers through one socket, on one thread:
// whatever acknowledgements have come are read with one system call, and what
// follows from them is sent with another. A transfer is told from others by
// its client's address and port. The socket, and with it the port that a
// client of ours sees as transfer identifier, lives as long as there are
// transfers.
//
// pin/tftp has a goroutine, a socket and two system calls a block for each
// transfer, which made it slower than dnsmasq; so it reads the files (see
// library), and does not send.
type pump struct {
	conn  *mmsg.Conn
	stats *Stats

	mu     sync.Mutex // guards what follows, every transfer in it, and sending
	peers  map[netip.AddrPort]*transfer
	ticked time.Time
	epoch  int // counts flushes, from 1
}

const (
	pumpTick   = 50 * time.Millisecond // how late a packet may be repeated
	pumpMany   = 16                    // transfers from which on packets are gathered
	pumpFull   = 256                   // transfers from which on another thread takes new ones
	pumpPacket = 128                   // largest packet of a client in a transfer that says anything to us
)

// pumps are the pumps that have transfers: one, and more of them, at most one
// for each processor, when there are many.
type pumps struct {
	listen netip.Addr
	stats  *Stats

	mu  sync.Mutex
	all []*pump
	wg  sync.WaitGroup
}

// join puts t into the pump with the fewest transfers.
func (s *pumps) join(t *transfer) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	var p *pump
	least := 0
	for _, x := range s.all {
		if n := x.len(); p == nil || n < least {
			p, least = x, n
		}
	}
	if p == nil || least >= pumpFull && len(s.all) < runtime.GOMAXPROCS(0) {
		conn, err := mmsg.Listen(s.listen, 0, pumpPacket, socketBuffer, pumpTick)
		if err != nil && p == nil {
			return err
		}
		if err == nil {
			p = &pump{conn: conn, stats: s.stats, peers: map[netip.AddrPort]*transfer{}, epoch: 1}
			s.all = append(s.all, p)
			s.wg.Go(func() { s.run(p) })
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	t.pump, p.peers[t.peer] = p, t
	return nil
}

func (p *pump) len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.peers)
}

// run works until p has no transfer left.
func (s *pumps) run(p *pump) {
	defer p.conn.Close()
	for {
		n, err := p.conn.Receive()
		if p.step(n, err) {
			gather()
		}
		if s.retire(p) {
			return
		}
	}
}

// retire takes an empty pump out.
func (s *pumps) retire(p *pump) bool {
	if p.len() > 0 {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if p.len() > 0 {
		return false
	}
	for i, x := range s.all {
		if x == p {
			s.all = append(s.all[:i], s.all[i+1:]...)
		}
	}
	return true
}

// gather lets others run that have something to send. With many clients each
// would else wake the thread by itself, and have its answer alone.
func gather() { _, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0) }

// step takes the n packets that came, and looks at the clock. It reports
// whether many more are to be expected soon.
func (p *pump) step(n int, err error) (more bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	defer func() { // a fault of ours costs the transfers of this pump only
		if x := recover(); x != nil {
			for _, t := range p.peers {
				t.finish(fmt.Errorf("internal error: %v", x))
			}
		}
	}()
	now := time.Now()
	for i := range n {
		b, from, _ := p.conn.Packet(i)
		if t := p.peers[from]; t != nil {
			t.packetIn(b, now)
		}
	}
	if err != nil {
		for _, t := range p.peers {
			t.finish(err)
		}
	}
	if n == 0 || now.Sub(p.ticked) >= pumpTick {
		p.ticked = now
		p.conn.Errors(func(to netip.AddrPort, err error) {
			if t := p.peers[to]; t != nil {
				t.gone(err)
			}
		})
		for _, t := range p.peers {
			t.tick(now)
		}
	}
	p.flush()
	return n > 0 && len(p.peers) >= pumpMany && n < len(p.peers)/2
}

// flush sends what transfers have queued.
func (p *pump) flush() {
	p.conn.Flush()
	p.epoch++
}
