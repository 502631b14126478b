package netboot

import (
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// HTTP limits for clients that are slow on purpose or by nature.
const (
	httpHeaderTime = 10 * time.Second
	httpIdleTime   = 2 * time.Minute
	httpChunk      = 4 << 20         // sent per write deadline
	httpChunkTime  = 2 * time.Minute // so at least 35 kB/s
)

// HTTPHandler serves boot files to the addresses that may have them. It never
// redirects, always sends Content-Length, and answers GET and HEAD only. It
// works without Serve having been called only as far as leases are known.
func (s *Server) HTTPHandler() http.Handler { return http.HandlerFunc(s.serveHTTP) }

func (s *Server) serveHTTP(w http.ResponseWriter, r *http.Request) {
	e := s.engine
	h := w.Header()
	if r.ContentLength != 0 { // bodies are not read; do not wait for them either
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(httpHeaderTime))
	}
	h["Server"] = []string{"turnout"}
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		h.Set("Allow", "GET, HEAD")
		h.Set("Connection", "close")
		s.refuse(w, r, http.StatusMethodNotAllowed, "only GET and HEAD")
		return
	}
	name, ok := httpName(r.URL.Path)
	if !ok {
		s.refuse(w, r, http.StatusBadRequest, "path is not allowed")
		return
	}
	host, _, _ := net.SplitHostPort(r.RemoteAddr)
	ip, err := netip.ParseAddr(host)
	if err != nil {
		s.refuse(w, r, http.StatusForbidden, "address not known")
		return
	}
	c := e.clientAt(ip, "http")
	ans, err := decide(r.Context(), e.policy, c)
	switch {
	case err != nil:
		e.log.Error("http: deciding", "client", c.Name(), "error", err)
		h.Set("Retry-After", "5")
		s.refuse(w, r, http.StatusServiceUnavailable, "the server cannot decide now, try again")
	case !ans.Serves():
		s.refuse(w, r, http.StatusForbidden, "not allowed: "+reasonText(ans))
	case name != ans.File:
		s.refuse(w, r, http.StatusNotFound, "no such file")
	default:
		s.serveFile(w, r, c, ans)
	}
}

// httpName cleans a decoded URL path: double slashes and "." vanish, "..",
// backslashes and control characters are refused.
func httpName(p string) (string, bool) {
	if strings.Contains(p, `\`) {
		return "", false
	}
	return cleanName(p)
}

func (s *Server) refuse(w http.ResponseWriter, r *http.Request, code int, text string) {
	s.stats.HTTPRefused.Add(1)
	s.log.Info("http: refused", "client", r.RemoteAddr, "method", r.Method, "path", printable([]byte(r.URL.Path)), "status", code, "reason", text)
	body := text + "\n"
	h := w.Header()
	for _, k := range []string{"ETag", "Cache-Control", "Accept-Ranges"} {
		h.Del(k)
	}
	h.Set("Content-Type", "text/plain; charset=utf-8")
	h.Set("Content-Length", strconv.Itoa(len(body)))
	w.WriteHeader(code)
	if r.Method != http.MethodHead {
		_, _ = io.WriteString(w, body)
	}
}

// mediaType is what UEFI 2.10 section 24.7.9 wants by extension; an image
// without its type or suffix is refused by firmware.
func mediaType(name string) string {
	switch path.Ext(name) {
	case ".efi":
		return "application/efi"
	case ".iso":
		return "application/vnd.efi-iso"
	case ".img":
		return "application/vnd.efi-img"
	}
	return "application/octet-stream"
}

func (s *Server) serveFile(w http.ResponseWriter, r *http.Request, c Client, ans Answer) {
	etag := `"` + ans.File + `"`
	h := w.Header()
	h.Set("Content-Type", mediaType(ans.File))
	h.Set("ETag", etag)
	h.Set("Cache-Control", "public, max-age=31536000, immutable")
	h.Set("Accept-Ranges", "bytes")
	if m := r.Header.Get("If-None-Match"); m != "" && (m == "*" || strings.Contains(m, etag)) {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	start, n, code := int64(0), ans.Size, http.StatusOK
	if m := r.Header.Get("If-Range"); m == "" || m == etag {
		start, n, code = parseRange(r.Header.Get("Range"), ans.Size)
	}
	switch code {
	case http.StatusRequestedRangeNotSatisfiable:
		h.Set("Content-Range", fmt.Sprintf("bytes */%d", ans.Size))
		s.refuse(w, r, code, "range is outside the file")
		return
	case http.StatusPartialContent:
		h.Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", start, start+n-1, ans.Size))
	}
	h.Set("Content-Length", strconv.FormatInt(n, 10))
	if r.Method == http.MethodHead {
		s.stats.HTTPProbes.Add(1)
		w.WriteHeader(code)
		return
	}
	s.sendBody(w, r, c, ans, start, n, code)
}

func (s *Server) sendBody(w http.ResponseWriter, r *http.Request, c Client, ans Answer, start, n int64, code int) {
	g, rack := s.engine.governor, s.engine.rackOf(c, ans)
	if !g.admit(r.Context(), rack) {
		w.Header().Set("Retry-After", "5")
		w.Header().Del("Content-Range")
		s.refuse(w, r, http.StatusServiceUnavailable, "too many downloads, try again")
		return
	}
	defer g.release(rack)
	f, err := ans.Open()
	if err == nil {
		defer f.Close()
		_, err = f.Seek(start, io.SeekStart)
	}
	if err != nil {
		s.stats.HTTPFailed.Add(1)
		s.log.Error("http: opening file", "file", ans.File, "error", err)
		w.Header().Del("Content-Range")
		s.refuse(w, r, http.StatusInternalServerError, "the server cannot read the file")
		return
	}
	shapeConn(r.Context(), c.Kind.Boots(), g.get().Pace)
	w.WriteHeader(code)
	begun := time.Now()
	sent, err := copyPaced(w, f, n, g.piece, func(n int64) error { return g.pace(r.Context(), rack, n) })
	s.stats.HTTPBytes.Add(sent)
	log := s.log.With("client", c.Name(), "ip", c.IP, "file", ans.File, "bytes", sent, "ms", time.Since(begun).Milliseconds())
	if err != nil {
		s.stats.HTTPFailed.Add(1)
		log.Warn("http: broken off", "of", n, "reason", err)
		return
	}
	s.stats.HTTPSent.Add(1)
	log.Info("http: sent", "agent", printable([]byte(r.UserAgent())))
	if n == ans.Size {
		s.engine.tellSent("http.sent", c, ans, n, time.Since(begun))
	}
}

// connKey finds the connection of a request in its context.
type connKey struct{}

// firmwareBuffer bounds what is on its way to a firmware's TCP stack. Some
// stop for ever when a fast link delivers more than they can take in (iPXE
// and several UEFI drivers at 10 Gbit/s and up).
const firmwareBuffer = 128 << 10

// shapeConn sets send buffer and pace of the request's connection. Errors are
// of no account: the download only is less gentle.
func shapeConn(ctx context.Context, firmware bool, bytesPerSecond int) {
	conn := ctx.Value(connKey{})
	if secure, ok := conn.(*tls.Conn); ok {
		conn = secure.NetConn()
	}
	tcp, ok := conn.(*net.TCPConn)
	if !ok {
		return
	}
	if firmware {
		_ = tcp.SetWriteBuffer(firmwareBuffer)
	}
	if raw, err := tcp.SyscallConn(); err == nil && bytesPerSecond > 0 {
		_ = raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_MAX_PACING_RATE, bytesPerSecond)
		})
	}
}

// copyPaced sends n bytes, one piece after another as turns are given, and
// gives up on a client that takes less than httpChunk in httpChunkTime, the
// waiting for turns left out. The kernel copies from an *os.File by itself.
func copyPaced(w http.ResponseWriter, f io.Reader, n int64, piece func() int64, turn func(int64) error) (int64, error) {
	rc := http.NewResponseController(w)
	var sent, taken int64
	patience := httpChunkTime
	for sent < n {
		want := min(piece(), n-sent)
		if err := turn(want); err != nil {
			return sent, err
		}
		begun := time.Now()
		_ = rc.SetWriteDeadline(begun.Add(patience)) // unsupported in some tests only
		k, err := io.CopyN(w, f, want)
		sent += k
		if err != nil {
			return sent, err
		}
		patience -= time.Since(begun)
		if taken += k; taken >= httpChunk {
			taken, patience = 0, httpChunkTime
		}
	}
	return sent, nil
}

// parseRange reads a Range header (RFC 9110 section 14). It returns where to
// start, how many bytes, and the status. Several ranges, other units and
// malformed headers get the whole file, as the RFC allows.
func parseRange(h string, size int64) (start, n int64, code int) {
	whole := func() (int64, int64, int) { return 0, size, http.StatusOK }
	spec, ok := strings.CutPrefix(h, "bytes=")
	if !ok || strings.Contains(spec, ",") {
		return whole()
	}
	first, last, ok := strings.Cut(strings.TrimSpace(spec), "-")
	if !ok || !digits(first) || !digits(last) || first == "" && last == "" {
		return whole()
	}
	if first == "" { // the last n bytes
		k := saturate(last)
		if k == 0 {
			return 0, 0, http.StatusRequestedRangeNotSatisfiable
		}
		k = min(k, size)
		return size - k, k, http.StatusPartialContent
	}
	start = saturate(first)
	end := size - 1
	if last != "" {
		end = saturate(last)
		if end < start {
			return whole()
		}
		end = min(end, size-1)
	}
	if start >= size {
		return 0, 0, http.StatusRequestedRangeNotSatisfiable
	}
	return start, end - start + 1, http.StatusPartialContent
}

func digits(s string) bool {
	for _, b := range []byte(s) {
		if b < '0' || b > '9' {
			return false
		}
	}
	return true
}

// saturate parses decimal digits; what is too large becomes the largest
// number.
func saturate(s string) int64 {
	n, err := strconv.ParseInt(s, 10, 64)
	if err != nil {
		return 1<<63 - 1
	}
	return n
}
