package netboot

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"
)

// tftpServer takes read requests on its port and starts transfers.
type tftpServer struct {
	engine *engine
	conn   *packetConn
	pumps  *pumps

	mu     sync.Mutex
	active map[netip.AddrPort]bool
	perIP  map[netip.Addr]int
	wg     sync.WaitGroup
}

// strangerRetries is how often a packet is repeated for an address that never
// asked us by DHCP: it may be forged, and its owner get what it never wanted.
const strangerRetries = 1

// perClient bounds what one address may have open. Firmware needs two (a
// probe that is just ending and the file); a rack behind NAT needs many.
func (s *tftpServer) perClient() int { return max(8, s.engine.governor.get().Transfers/4) }

// serve reads requests until ctx ends, then breaks off what still runs.
func (s *tftpServer) serve(ctx context.Context) error {
	defer s.pumps.wg.Wait()
	defer s.wg.Wait()
	buf := make([]byte, 2048)
	for {
		n, cm, src, err := s.conn.ReadFrom(buf)
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			if isTemporary(err) {
				continue
			}
			return fmt.Errorf("reading TFTP socket: %w", err)
		}
		local := netip.Addr{}
		if cm != nil {
			local = addr4(cm.Dst)
		}
		s.request(ctx, clone(buf[:n]), addrPort(src), local)
	}
}

// request starts a transfer in the background. A repeated request of a client
// whose transfer runs is dropped: answering it would send everything twice.
func (s *tftpServer) request(ctx context.Context, b []byte, src netip.AddrPort, local netip.Addr) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.active[src] {
		return
	}
	if len(s.active) >= s.engine.governor.get().Transfers || s.perIP[src.Addr()] >= s.perClient() {
		s.engine.stats.TFTPRefused.Add(1)
		if s.engine.watch.once(src.Addr().String(), "tftp.full", s.engine.now(), time.Minute) {
			s.engine.log.Warn("tftp: too many transfers, request dropped", "client", src, "running", len(s.active))
		}
		return // no error packet: the client repeats its request after its timeout
	}
	s.active[src] = true
	s.perIP[src.Addr()]++
	s.wg.Add(1)
	go func() {
		defer s.done(src)
		s.answer(ctx, b, src, local)
	}()
}

// running is how many transfers there are, those that are about to start too.
func (s *tftpServer) running() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.active)
}

func (s *tftpServer) done(src netip.AddrPort) {
	if p := recover(); p != nil {
		s.engine.log.Error("tftp: internal error; transfer dropped", "client", src, "panic", p)
	}
	s.mu.Lock()
	delete(s.active, src)
	if s.perIP[src.Addr()]--; s.perIP[src.Addr()] <= 0 {
		delete(s.perIP, src.Addr())
	}
	s.mu.Unlock()
	s.wg.Done()
}

func (s *tftpServer) answer(ctx context.Context, b []byte, src netip.AddrPort, local netip.Addr) {
	rq, rerr := parseRRQ(b)
	if rerr == nil && rq.name != "" {
		var c Client
		var ans Answer
		c, ans, rerr = s.engine.tftpFile(ctx, src.Addr(), rq)
		if rerr == nil {
			s.transfer(ctx, rq, c, ans, src, local)
			return
		}
	}
	s.engine.stats.TFTPRefused.Add(1)
	s.engine.log.Info("tftp: refused", "client", src, "file", printable([]byte(rq.raw)), "code", rerr.code, "reason", rerr.text)
	sendError(local, src, rerr.code, rerr.text)
}

// tftpFile asks the policy what the address may have.
func (e *engine) tftpFile(ctx context.Context, ip netip.Addr, rq readRequest) (Client, Answer, *requestError) {
	c := e.clientSoon(ctx, ip, "tftp")
	ans, err := decide(ctx, e.policy, c)
	switch {
	case err != nil:
		e.log.Error("tftp: deciding", "client", c.Name(), "error", err)
		return c, ans, &requestError{tftpUndefined, "the server cannot decide now, try again"}
	case !ans.Serves():
		return c, ans, &requestError{tftpDenied, "not allowed: " + reasonText(ans)}
	case rq.name != ans.File:
		return c, ans, &requestError{tftpNotFound, "no such file"}
	}
	return c, ans, nil
}

func reasonText(a Answer) string {
	if a.Reason != "" {
		return printable([]byte(a.Reason))
	}
	return string(a.Kind)
}

// sendError refuses a request.
func sendError(local netip.Addr, to netip.AddrPort, code byte, text string) {
	if conn, err := dialFrom(local, to); err == nil {
		_, _ = conn.Write(errorPacket(code, text))
		conn.Close()
	}
}

// sourceFor is the address from which to answer a client; invalid: whatever
// the kernel chooses.
func sourceFor(local netip.Addr, to netip.AddrPort) netip.Addr {
	conn, err := dialFrom(local, to)
	if err != nil {
		return netip.Addr{}
	}
	defer conn.Close()
	return addrPort(conn.LocalAddr()).Addr()
}

// dialFrom opens a socket to the client from the very address it wrote to:
// from a port of our choice, as RFC 1350 section 4 wants.
func dialFrom(local netip.Addr, to netip.AddrPort) (*net.UDPConn, error) {
	var from *net.UDPAddr
	if local.Is4() && !local.IsUnspecified() && !local.IsMulticast() && local != broadcastAll {
		from = &net.UDPAddr{IP: ip4(local)}
	}
	conn, err := net.DialUDP("udp4", from, net.UDPAddrFromAddrPort(to))
	if err != nil && from != nil { // a subnet's broadcast address, perhaps
		conn, err = net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(to))
	}
	return conn, err
}

func (s *tftpServer) transfer(ctx context.Context, rq readRequest, c Client, ans Answer, src netip.AddrPort, local netip.Addr) {
	e := s.engine
	f, err := ans.Open()
	if err != nil {
		e.stats.TFTPFailed.Add(1)
		e.log.Error("tftp: opening file", "file", ans.File, "error", err)
		sendError(local, src, tftpUndefined, cannotRead)
		return
	}
	t := newTransfer(src, sourceFor(local, src), rq, ans.Size, e.cfg, e.stats)
	if c.Key() == "" {
		t.retries = strangerRetries
	}
	rack := e.rackOf(c, ans)
	t.crowd = s.running() >= few
	t.pace = func(n int) error { return e.governor.pace(ctx, rack, int64(n)) }
	start := time.Now()
	n, err := t.run(ctx, s.pumps, f)
	e.stats.TFTPBytes.Add(n)
	log := e.log.With("client", c.Name(), "ip", src.Addr(), "file", ans.File, "bytes", n,
		"ms", time.Since(start).Milliseconds(), "block", t.block, "window", t.windowN)
	switch {
	case err == nil:
		e.stats.TFTPSent.Add(1)
		log.Info("tftp: sent")
		e.tellSent("tftp.sent", c, ans, n, time.Since(start))
	case errors.Is(err, errClientAbort) && n == 0:
		e.stats.TFTPProbes.Add(1)
		log.Debug("tftp: size probe", "reason", err)
	default:
		e.stats.TFTPFailed.Add(1)
		log.Warn("tftp: broken off", "reason", err)
		if ctx.Err() == nil && e.watch.once(c.Key(), "tftp.failed", e.now(), time.Minute) {
			e.event("tftp.failed", c, fmt.Sprintf("%s broken off after %d of %d bytes: %v", ans.File, n, ans.Size, err))
		}
	}
}

// tellSent reports a whole file, and notices a machine that loads the same
// thing again and again.
func (e *engine) tellSent(kind string, c Client, ans Answer, n int64, d time.Duration) {
	e.event(kind, c, fmt.Sprintf("%s, %d bytes in %.1f s", ans.File, n, d.Seconds()))
	if e.watch.fetched(c.Name(), e.now()) && e.watch.once(c.Name(), "loop", e.now(), 10*time.Minute) {
		e.log.Warn("boot loop?", "client", c.Name(), "file", ans.File, "fetches", loopCount)
		e.event("boot.loop", c, fmt.Sprintf("fetched %s %d times within a minute: it starts and fails at once, or is given itself again", ans.File, loopCount))
	}
}
