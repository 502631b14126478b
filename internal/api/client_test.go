package api

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// serve runs h under a certificate for name and returns URL and CA.
func serve(t *testing.T, name string, h http.HandlerFunc) (url string, caPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{name}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	ts := httptest.NewUnstartedServer(h)
	ts.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	ts.Config.ErrorLog = nil
	ts.StartTLS()
	t.Cleanup(ts.Close)
	return ts.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func nodeClient(t *testing.T, h http.HandlerFunc) *NodeClient {
	t.Helper()
	url, ca := serve(t, ServerName, h)
	c, err := NewNodeClient(url, ca)
	if err != nil {
		t.Fatal(err)
	}
	c.pause = time.Millisecond
	return c
}

var content = bytes.Repeat([]byte("0123456789abcdef"), 4096)

// A blob arrives whole and in order over connections that break.
func TestBlobResumes(t *testing.T) {
	var requests atomic.Int32
	c := nodeClient(t, func(w http.ResponseWriter, r *http.Request) {
		var from int
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-", &from); err != nil {
			t.Errorf("Range %q: %v", r.Header.Get("Range"), err)
		}
		if n := requests.Add(1); n%3 == 2 {
			http.Error(w, "busy", http.StatusServiceUnavailable)
			return
		}
		w.Header().Set("Content-Length", fmt.Sprint(len(content)-from))
		w.WriteHeader(http.StatusPartialContent)
		w.Write(content[from:min(from+10000, len(content))]) //nolint:errcheck // then the connection breaks
	})
	for _, offset := range []int64{0, 1, 33333, int64(len(content))} {
		r := c.Blob(context.Background(), "sha256:x", "sha256:y", offset, int64(len(content)))
		got, err := io.ReadAll(r)
		if err != nil || !bytes.Equal(got, content[offset:]) {
			t.Errorf("from %d: %d bytes, %v; want %d, as they were", offset, len(got), err, len(content)-int(offset))
		}
		if err := r.Close(); err != nil {
			t.Error(err)
		}
		if _, err := r.Read(make([]byte, 1)); err == nil {
			t.Error("a closed stream can be read")
		}
	}
	if requests.Load() < 10 {
		t.Errorf("%d requests: the connections did not break", requests.Load())
	}
}

func TestBlobGivesUp(t *testing.T) {
	var requests atomic.Int32
	status := http.StatusNotFound
	c := nodeClient(t, func(w http.ResponseWriter, _ *http.Request) {
		requests.Add(1)
		http.Error(w, "no", status)
	})
	read := func() error {
		requests.Store(0)
		_, err := io.ReadAll(c.Blob(context.Background(), "i", "b", 0, 10))
		return err
	}
	if err := read(); StatusOf(err) != http.StatusNotFound || requests.Load() != 1 {
		t.Errorf("blob that is not there: %v after %d requests; want 404 after one", err, requests.Load())
	}
	status = http.StatusBadGateway
	if err := read(); StatusOf(err) != http.StatusBadGateway || requests.Load() != blobRetries+1 {
		t.Errorf("server that stays broken: %v after %d requests; want 502 after %d", err, requests.Load(), blobRetries+1)
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := io.ReadAll(c.Blob(ctx, "i", "b", 0, 10)); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

// A server that ignores the range would put the wrong bytes at an offset.
func TestBlobWithoutRange(t *testing.T) {
	c := nodeClient(t, func(w http.ResponseWriter, _ *http.Request) { w.Write(content) }) //nolint:errcheck // a test server
	got, err := io.ReadAll(c.Blob(context.Background(), "i", "b", 5, int64(len(content))))
	if err == nil || len(got) != 0 {
		t.Errorf("read %d bytes, %v; want none, and an error", len(got), err)
	}
}

func TestWhoIsTrusted(t *testing.T) {
	ok := func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "{}") } //nolint:errcheck // a test server
	url, ca := serve(t, ServerName, ok)
	_, otherCA := serve(t, ServerName, ok)
	wrongName, wrongNameCA := serve(t, "somebody.example.org", ok)
	for _, tt := range []struct {
		name, url string
		ca        []byte
		want      error
	}{
		{"the server", url, ca, nil},
		{"another CA", url, otherCA, ErrUntrusted},
		{"another name", wrongName, wrongNameCA, ErrUntrusted},
		{"nobody there", "https://127.0.0.1:1", ca, ErrUnreachable},
	} {
		c, err := NewNodeClient(tt.url, tt.ca)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := c.Heartbeat(context.Background(), &fleet.Report{}); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v; want %v", tt.name, err, tt.want)
		}
	}
	for _, bad := range []string{"", "10.0.0.1:8443", "http://10.0.0.1", "https://", "https://x/path"} {
		if _, err := NewNodeClient(bad, ca); err == nil || !strings.Contains(err.Error(), "https://HOST:PORT") {
			t.Errorf("address %q: %v; want it refused", bad, err)
		}
	}
	if _, err := NewNodeClient(url, []byte("no PEM")); err == nil {
		t.Error("a CA that is none was taken")
	}
}

func TestProblems(t *testing.T) {
	answers := []struct {
		status     int
		body, want string
	}{
		{409, `{"title":"Conflict","status":409,"detail":"taken","hint":"use another"}`, "sending a heartbeat: Conflict: taken (use another)"},
		{401, `{"title":"Unauthorized","status":401}`, "sending a heartbeat: Unauthorized"},
		{502, "<html>bad gateway</html>", "sending a heartbeat: 502 Bad Gateway: <html>bad gateway</html>"},
		{200, "not JSON", "sending a heartbeat: POST /v1/node/heartbeat: reading the answer"},
	}
	next := 0
	c := nodeClient(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(answers[next].status)
		io.WriteString(w, answers[next].body) //nolint:errcheck // a test server
	})
	for next = range answers {
		_, err := c.Heartbeat(context.Background(), &fleet.Report{})
		if a := answers[next]; err == nil || !strings.HasPrefix(err.Error(), a.want) || Unauthorized(err) != (a.status == 401) {
			t.Errorf("answer %d %q: %v; want %q", a.status, a.body, err, a.want)
		}
	}
}
