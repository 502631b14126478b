package netboot

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/netboot/wiretest"
)

// exchange sends a raw request and returns the response and its body.
func exchange(t *testing.T, s *Server, request string) (*http.Response, []byte) {
	t.Helper()
	c, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", s.Addrs().HTTP))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	method, _, _ := strings.Cut(request, " ")
	resp, err := http.ReadResponse(bufio.NewReader(c), &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%.80q: %v", request, err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%.80q: %v", request, err)
	}
	return resp, b
}

func get(t *testing.T, s *Server, method, path, headers string) (*http.Response, []byte) {
	t.Helper()
	return exchange(t, s, method+" "+path+" HTTP/1.1\r\nHost: x\r\n"+headers+"\r\n")
}

// C31, C34, H1-H6: what firmware needs of a response.
func TestHTTPForFirmware(t *testing.T) {
	want := body(100_000)
	s, rec := tftpBench(t, want)
	for _, path := range []string{"/" + file, "//" + file, "/b//0123456789ab/installer.efi", "/b/./0123456789ab/installer.efi", "/b/0123456789ab//installer.efi?x=y"} {
		for _, method := range []string{"GET", "HEAD"} {
			resp, got := get(t, s, method, path, "")
			if resp.StatusCode != 200 || resp.ContentLength != int64(len(want)) || resp.Header.Get("Content-Type") != "application/efi" || resp.Close || resp.TransferEncoding != nil {
				t.Errorf("%s %s: %s, length %d, headers %v", method, path, resp.Status, resp.ContentLength, resp.Header)
			}
			if method == "GET" && !bytes.Equal(got, want) {
				t.Errorf("GET %s: body of %d bytes differs", path, len(got))
			}
			for k, v := range resp.Header {
				if len(v) != 1 || v[0] == "" {
					t.Errorf("%s %s: header %s = %q", method, path, k, v)
				}
			}
			if resp.Header.Get("Content-Encoding") != "" || !strings.Contains(resp.Header.Get("Cache-Control"), "immutable") {
				t.Errorf("%s %s: headers %v", method, path, resp.Header)
			}
		}
	}
	if resp, got := exchange(t, s, "GET /"+file+" HTTP/1.0\r\n\r\n"); resp.StatusCode != 200 || !bytes.Equal(got, want) {
		t.Errorf("HTTP/1.0: %s, %d bytes", resp.Status, len(got))
	}
	wiretest.WaitFor(t, "six events of whole files", func() bool { return rec.count("http.sent") == 6 })
}

// H3: HEAD and GET on one connection.
func TestHTTPKeepsConnection(t *testing.T) {
	want := body(1000)
	s, _ := tftpBench(t, want)
	c, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", s.Addrs().HTTP))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	br := bufio.NewReader(c)
	for _, step := range []struct {
		method, path string
		code         int
	}{{"HEAD", file, 200}, {"GET", "nothing", 404}, {"GET", file, 200}} {
		fmt.Fprintf(c, "%s /%s HTTP/1.1\r\nHost: x\r\n\r\n", step.method, step.path)
		resp, err := http.ReadResponse(br, &http.Request{Method: step.method})
		if err != nil {
			t.Fatalf("%s %s: %v", step.method, step.path, err)
		}
		if _, err := io.Copy(io.Discard, resp.Body); err != nil || resp.StatusCode != step.code || resp.Close {
			t.Errorf("%s %s: %s, close %v, %v", step.method, step.path, resp.Status, resp.Close, err)
		}
	}
}

// C30, H9, H10: refusals by kind, never a redirect, and nothing cached.
func TestHTTPRefusals(t *testing.T) {
	s, _ := tftpBench(t, body(100))
	for path, code := range map[string]int{
		"/": 400, "/nothing": 404, "/b/0123456789ab": 404, "/b/0123456789ab/": 404, "/B/0123456789AB/INSTALLER.EFI": 404,
		"/../boot-private/key": 400, "/b/../../boot-private/key": 400, "/..%2fboot-private/key": 400, "/%2e%2e/key": 400,
		`/..\..\key`: 400, "/x%00y": 400, "/srv/boot-private/key": 404, "/" + strings.Repeat("x/", 2000): 404, "/x%0ay": 400,
	} {
		resp, b := get(t, s, "GET", path, "")
		if resp.StatusCode != code || resp.ContentLength != int64(len(b)) || resp.Header.Get("Location") != "" || resp.Header.Get("Cache-Control") != "" {
			t.Errorf("GET %.40s: %s, length %d, headers %v; want %d", path, resp.Status, resp.ContentLength, resp.Header, code)
		}
	}
	if resp, _ := get(t, s, "PUT", "/"+file, "Content-Length: 5\r\n"); resp.StatusCode != 405 || resp.Header.Get("Allow") != "GET, HEAD" {
		t.Errorf("PUT: %s, %v", resp.Status, resp.Header)
	}
	swap(s, always(Answer{Kind: AnswerRefuse, Reason: "node is quarantined"}))
	if resp, b := get(t, s, "GET", "/"+file, ""); resp.StatusCode != 403 || !strings.Contains(string(b), "quarantined") {
		t.Errorf("refused client: %s %q; want 403 and the reason", resp.Status, b)
	}
	swap(s, PolicyFunc(func(context.Context, Client) (Answer, error) { return Answer{}, io.ErrUnexpectedEOF }))
	if resp, _ := get(t, s, "GET", "/"+file, ""); resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" {
		t.Errorf("undecided: %s", resp.Status)
	}
}

// C82: who asks from an address we never saw gets what the policy says of a
// client without identity.
func TestHTTPUnknownAddress(t *testing.T) {
	s, _ := tftpBench(t, body(100))
	var asked Client
	s.engine.book.mu.Lock()
	clear(s.engine.book.m)
	s.engine.book.mu.Unlock()
	swap(s, PolicyFunc(func(_ context.Context, c Client) (Answer, error) {
		asked = c
		return Answer{Kind: AnswerRefuse, Reason: "unknown"}, nil
	}))
	if resp, _ := get(t, s, "GET", "/"+file, ""); resp.StatusCode != 403 {
		t.Errorf("%s; want 403", resp.Status)
	}
	if asked.MAC != "" || asked.Key() != "" || asked.IP != netip.MustParseAddr("127.0.0.1") || asked.Via != "http" {
		t.Errorf("the policy was asked about %+v", asked)
	}
}

// C36: ranges.
func TestHTTPRange(t *testing.T) {
	want := body(10_000)
	s, _ := tftpBench(t, want)
	many := "bytes=" + strings.Repeat("0-0,", 9999) + "0-0"
	for _, tc := range []struct {
		header   string
		code     int
		from, to int
	}{
		{"bytes=0-1023", 206, 0, 1024}, {"bytes=-1", 206, 9999, 10000}, {"bytes=-20000", 206, 0, 10000}, {"bytes=9999-", 206, 9999, 10000},
		{"bytes=5-99999", 206, 5, 10000}, {"bytes=10000-", 416, 0, 0}, {"bytes=-0", 416, 0, 0},
		{"bytes=99999999999999999999-", 416, 0, 0}, {"bytes=0-99999999999999999999", 206, 0, 10000},
		{"bytes=5-2", 200, 0, 10000}, {"bytes=0-0,-1", 200, 0, 10000}, {many, 200, 0, 10000}, {"bytes=-", 200, 0, 10000},
		{"bytes=a-b", 200, 0, 10000}, {"bytes=+1-2", 200, 0, 10000}, {"lines=0-1", 200, 0, 10000}, {"", 200, 0, 10000},
	} {
		resp, got := get(t, s, "GET", "/"+file, "Range: "+tc.header+"\r\n")
		if resp.StatusCode != tc.code || resp.ContentLength != int64(len(got)) {
			t.Errorf("Range %.40s: %s; want %d", tc.header, resp.Status, tc.code)
			continue
		}
		if tc.code != 416 && !bytes.Equal(got, want[tc.from:tc.to]) {
			t.Errorf("Range %.40s: %d bytes; want %d to %d", tc.header, len(got), tc.from, tc.to)
		}
		cr := resp.Header.Get("Content-Range")
		if tc.code == 206 && cr != fmt.Sprintf("bytes %d-%d/10000", tc.from, tc.to-1) || tc.code == 416 && cr != "bytes */10000" || tc.code == 200 && cr != "" {
			t.Errorf("Range %.40s: Content-Range %q", tc.header, cr)
		}
	}
	if resp, _ := get(t, s, "GET", "/"+file, "Range: bytes=0-9\r\nIf-Range: \"other\"\r\n"); resp.StatusCode != 200 {
		t.Errorf("If-Range of another file: %s; want 200", resp.Status)
	}
	if resp, _ := get(t, s, "GET", "/"+file, "If-None-Match: \""+file+"\"\r\n"); resp.StatusCode != 304 {
		t.Errorf("If-None-Match: %s; want 304", resp.Status)
	}
}

// A real file goes out by the kernel, and is closed.
func TestHTTPRealFile(t *testing.T) {
	want := body(9<<20 + 5)
	path := filepath.Join(t.TempDir(), "f")
	if err := os.WriteFile(path, want, 0o600); err != nil {
		t.Fatal(err)
	}
	s, _ := tftpBench(t, nil)
	ans := installer(want)
	ans.Open = func() (io.ReadSeekCloser, error) { return os.Open(path) }
	swap(s, always(ans))
	before := openFiles(t)
	if _, got := get(t, s, "GET", "/"+file, ""); !bytes.Equal(got, want) {
		t.Errorf("received %d bytes that differ", len(got))
	}
	wiretest.WaitFor(t, "file and connection to be closed", func() bool { return openFiles(t) <= before })
	if err := os.Truncate(path, 100); err != nil {
		t.Fatal(err)
	}
	c, err := net.Dial("tcp4", fmt.Sprintf("127.0.0.1:%d", s.Addrs().HTTP))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	fmt.Fprintf(c, "GET /%s HTTP/1.1\r\nHost: x\r\n\r\n", file)
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := io.ReadAll(resp.Body); err == nil {
		t.Error("a file cut short looks whole to the client")
	}
}

// Downloads are bounded; who is turned away is told to come back.
func TestHTTPAdmission(t *testing.T) {
	s, _ := tftpBench(t, body(10))
	g := s.engine.governor
	rack := s.engine.rackOf(Client{IP: netip.MustParseAddr("127.0.0.1")}, Answer{})
	if err := s.SetLimits(Limits{Downloads: 1}); err != nil || !g.admit(t.Context(), rack) {
		t.Fatal("the first download does not start", err)
	}
	resp, _ := get(t, s, "GET", "/"+file, "Range: bytes=0-1\r\n")
	if resp.StatusCode != 503 || resp.Header.Get("Retry-After") == "" || resp.Header.Get("Content-Range") != "" {
		t.Errorf("%s %v; want 503 with Retry-After", resp.Status, resp.Header)
	}
	g.release(rack)
	if resp, _ := get(t, s, "GET", "/"+file, ""); resp.StatusCode != 200 {
		t.Errorf("%s after the others ended", resp.Status)
	}
}
