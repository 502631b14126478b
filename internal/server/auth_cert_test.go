package server_test

import (
	"crypto/tls"
	"crypto/x509"
	"encoding/pem"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/server"
)

// An operator is let in by a client certificate whose key is listed, in its
// role, while it is good, and no other way by what the list holds.
func TestOperatorCertificate(t *testing.T) {
	l := newLab(t)
	pair, line, err := server.NewCertificate("carol", "operator", l.clock.now(), 48*time.Hour)
	l.must(err)
	viewer, viewerLine, err := server.NewCertificate("victor", "viewer", l.clock.now(), 48*time.Hour)
	l.must(err)
	stranger, _, err := server.NewCertificate("mallory", "admin", l.clock.now(), 48*time.Hour)
	l.must(err)
	tokens, err := server.ParseTokens([]byte(line + viewerLine))
	l.must(err)
	l.reload(func(o *server.Options) { o.Tokens = append(o.Tokens, tokens...) })
	client := func(pair []byte) *api.Client {
		t.Helper()
		c, err := api.NewCertClient(l.url, l.caPEM, pair)
		l.must(err)
		return c
	}
	carol := client(pair)
	_, err = carol.SetPool(ctx, fleet.Pool{Name: "rack"})
	wantStatus(t, "an operator acts", err, 0)
	ev, err := carol.Events(ctx, api.EventQuery{Kind: "pool."})
	l.must(err)
	if len(ev) != 1 || ev[0].Actor != "operator:carol" {
		t.Errorf("the history has %+v; want operator:carol", ev)
	}
	_, err = client(viewer).Nodes(ctx)
	wantStatus(t, "a viewer looks", err, 0)
	_, err = client(viewer).SetPool(ctx, fleet.Pool{Name: "rack"})
	wantStatus(t, "a viewer acts", err, http.StatusForbidden)
	_, err = client(stranger).Nodes(ctx)
	wantStatus(t, "a certificate that is not listed", err, http.StatusUnauthorized)

	// What is hashed in the list is no secret: it must not do as a token.
	block, _ := pem.Decode(pair)
	cert, err := x509.ParseCertificate(block.Bytes)
	l.must(err)
	asToken, err := api.NewClient(l.url, l.caPEM, string(cert.RawSubjectPublicKeyInfo))
	l.must(err)
	if _, err := asToken.Nodes(ctx); err == nil {
		t.Error("the public key of a certificate was taken for a token")
	}

	// A browser sends the certificate along for any page that asks it to.
	for name, header := range map[string]string{"Origin": "https://evil.example", "Sec-Fetch-Site": "cross-site"} {
		tp, err := tls.X509KeyPair(pair, pair)
		l.must(err)
		pool := x509.NewCertPool()
		pool.AppendCertsFromPEM(l.caPEM)
		c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool, ServerName: api.ServerName, Certificates: []tls.Certificate{tp}}}}
		req, err := http.NewRequestWithContext(ctx, http.MethodPut, l.url+api.PathPools+"/evil", strings.NewReader("{}"))
		l.must(err)
		req.Header.Set(name, header)
		resp, err := c.Do(req)
		l.must(err)
		resp.Body.Close()
		if resp.StatusCode != http.StatusUnauthorized {
			t.Errorf("a request with %s: %s; want it refused", name, resp.Status)
		}
	}

	l.clock.add(49 * time.Hour)
	_, err = carol.Nodes(ctx)
	wantStatus(t, "a certificate that has run out", err, http.StatusUnauthorized)
	l.reload(func(o *server.Options) { o.Tokens = nil })
	_, err = client(viewer).Nodes(ctx)
	wantStatus(t, "after it was taken from the list", err, http.StatusUnauthorized)
	for _, bad := range []string{"x viewer cert:", "x viewer cert:zz", "x viewer cert:" + strings.Repeat("a", 62), "x viewer cert: " + strings.Repeat("a", 64)} {
		if got, err := server.ParseTokens([]byte(bad)); err == nil {
			t.Errorf("ParseTokens(%q) = %v; want an error", bad, got)
		}
	}
}
