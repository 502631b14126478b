package install

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

// serveImage serves an image over TLS as pxeserver does, and cuts each
// connection for the root after cutAfter bytes. It returns a client for it
// and a function that gives the Range headers seen for the root.
func serveImage(t *testing.T, b *built, cutAfter int) (*api.NodeClient, func() []string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "CA"}, NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IsCA: true, BasicConstraintsValid: true, DNSNames: []string{api.ServerName}, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
	}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	var mu sync.Mutex
	var ranges []string
	s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		switch rest := strings.TrimPrefix(r.URL.Path, api.PathImages+b.digest+"/"); rest {
		case "manifest":
			_, _ = w.Write(b.oci)
		case "signature":
			_, _ = w.Write(b.sig)
		default:
			blob := strings.TrimPrefix(rest, "blobs/")
			if blob == b.m.Root.Digest {
				mu.Lock()
				ranges = append(ranges, r.Header.Get("Range"))
				mu.Unlock()
				w = &cutting{w, cutAfter}
			}
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(b.blobs[blob]))
		}
	}))
	s.TLS = &tls.Config{Certificates: []tls.Certificate{{Certificate: [][]byte{der}, PrivateKey: key}}}
	s.StartTLS()
	t.Cleanup(s.Close)
	client, err := api.NewNodeClient(s.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.Close)
	return client, func() []string {
		mu.Lock()
		defer mu.Unlock()
		return ranges
	}
}

// cutting drops the connection after some bytes of the body.
type cutting struct {
	http.ResponseWriter
	left int
}

func (c *cutting) Write(p []byte) (int, error) {
	if c.left -= len(p); c.left < 0 {
		c.ResponseWriter.(http.Flusher).Flush()
		panic(http.ErrAbortHandler)
	}
	return c.ResponseWriter.Write(p)
}

// TestRunOverBrokenHTTP installs through the real client from a server whose
// connections break: the stream goes on where it stopped.
func TestRunOverBrokenHTTP(t *testing.T) {
	b, n := build(t, 1, nil), newNode(t)
	client, ranges := serveImage(t, b, int(b.m.Root.SizeBytes)/3)
	im, err := Fetch(t.Context(), client, b.digest, trusted(b))
	if err != nil {
		t.Fatal(err)
	}
	target := Target{Slots: n.m, Slot: fleet.SlotA, Root: n.root(fleet.SlotA), Verity: n.verity(fleet.SlotA)}
	if err := Run(t.Context(), client, im, target, nil); err != nil {
		t.Fatal(err)
	}
	n.wantStaged(t, b, fleet.SlotA)
	rs := ranges()
	if len(rs) < 3 || !strings.HasPrefix(rs[0], "bytes=0-") || strings.HasPrefix(rs[1], "bytes=0-") {
		t.Errorf("the root was fetched with ranges %q, want at least three, each from where the last ended", rs)
	}
}
