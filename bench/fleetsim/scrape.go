package main

import (
	"bufio"
	"context"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/api"
)

// scraper reads the server's own histogram of heartbeats: the nodes here
// share its processors, so what they see is longer than what it takes.
type scraper struct {
	url, token string
	c          *http.Client
}

func newScraper(dir, url, token string) (*scraper, error) {
	ca, err := os.ReadFile(filepath.Join(dir, "ca.pem"))
	if err != nil {
		return nil, err
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	conf := &tls.Config{RootCAs: pool, ServerName: api.ServerName, MinVersion: tls.VersionTLS13}
	return &scraper{url, token, &http.Client{Transport: &http.Transport{TLSClientConfig: conf}, Timeout: time.Minute}}, nil
}

// histogram is cumulative: how many heartbeats took at most so many seconds.
type histogram struct {
	le    []float64
	count []float64
}

// histogram returns what the server has counted since it started.
func (s *scraper) histogram(ctx context.Context) (h histogram, err error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, s.url+api.PathMetrics, nil)
	if err != nil {
		return h, err
	}
	req.Header.Set("Authorization", "Bearer "+s.token)
	resp, err := s.c.Do(req)
	if err != nil {
		return h, err
	}
	defer resp.Body.Close()
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		rest, ok := strings.CutPrefix(lines.Text(), `turnout_heartbeat_duration_seconds_bucket{le="`)
		le, count, cut := strings.Cut(rest, `"} `)
		if !ok || !cut {
			continue
		}
		x, err1 := strconv.ParseFloat(le, 64) // "+Inf" too
		n, err2 := strconv.ParseFloat(count, 64)
		if err1 != nil || err2 != nil {
			return h, fmt.Errorf("metric %q", lines.Text())
		}
		h.le, h.count = append(h.le, x), append(h.count, n)
	}
	if len(h.le) == 0 {
		return h, fmt.Errorf("the server tells no histogram of heartbeats: status %s", resp.Status)
	}
	return h, lines.Err()
}

// since is one line for people: within which bound the server answered how
// many of the heartbeats since an earlier look. After a restart it counts
// from there.
func (h histogram) since(old histogram) string {
	n := append([]float64(nil), h.count...)
	if last := len(n) - 1; len(old.count) == len(n) && old.count[last] <= n[last] {
		for i := range n {
			n[i] -= old.count[i]
		}
	}
	all := n[len(n)-1]
	if all == 0 {
		return "none"
	}
	at := func(share float64) string {
		for i, c := range n {
			if c < share*all {
				continue
			}
			below, from := 0.0, 0.0
			if i > 0 {
				below, from = n[i-1], h.le[i-1]
			}
			if i == len(n)-1 {
				return fmt.Sprintf("over %gs", from)
			}
			x := from + (h.le[i]-from)*(share*all-below)/max(c-below, 1)
			return time.Duration(x * float64(time.Second)).Round(10 * time.Microsecond).String()
		}
		return "?"
	}
	return fmt.Sprintf("%.0f; p50 %s, p95 %s, p99 %s, p99.9 %s", all, at(.5), at(.95), at(.99), at(.999))
}
