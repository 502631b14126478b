package netboot

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/pin/tftp/v3"
)

// Times of a TFTP transfer.
const (
	tftpTimeout     = time.Second // until a packet is sent again, unless the client asks for another
	tftpRetries     = 5           // then the client is gone
	tftpMaxDuration = 30 * time.Minute
	libraryPatience = time.Hour // the library must never time out by itself, see transfer
)

// errClientAbort is the end of a transfer by an ERROR packet of the client.
var errClientAbort = errors.New("client ended the transfer")

// transfer carries one file to one client. The library reads the file and
// keeps the order of events; transfer is the network below it. The library
// works in lock step and wakes another goroutine for each packet, so it is
// asked for blocks as large as UDP can carry, and transfer cuts them into the
// client's: block numbers that wrap to 0, windows (RFC 7440), the timeout
// option, a fixed source address, repeating by timer only, errors that tell
// nothing of the host.
//
// The library gets exactly one acknowledgement for each packet it makes, and
// its own timeout is out of reach; so its single-port mode never sees a
// packet for a transfer that has ended, which would panic.
type transfer struct {
	conn    *net.UDPConn // connected: packets of strangers never arrive
	rq      readRequest
	block   int // client's block size, bytes
	windowN int // client's window, blocks
	chunk   int // library's block size: whole windows
	timeout time.Duration
	retries int
	size    int64
	file    io.ReadSeekCloser
	stats   *Stats
	end     time.Time

	started bool          // the library has its request
	wrote   chan struct{} // the library has made a packet
	closing chan struct{}
	packet  []byte // that packet; the library's own until it gets its ACK

	buf      []byte // headroom of one header, then what is not acknowledged
	next     uint16 // number of the first block in buf
	scratch  [64]byte
	deadline time.Time
	sent     int64 // acknowledged by the client
	err      error // why the transfer ended early
}

const headerLen = 4 // opcode and block number before each block

func newTransfer(conn *net.UDPConn, rq readRequest, f io.ReadSeekCloser, size int64, cfg Config, st *Stats) *transfer {
	t := &transfer{
		conn: conn, rq: rq, file: f, size: size, stats: st,
		block: defaultBlock, windowN: 1, timeout: tftpTimeout, retries: tftpRetries, next: 1,
		wrote: make(chan struct{}, 1), closing: make(chan struct{}),
		end: time.Now().Add(tftpMaxDuration),
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
	run := t.block * t.windowN
	t.chunk = maxBlock / run * run
	t.buf = make([]byte, headerLen, headerLen+t.chunk+run)
	return t
}

// run sends the file and returns how many bytes the client has for certain.
// It closes file and connection.
func (t *transfer) run() (int64, error) {
	defer t.file.Close()
	defer t.conn.Close()
	var srv *tftp.Server
	srv = tftp.NewServer(func(_ string, rf io.ReaderFrom) error {
		defer srv.Shutdown() // single-port: does not wait
		rf.(tftp.OutgoingTransfer).SetSize(t.size)
		_, err := rf.ReadFrom(&exactReader{t.file, t.size})
		if t.err == nil {
			t.err = err
		}
		return err
	}, nil)
	srv.SetTimeout(libraryPatience)
	srv.SetBlockSizeNegotiation(false)
	srv.SetBlockSize(max(t.chunk, defaultBlock+1))
	srv.EnableSinglePort()
	if err := srv.Serve(t); err != nil && t.err == nil {
		t.err = err
	}
	return t.sent, t.err
}

// exactReader reads exactly n bytes. A file that ends early is an error of a
// kind that the library does not take for the last block.
type exactReader struct {
	r io.Reader
	n int64
}

func (e *exactReader) Read(p []byte) (int, error) {
	if e.n == 0 {
		return 0, io.EOF
	}
	k, err := e.r.Read(p[:min(int64(len(p)), e.n)])
	e.n -= int64(k)
	if err == io.EOF && e.n > 0 {
		err = fmt.Errorf("file is %d bytes shorter than announced", e.n)
	}
	return k, err
}

// LocalAddr and the deadlines make transfer a net.PacketConn for
// the library. The only deadline it ever sets means "stop reading".
func (t *transfer) LocalAddr() net.Addr { return &net.UDPAddr{IP: net.IPv4zero, Port: 69} }

// Close is called by the library when it stops.
func (t *transfer) Close() error { return nil }

// SetReadDeadline is called by the library to end ReadFrom.
func (t *transfer) SetReadDeadline(time.Time) error {
	select {
	case <-t.closing:
	default:
		close(t.closing)
	}
	return nil
}

// SetDeadline does nothing.
func (t *transfer) SetDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing.
func (t *transfer) SetWriteDeadline(time.Time) error { return nil }

// WriteTo takes a packet of the library.
func (t *transfer) WriteTo(p []byte, _ net.Addr) (int, error) {
	if len(p) < headerLen {
		return len(p), nil
	}
	if p[1] == opERROR {
		if t.err == nil { // reading the file failed; the reason is for our log
			t.put(errorPacket(tftpUndefined, "the server cannot read the file"))
		}
		return len(p), nil
	}
	t.packet = p
	t.wrote <- struct{}{}
	return len(p), nil
}

// put sends; errors show as missing acknowledgements.
func (t *transfer) put(p []byte) { _, _ = t.conn.Write(p) }

// ReadFrom gives the library its request, and then an acknowledgement when it
// may go on. All sending to the client happens in here.
func (t *transfer) ReadFrom(p []byte) (int, net.Addr, error) {
	peer := t.conn.RemoteAddr()
	if !t.started {
		t.started = true
		rq := fmt.Appendf([]byte{0, opRRQ}, "file\x00octet\x00tsize\x000\x00blksize\x00%d\x00", t.chunk)
		return copy(p, rq), peer, nil
	}
	select {
	case <-t.wrote:
	case <-t.closing:
		return 0, nil, os.ErrDeadlineExceeded
	}
	if err := t.forward(); err != nil {
		t.err = err
		return copy(p, errorPacket(tftpUndefined, "end")), peer, nil
	}
	ack := []byte{0, opACK, 0, 0}
	if t.packet[1] == opDATA {
		copy(ack[2:], t.packet[2:headerLen])
	}
	return copy(p, ack), peer, nil
}

// forward sends the library's packet to the client, in the client's terms.
func (t *transfer) forward() error {
	if t.packet[1] == opOACK {
		oack := t.rq.oack(t.block, t.windowN, t.size)
		if oack == nil {
			return nil
		}
		_, err := t.exchange(func() { t.put(oack) }, 0, 1)
		return err
	}
	t.buf = append(t.buf, t.packet[headerLen:]...)
	return t.drain(len(t.packet)-headerLen < t.chunk)
}

// drain sends whole windows of buf, and keeps what is less than one for the
// next packet of the library; or all of it, if it is the end of the file,
// which a short block tells the client, empty if need be.
func (t *transfer) drain(last bool) error {
	from := headerLen
	for {
		n := (len(t.buf) - from) / t.block
		if last {
			n++
		}
		if n == 0 || !last && n < t.windowN {
			t.buf = append(t.buf[:headerLen], t.buf[from:]...)
			return nil
		}
		w := min(n, t.windowN)
		k, err := t.exchange(func() { t.putWindow(from, w) }, t.next, w)
		if err != nil {
			return err
		}
		bytes := min(k*t.block, len(t.buf)-from)
		from += bytes
		t.sent += int64(bytes)
		t.next += uint16(k)
		if last && k == n {
			return nil
		}
	}
}

// putWindow sends n blocks from buf[from:]. Each header is written over the
// bytes before its block for as long as the packet is sent.
func (t *transfer) putWindow(from, n int) {
	for i := range n {
		end := min(from+t.block, len(t.buf))
		head := t.buf[from-headerLen : from]
		saved := [headerLen]byte(head)
		head[0], head[1] = 0, opDATA
		binary.BigEndian.PutUint16(head[2:], t.next+uint16(i))
		t.put(t.buf[from-headerLen : end])
		copy(head, saved[:])
		from = end
	}
}

// exchange sends packets first to first+n-1 and waits until the client has
// acknowledged some; it returns how many. They are repeated by timer, and, in
// a window, once for an ACK from before it: the first one was lost. More such
// ACKs are doubled packets, and doubling ours in turn would never end.
func (t *transfer) exchange(send func(), first uint16, n int) (int, error) {
	resent := false
	for tries := 0; tries <= t.retries; tries++ {
		if tries > 0 {
			t.stats.TFTPRetransmits.Add(1)
		}
		now := time.Now()
		if now.After(t.end) {
			return 0, fmt.Errorf("transfer took longer than %s", tftpMaxDuration)
		}
		if err := t.arm(now); err != nil {
			return 0, err
		}
		send()
		for {
			got, err := t.readAck()
			if errors.Is(err, os.ErrDeadlineExceeded) {
				break
			}
			if err != nil {
				return 0, err
			}
			if k := int(got-first) + 1; k > 0 && k <= n { // wraps with the numbers
				return k, nil
			}
			if n > 1 && got == first-1 && !resent {
				resent = true
				break
			}
		}
	}
	return 0, errors.New("client does not answer")
}

// arm sets the time until which an answer is waited for: t.timeout, or up to
// a quarter more, which saves setting it for each packet.
func (t *transfer) arm(now time.Time) error {
	if t.deadline.Sub(now) >= t.timeout {
		return nil
	}
	t.deadline = now.Add(t.timeout + t.timeout/4)
	return t.conn.SetReadDeadline(t.deadline)
}

// readAck returns the number of the next ACK.
func (t *transfer) readAck() (uint16, error) {
	for {
		n, err := t.conn.Read(t.scratch[:])
		if errors.Is(err, os.ErrDeadlineExceeded) {
			return 0, os.ErrDeadlineExceeded
		}
		if err != nil { // ICMP: the client's port is closed
			return 0, fmt.Errorf("client is gone: %w", err)
		}
		if n < headerLen || t.scratch[0] != 0 {
			continue
		}
		switch t.scratch[1] {
		case opACK:
			return binary.BigEndian.Uint16(t.scratch[2:]), nil
		case opERROR:
			return 0, fmt.Errorf("%w: code %d %q", errClientAbort, t.scratch[3], printable(t.scratch[headerLen:n]))
		}
	}
}
