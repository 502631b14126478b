package netboot

import (
	"bufio"
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

// transfer carries one file to one client. The library makes the packets
// (reading, block numbers and their roll-over to 0); transfer is the network
// below it: the library thinks that it speaks to a client that acknowledges
// each packet and never loses one. What the library lacks is done here:
// windows (RFC 7440), the timeout option, a fixed source address, repeating
// by timer only, and errors that are not shown to the client.
//
// The library gets exactly one packet for each one it sends, and its own
// timeout is out of reach; so its single-port mode never sees a packet for a
// transfer that has ended, which would panic.
type transfer struct {
	conn    *net.UDPConn // connected: packets of strangers never arrive
	rq      readRequest
	block   int
	windowN int
	timeout time.Duration
	size    int64
	file    io.ReadSeekCloser
	stats   *Stats

	started bool // the library has the request
	wrote   chan struct{}
	closing chan struct{}
	window  [][]byte // sent, not acknowledged; reused buffers
	inUse   int
	oack    []byte // not nil: the option acknowledgement awaits ACK 0
	resent  bool   // the window was repeated for a repeated ACK already
	end     time.Time
	err     error // why the transfer ended early
	sent    int64
	reply   [4]byte
}

func newTransfer(conn *net.UDPConn, rq readRequest, f io.ReadSeekCloser, size int64, cfg Config, st *Stats) *transfer {
	t := &transfer{
		conn: conn, rq: rq, file: f, size: size, stats: st,
		block: defaultBlock, windowN: 1, timeout: tftpTimeout,
		wrote: make(chan struct{}, 1), closing: make(chan struct{}),
		end: time.Now().Add(tftpMaxDuration),
	}
	if rq.block != 0 {
		t.block = min(rq.block, max(cfg.BlockSize, defaultBlock))
	}
	if rq.window != 0 {
		t.windowN = min(rq.window, cfg.WindowSize)
	}
	if rq.timeout != 0 {
		t.timeout = time.Duration(rq.timeout) * time.Second
	}
	t.window = make([][]byte, t.windowN)
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
		_, err := rf.ReadFrom(bufio.NewReaderSize(&exactReader{t.file, t.size}, 1<<16))
		if t.err == nil {
			t.err = err
		}
		return err
	}, nil)
	srv.SetTimeout(libraryPatience)
	srv.SetBlockSizeNegotiation(false)
	srv.SetBlockSize(max(t.block, defaultBlock+1))
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

// WriteTo takes a packet of the library and sends it.
func (t *transfer) WriteTo(p []byte, _ net.Addr) (int, error) {
	if len(p) < 4 {
		return len(p), nil
	}
	switch p[1] {
	case opOACK:
		t.oack = t.rq.oack(t.block, t.windowN, t.size)
		if t.oack != nil {
			t.put(t.oack)
		}
	case opDATA:
		t.window[t.inUse] = append(t.window[t.inUse][:0], p...)
		t.put(t.window[t.inUse])
		t.inUse++
	case opERROR:
		if t.err == nil { // reading the file failed; the reason is for our log
			t.put(errorPacket(tftpUndefined, "the server cannot read the file"))
		}
		return len(p), nil
	}
	t.wrote <- struct{}{}
	return len(p), nil
}

// put sends; errors show as missing acknowledgements.
func (t *transfer) put(p []byte) { _, _ = t.conn.Write(p) }

// ReadFrom gives the library its request, and then an acknowledgement when it
// may go on.
func (t *transfer) ReadFrom(p []byte) (int, net.Addr, error) {
	peer := t.conn.RemoteAddr()
	if !t.started {
		t.started = true
		rq := fmt.Appendf([]byte{0, opRRQ}, "file\x00octet\x00tsize\x000\x00blksize\x00%d\x00", t.block)
		return copy(p, rq), peer, nil
	}
	select {
	case <-t.wrote:
	case <-t.closing:
		return 0, nil, os.ErrDeadlineExceeded
	}
	block, err := t.advance()
	if err != nil {
		t.err = err
		return copy(p, errorPacket(tftpUndefined, "end")), peer, nil
	}
	t.reply = [4]byte{0, opACK}
	binary.BigEndian.PutUint16(t.reply[2:], block)
	return copy(p, t.reply[:]), peer, nil
}

// advance waits until the library may send its next packet, and returns the
// block to acknowledge to it.
func (t *transfer) advance() (uint16, error) {
	if t.inUse == 0 { // the library sent its option acknowledgement
		if t.oack == nil {
			return 0, nil
		}
		if err := t.await(0); err != nil {
			return 0, err
		}
		t.oack = nil
		return 0, nil
	}
	last := t.window[t.inUse-1]
	block := binary.BigEndian.Uint16(last[2:])
	if t.inUse < t.windowN && len(last) == t.block+4 {
		return block, nil
	}
	return block, t.await(block)
}

// await waits for the ACK of the last packet sent, and repeats what was not
// acknowledged: by timer, and for windows from where the client says.
func (t *transfer) await(block uint16) error {
	buf := make([]byte, 64)
	tries := 0
	deadline := time.Now().Add(t.timeout)
	for {
		if err := t.conn.SetReadDeadline(deadline); err != nil {
			return err
		}
		n, err := t.conn.Read(buf)
		switch {
		case errors.Is(err, os.ErrDeadlineExceeded):
			if tries++; tries > tftpRetries {
				return fmt.Errorf("client does not answer")
			}
			if time.Now().After(t.end) {
				return fmt.Errorf("transfer took longer than %s", tftpMaxDuration)
			}
			t.again()
			deadline = time.Now().Add(t.timeout)
			continue
		case err != nil: // ICMP: the client's port is closed
			return fmt.Errorf("client is gone: %w", err)
		case n < 4:
			continue
		}
		switch {
		case buf[0] == 0 && buf[1] == opERROR:
			return fmt.Errorf("%w: code %d %q", errClientAbort, buf[3], printable(buf[4:n]))
		case buf[0] != 0 || buf[1] != opACK:
			continue
		}
		got := binary.BigEndian.Uint16(buf[2:4])
		if got == block {
			t.confirm(t.inUse)
			t.resent = false
			return nil
		}
		if t.windowN > 1 && t.oack == nil && t.partial(got) {
			tries, deadline = 0, time.Now().Add(t.timeout)
		}
	}
}

// partial handles an ACK from inside the window: the client missed what
// follows it. An ACK from before the window repeats it once only, so that
// doubled packets do not double the traffic.
func (t *transfer) partial(got uint16) bool {
	first := binary.BigEndian.Uint16(t.window[0][2:])
	k := int(got - first + 1) // blocks confirmed; wraps with the numbers
	switch {
	case got == first-1 && !t.resent:
		t.resent = true
	case k >= 1 && k < t.inUse:
		t.confirm(k)
	default:
		return false
	}
	t.again()
	return true
}

// confirm drops the first k packets of the window and keeps their buffers.
func (t *transfer) confirm(k int) {
	for _, p := range t.window[:k] {
		t.sent += int64(len(p) - 4)
	}
	t.inUse -= k
	for i := range t.inUse {
		t.window[i], t.window[i+k] = t.window[i+k], t.window[i]
	}
}

// again sends everything that awaits acknowledgement.
func (t *transfer) again() {
	if t.oack != nil {
		t.put(t.oack)
		t.stats.TFTPRetransmits.Add(1)
		return
	}
	for _, p := range t.window[:t.inUse] {
		t.put(p)
		t.stats.TFTPRetransmits.Add(1)
	}
}
