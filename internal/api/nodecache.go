package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
)

// How long a cache is left alone: one that did not deliver, and one of whose
// bytes something was wrong.
const (
	cacheRest  = 5 * time.Minute
	cacheGrief = 24 * time.Hour
)

// cache is an HTTP cache near the node, from which blobs of images are
// fetched first. Nobody trusts it: what was installed is held against the
// signed manifest. The zero value is none.
type cache struct {
	mu    sync.Mutex
	url   string // without a slash at the end; "" for none
	rests time.Time
	used  bool // bytes came from it since they were last in doubt
	http  *http.Client
}

// errNoCache says that there is no cache to ask now.
var errNoCache = errors.New("no cache")

// UseCache names an HTTP cache that has what the server has under the same
// paths, "" for none. What is no URL is none.
func (c *NodeClient) UseCache(base string) {
	base = strings.TrimRight(base, "/")
	if u, err := url.Parse(base); err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
		base = ""
	}
	k := &c.cache
	k.mu.Lock()
	defer k.mu.Unlock()
	if base == k.url {
		return
	}
	k.url, k.rests = base, time.Time{}
	k.http = &http.Client{
		Transport: &http.Transport{
			DialContext:           (&net.Dialer{Timeout: 3 * time.Second}).DialContext,
			ResponseHeaderTimeout: 30 * time.Second, // it may have to fetch first
			IdleConnTimeout:       90 * time.Second,
			DisableCompression:    true,
		},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
}

// DistrustCache leaves the cache alone for a day and reports whether bytes
// came from it since it was last asked: what turned out to be wrong may be
// right when it is fetched again.
func (c *NodeClient) DistrustCache() bool {
	k := &c.cache
	k.mu.Lock()
	defer k.mu.Unlock()
	was := k.used
	if k.used = false; was {
		k.rests = time.Now().Add(cacheGrief)
	}
	return was
}

// open asks the cache for a part of a blob. Any error is a reason to ask the
// server, and to leave the cache alone for a while.
func (k *cache) open(ctx context.Context, path, digest string, from, size int64) (io.ReadCloser, error) {
	k.mu.Lock()
	base, client, ok := k.url, k.http, k.url != "" && time.Now().After(k.rests)
	k.mu.Unlock()
	if !ok {
		return nil, errNoCache
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, base+path, nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Range", fmt.Sprintf("bytes=%d-%d", from, size-1))
	resp, err := client.Do(req)
	if err != nil {
		k.rest()
		return nil, err
	}
	want, tag := fmt.Sprintf("bytes %d-%d/", from, size-1), resp.Header.Get("ETag")
	if resp.StatusCode != http.StatusPartialContent || !strings.HasPrefix(resp.Header.Get("Content-Range"), want) || tag != "" && tag != `"`+digest+`"` {
		resp.Body.Close()
		k.rest()
		return nil, fmt.Errorf("cache %s: %s, content range %q, tag %s; want %q of %s", base, resp.Status, resp.Header.Get("Content-Range"), tag, want, digest)
	}
	k.mu.Lock()
	k.used = true
	k.mu.Unlock()
	return resp.Body, nil
}

// rest leaves the cache alone for a while.
func (k *cache) rest() {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.rests = time.Now().Add(cacheRest)
}
