package api

import (
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// twins runs two servers with one CA; each names itself in what it answers.
func twins(t *testing.T) (a, b *httptest.Server, caPEM []byte) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), NotBefore: time.Unix(0, 0), NotAfter: time.Now().Add(time.Hour),
		DNSNames: []string{ServerName}, IsCA: true, BasicConstraintsValid: true}
	der, err := x509.CreateCertificate(rand.Reader, c, c, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	start := func(name string) *httptest.Server {
		ts := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				var rep fleet.Report
				if err := json.NewDecoder(r.Body).Decode(&rep); err != nil || rep.BootID != "boot" {
					http.Error(w, "the body did not come whole", http.StatusBadRequest)
					return
				}
				fmt.Fprintf(w, `{"desired":{"image":%q}}`, name)
				return
			}
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
		}))
		ts.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
		ts.Config.ErrorLog = nil
		ts.StartTLS()
		t.Cleanup(ts.Close)
		return ts
	}
	return start("a"), start("b"), pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
}

func client(t *testing.T, url string, ca []byte) *NodeClient {
	t.Helper()
	c, err := NewNodeClient(url, ca)
	if err != nil {
		t.Fatal(err)
	}
	c.pause = time.Millisecond
	return c
}

// answeredBy says which of the twins took a heartbeat.
func answeredBy(t *testing.T, c *NodeClient) string {
	t.Helper()
	hb, err := c.Heartbeat(context.Background(), &fleet.Report{BootID: "boot"})
	if err != nil {
		t.Fatal(err)
	}
	return hb.Desired.Image
}

// A call that gets no answer is made to the other server, whole, and later
// ones go there at once; when that one dies, back.
func TestOtherServer(t *testing.T) {
	a, b, ca := twins(t)
	c := client(t, a.URL, ca)
	c.UseServers([]string{"ftp://no.server", b.URL, a.URL, b.URL})
	if got := answeredBy(t, c); got != "a" {
		t.Fatalf("answered by %s, want a, which the client was made for", got)
	}
	a.CloseClientConnections()
	a.Close()
	if got := answeredBy(t, c); got != "b" || c.Server() != b.URL {
		t.Errorf("a is down: answered by %s, %s is asked first; want b", got, c.Server())
	}
	c.UseServers([]string{a.URL, b.URL}) // as b tells its nodes
	if got := answeredBy(t, c); got != "b" {
		t.Errorf("answered by %s; want b still", got)
	}
	b.Close()
	if _, err := c.Heartbeat(context.Background(), &fleet.Report{}); !errors.Is(err, ErrUnreachable) {
		t.Errorf("both are down: %v, want %v", err, ErrUnreachable)
	}
}

// An image that is being streamed goes on from the other server where it
// stopped.
func TestBlobFromOtherServer(t *testing.T) {
	a, b, ca := twins(t)
	c := client(t, a.URL, ca)
	c.UseServers([]string{a.URL, b.URL})
	r := c.Blob(context.Background(), "sha256:x", "sha256:y", 0, int64(len(content)))
	defer r.Close()
	got := make([]byte, 100)
	if _, err := io.ReadFull(r, got); err != nil {
		t.Fatal(err)
	}
	a.CloseClientConnections()
	a.Close()
	rest, err := io.ReadAll(r)
	if err != nil || !bytes.Equal(append(got, rest...), content) {
		t.Errorf("%d bytes, %v; want the %d of the image", len(got)+len(rest), err, len(content))
	}
}

// A server that refuses has answered: the other one is not asked, and one of
// another CA is never believed.
func TestOtherServerNotAsked(t *testing.T) {
	a, b, ca := twins(t)
	c := client(t, a.URL, ca)
	c.UseServers([]string{b.URL})
	if _, err := c.Heartbeat(context.Background(), &fleet.Report{BootID: "other"}); StatusOf(err) != http.StatusBadRequest || c.Server() != a.URL {
		t.Errorf("refused: %v, then %s is asked; want status 400 and a", err, c.Server())
	}
	stranger, _ := serve(t, ServerName, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, `{"desired":{"image":"evil"}}`) })
	gone, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	gone.Close()
	c = client(t, "https://"+gone.Addr().String(), ca)
	c.UseServers([]string{stranger})
	if hb, err := c.Heartbeat(context.Background(), &fleet.Report{BootID: "boot"}); !errors.Is(err, ErrUntrusted) {
		t.Errorf("a stranger in the other's place: %+v, %v; want %v", hb, err, ErrUntrusted)
	}
	c = client(t, stranger, ca)
	c.UseServers([]string{b.URL})
	if got := answeredBy(t, c); got != "b" {
		t.Errorf("answered by %s, want b, whom the stranger must not keep from being asked", got)
	}
}
