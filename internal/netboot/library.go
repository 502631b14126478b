package netboot

import (
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"time"

	"github.com/pin/tftp/v3"
)

// library has pin/tftp read one file. It is the network below a server of the
// library, with one client that asks for blocks of many of the real client's,
// and acknowledges each as soon as transfer has taken it, so that the library
// reads ahead. What the real client sees is transfer's.
//
// The library gets exactly one acknowledgement for each packet it makes, and
// its own timeout is out of reach; so its single-port mode never sees a
// packet for a transfer that has ended, which would panic.
type library struct {
	t       *transfer
	chunk   int // size of its blocks
	started bool
	closing chan struct{}
	answers chan answerTo // one for each packet of the library
	failed  error         // of reading the file

	// With the pump's lock held:
	ready  []byte // a packet that was not taken yet; the library's own
	broken bool   // reading failed; what was read before is still to be sent
}

// answerTo is what the library gets for a packet: it may go on, or not.
type answerTo struct {
	number [2]byte // of the block that was taken
	end    bool
}

const libraryPatience = time.Hour // the library must never time out by itself

func newLibrary(t *transfer, chunk int) *library {
	return &library{t: t, chunk: chunk, closing: make(chan struct{}), answers: make(chan answerTo, 1)}
}

// read returns when f was read to its end, or the transfer ended.
func (l *library) read(f io.Reader, size int64) {
	var srv *tftp.Server
	srv = tftp.NewServer(func(_ string, rf io.ReaderFrom) error {
		defer srv.Shutdown() // single-port: does not wait
		rf.(tftp.OutgoingTransfer).SetSize(size)
		_, l.failed = rf.ReadFrom(&exactReader{f, size})
		return l.failed
	}, nil)
	srv.SetTimeout(libraryPatience)
	srv.SetBlockSizeNegotiation(false)
	srv.SetBlockSize(max(l.chunk, defaultBlock+1))
	srv.EnableSinglePort()
	err := srv.Serve(l)
	if err = errors.Join(err, l.failed); err != nil {
		l.t.readFailed(err)
	}
}

// readFailed ends the transfer behind what was read, if it has not ended.
func (t *transfer) readFailed(err error) {
	p := t.pump
	p.mu.Lock()
	defer p.mu.Unlock()
	t.lib.broken, t.lib.failed = true, err
	if t.out == 0 && !t.ended {
		t.fail(err, cannotRead)
		p.flush()
	}
}

const cannotRead = "the server cannot read the file"

// take moves the packet that is ready to the transfer's buffer. Without one
// the transfer waits: WriteTo will wake it.
func (l *library) take(t *transfer) bool {
	if l.ready == nil {
		if l.broken {
			t.fail(l.failed, cannotRead)
		}
		return false
	}
	if t.epoch == t.pump.epoch { // buf is in the queue
		t.pump.flush()
	}
	t.buf = append(t.buf[:copy(t.buf[:cap(t.buf)], t.buf[t.from:])], l.ready[headerLen:]...)
	t.from = 0
	t.last = len(l.ready)-headerLen < l.chunk
	l.answers <- answerTo{number: [2]byte(l.ready[2:headerLen])}
	l.ready = nil
	return true
}

// end stops the library: with the packet that is ready, else with its next.
func (l *library) end() {
	if l.ready != nil {
		l.ready = nil
		l.answers <- answerTo{end: true}
	}
}

// WriteTo takes a packet of the library.
func (l *library) WriteTo(p []byte, _ net.Addr) (int, error) {
	switch {
	case len(p) < headerLen:
	case p[1] == opOACK:
		l.answers <- answerTo{}
	case p[1] == opDATA:
		t := l.t
		t.pump.mu.Lock()
		defer t.pump.mu.Unlock()
		switch l.ready = p; {
		case t.ended:
			l.end()
		case t.out == 0:
			t.advance(time.Now())
			t.pump.flush()
		}
	}
	return len(p), nil
}

// ReadFrom gives the library its request, and then an acknowledgement when it
// may go on.
func (l *library) ReadFrom(p []byte) (int, net.Addr, error) {
	peer := &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 1}
	if !l.started {
		l.started = true
		rq := fmt.Appendf([]byte{0, opRRQ}, "file\x00octet\x00tsize\x000\x00blksize\x00%d\x00", l.chunk)
		return copy(p, rq), peer, nil
	}
	select {
	case a := <-l.answers:
		if a.end {
			return copy(p, errorPacket(tftpUndefined, "end")), peer, nil
		}
		return copy(p, []byte{0, opACK, a.number[0], a.number[1]}), peer, nil
	case <-l.closing:
		return 0, nil, os.ErrDeadlineExceeded
	}
}

// LocalAddr and the deadlines make library a net.PacketConn. The only
// deadline ever set means "stop reading".
func (l *library) LocalAddr() net.Addr { return &net.UDPAddr{IP: net.IPv4zero, Port: 69} }

// Close is called by the library when it stops.
func (l *library) Close() error { return nil }

// SetReadDeadline is called by the library to end ReadFrom.
func (l *library) SetReadDeadline(time.Time) error {
	select {
	case <-l.closing:
	default:
		close(l.closing)
	}
	return nil
}

// SetDeadline does nothing.
func (l *library) SetDeadline(time.Time) error { return nil }

// SetWriteDeadline does nothing.
func (l *library) SetWriteDeadline(time.Time) error { return nil }

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

// pacedReader waits for its turn with what it has read.
type pacedReader struct {
	r    io.Reader
	pace func(n int) error
}

func (p *pacedReader) Read(b []byte) (int, error) {
	n, err := p.r.Read(b)
	if n > 0 && p.pace != nil {
		if perr := p.pace(n); perr != nil {
			return n, perr
		}
	}
	return n, err
}
