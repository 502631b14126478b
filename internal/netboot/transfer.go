package netboot

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"time"

	"github.com/turnout-project/turnout/internal/netboot/mmsg"
)

// Times of a TFTP transfer.
const (
	tftpTimeout     = time.Second // until a packet is sent again, unless the client asks for another
	tftpRetries     = 5           // then the client is gone
	tftpMaxDuration = 30 * time.Minute
)

// errClientAbort is the end of a transfer by an ERROR packet of the client.
var errClientAbort = errors.New("client ended the transfer")

// transfer carries one file to one client: block numbers that wrap to 0,
// windows (RFC 7440), the timeout option, a fixed source address, repeating
// by timer only, errors that tell nothing of the host. It is a state machine;
// its pump, or the goroutine that brings the next piece of the file, calls it
// with the pump's lock held.
type transfer struct {
	peer    netip.AddrPort
	to      mmsg.Peer
	rq      readRequest
	block   int // client's block size, bytes
	windowN int // client's window, blocks
	timeout time.Duration
	retries int
	size    int64
	stats   *Stats
	end     time.Time
	pump    *pump
	lib     *library
	crowd   bool              // one of many: small buffers
	pace    func(n int) error // waits until n bytes more may be read; nil: does not
	done    chan struct{}     // closed at the end

	buf      []byte // not acknowledged: buf[from:]
	from     int
	last     bool   // nothing of the file follows behind buf
	next     uint16 // number of the first block in buf
	out      int    // packets on their way; 0: waiting for the file
	oack     []byte // not nil: it is on its way, and no block
	deadline time.Time
	tries    int
	resent   bool
	epoch    int // pump's, when packets were queued last
	dead     int // packets told not to be received

	sent  int64 // acknowledged by the client
	err   error // why the transfer ended early
	ended bool
}

const (
	headerLen = 4        // opcode and block number before each block
	chunkSize = 16 << 10 // about so many bytes of the file are read at a time,
	few       = 100      // or 64 KiB with fewer transfers than that
)

func newTransfer(peer netip.AddrPort, local netip.Addr, rq readRequest, size int64, cfg Config, st *Stats) *transfer {
	t := &transfer{
		peer: peer, to: mmsg.NewPeer(peer, local), rq: rq, size: size, stats: st,
		block: defaultBlock, windowN: 1, timeout: tftpTimeout, retries: tftpRetries, next: 1,
		end: time.Now().Add(tftpMaxDuration), done: make(chan struct{}),
	}
	if rq.block != 0 {
		t.block = min(rq.block, max(cfg.BlockSize, defaultBlock))
	}
	if rq.window != 0 {
		t.windowN = max(1, min(rq.window, cfg.WindowSize, maxBlock/t.block))
	}
	if rq.timeout != 0 {
		t.timeout = time.Duration(rq.timeout) * time.Second
	}
	return t
}

// run sends f and returns how many bytes the client has for certain. It
// closes f.
func (t *transfer) run(ctx context.Context, ps *pumps, f io.ReadSeekCloser) (int64, error) {
	defer f.Close()
	run := t.block * t.windowN
	chunk := max(chunkSize/run, 1) * run
	if !t.crowd {
		chunk = maxBlock / run * run
	}
	t.buf = make([]byte, 0, chunk+run)
	t.lib = newLibrary(t, chunk)
	if err := ps.join(t); err != nil {
		return 0, fmt.Errorf("opening socket: %w", err)
	}
	defer context.AfterFunc(ctx, func() { t.abort(ctx.Err()) })()
	t.begin()
	t.lib.read(&pacedReader{f, t.pace}, t.size)
	<-t.done
	p := t.pump
	p.mu.Lock()
	defer p.mu.Unlock()
	return t.sent, t.err
}

// begin sends the option acknowledgement, if there is one.
func (t *transfer) begin() {
	p := t.pump
	p.mu.Lock()
	defer p.mu.Unlock()
	if t.oack = t.rq.oack(t.block, t.windowN, t.size); t.oack != nil {
		t.out = 1
		t.send(time.Now())
		p.flush()
	}
}

// abort ends a transfer from outside.
func (t *transfer) abort(err error) {
	t.pump.mu.Lock()
	defer t.pump.mu.Unlock()
	t.finish(err)
}

// finish ends the transfer; nil: the client has all of it.
func (t *transfer) finish(err error) {
	if t.ended {
		return
	}
	t.ended, t.err = true, err
	delete(t.pump.peers, t.peer)
	t.lib.end()
	close(t.done)
}

// fail ends the transfer and tells the client.
func (t *transfer) fail(err error, text string) {
	t.pump.conn.Send(&t.to, nil, errorPacket(tftpUndefined, text))
	t.finish(err)
}

// packetIn takes a packet of the client.
func (t *transfer) packetIn(b []byte, now time.Time) {
	if len(b) < headerLen || b[0] != 0 {
		return
	}
	switch b[1] {
	case opACK:
		t.ack(binary.BigEndian.Uint16(b[2:]), now)
	case opERROR:
		t.finish(fmt.Errorf("%w: code %d %q", errClientAbort, b[3], printable(b[headerLen:])))
	}
}

// ack moves on. In a window, an ACK from before it says that its first block
// was lost: it is sent again, once. More such ACKs are doubled packets, and
// doubling ours in turn would never end.
func (t *transfer) ack(got uint16, now time.Time) {
	if t.out == 0 {
		return
	}
	if t.oack != nil {
		if got == 0 {
			t.oack, t.out = nil, 0
			t.advance(now)
		}
		return
	}
	k := int(got-t.next) + 1 // wraps with the numbers
	switch {
	case k <= t.out:
		n := min(k*t.block, len(t.buf)-t.from)
		whole := t.last && t.from+k*t.block > len(t.buf)
		t.from += n
		t.sent += int64(n)
		t.next += uint16(k)
		t.out, t.dead = 0, 0
		if whole {
			t.finish(nil)
			return
		}
		t.advance(now)
	case t.out > 1 && got == t.next-1 && !t.resent:
		t.repeat(now)
		t.resent = true
	}
}

// advance sends the next window: whole ones, or all that is left at the end
// of the file, which a short block tells the client, empty if need be.
func (t *transfer) advance(now time.Time) {
	n := 0
	for {
		n = (len(t.buf) - t.from) / t.block
		if t.last {
			n++
		}
		if t.last || n >= t.windowN {
			break
		}
		if !t.lib.take(t) {
			return // it will call again
		}
	}
	t.out, t.tries, t.resent = min(n, t.windowN), 0, false
	t.send(now)
}

// send puts what is on its way on the wire.
func (t *transfer) send(now time.Time) {
	t.deadline, t.epoch = now.Add(t.timeout), t.pump.epoch
	if t.oack != nil {
		t.pump.conn.Send(&t.to, nil, t.oack)
		return
	}
	for i := range t.out {
		at := t.from + i*t.block
		number := t.next + uint16(i)
		t.pump.conn.Send(&t.to, []byte{0, opDATA, byte(number >> 8), byte(number)}, t.buf[at:min(at+t.block, len(t.buf))])
	}
}

func (t *transfer) repeat(now time.Time) {
	t.tries++
	if t.tries > t.retries {
		t.finish(errors.New("client does not answer"))
		return
	}
	t.stats.TFTPRetransmits.Add(1)
	t.send(now)
}

// tick looks at the clock.
func (t *transfer) tick(now time.Time) {
	switch {
	case now.After(t.end):
		t.finish(fmt.Errorf("transfer took longer than %s", tftpMaxDuration))
	case t.out > 0 && now.After(t.deadline):
		t.repeat(now)
	}
}

// gone is told by ICMP that the client's port is closed. Anybody can forge
// that, so it counts only if nothing was heard in between.
func (t *transfer) gone(err error) {
	if t.dead++; t.dead > 1 {
		t.finish(fmt.Errorf("client is gone: %w", err))
	}
}
