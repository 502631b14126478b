package server_test

import (
	"crypto/tls"
	"crypto/x509"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/server"
)

// Prometheus sees the fleet with a viewer's token, and nobody without one.
func TestMetrics(t *testing.T) {
	token, line := server.NewToken("prometheus", "viewer")
	l := newLab(t, func(o *server.Options) {
		ts, err := server.ParseTokens([]byte(line))
		if err != nil {
			t.Fatal(err)
		}
		o.Tokens = append(o.Tokens, ts...)
	})
	m := l.ready(1, "rack", l.publish("1"))
	m.beat()
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(l.caPEM)
	c := http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots, ServerName: api.ServerName}}}
	defer c.CloseIdleConnections()
	ask := func(auth string) (int, string) {
		req, err := http.NewRequest(http.MethodGet, l.url+api.PathMetrics, nil)
		l.must(err)
		req.Header.Set("Authorization", auth)
		resp, err := c.Do(req)
		l.must(err)
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		l.must(err)
		return resp.StatusCode, string(b)
	}
	if code, text := ask("Bearer " + token); code != 200 || !strings.Contains(text, `turnout_heartbeats_total{news="no"} 1`) || !strings.Contains(text, `turnout_nodes{pool="rack",state="approved"} 1`) {
		t.Errorf("status %d:\n%s", code, text)
	}
	if code, _ := ask("Bearer nonsense"); code != 401 {
		t.Errorf("without a token: status %d, want 401", code)
	}
}
