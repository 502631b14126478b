package api

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync/atomic"
	"testing"
	"time"
)

// Whatever a cache does, a blob arrives whole, and a cache that failed is
// left alone.
func TestBlobPastCache(t *testing.T) {
	part := func(w http.ResponseWriter, r *http.Request) (from, to int) {
		if _, err := fmt.Sscanf(r.Header.Get("Range"), "bytes=%d-%d", &from, &to); err != nil {
			t.Errorf("Range %q: %v", r.Header.Get("Range"), err)
		}
		w.Header().Set("Content-Range", fmt.Sprintf("bytes %d-%d/%d", from, to, len(content)))
		return from, to
	}
	for _, tt := range []struct {
		name    string
		cache   http.HandlerFunc
		trusted bool // bytes came from it
	}{
		{"works", func(w http.ResponseWriter, r *http.Request) {
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
		}, true},
		{"breaks off", func(w http.ResponseWriter, r *http.Request) {
			from, _ := part(w, r)
			w.Header().Set("Content-Length", fmt.Sprint(len(content)-from))
			w.WriteHeader(http.StatusPartialContent)
			w.Write(content[from:min(from+999, len(content))]) //nolint:errcheck // then the connection breaks
		}, true},
		{"has it not", http.NotFound, false},
		{"sends all of it", func(w http.ResponseWriter, _ *http.Request) { w.Write(content) }, false}, //nolint:errcheck // to a test
		{"sends another part", func(w http.ResponseWriter, r *http.Request) {
			part(w, r)
			w.Header().Set("Content-Range", "bytes 7-8/9")
			w.WriteHeader(http.StatusPartialContent)
		}, false},
		{"has another version", func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("ETag", `"sha256:other"`)
			http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
		}, false},
		{"sends elsewhere", func(w http.ResponseWriter, r *http.Request) {
			http.Redirect(w, r, "http://192.0.2.1/", http.StatusFound)
		}, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var asked, server atomic.Int32
			c := nodeClient(t, func(w http.ResponseWriter, r *http.Request) {
				server.Add(1)
				http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(content))
			})
			cache := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				asked.Add(1)
				tt.cache(w, r)
			}))
			defer cache.Close()
			c.UseCache(cache.URL + "/")
			for _, from := range []int64{0, 12345} {
				r := c.Blob(context.Background(), "sha256:x", "sha256:y", from, int64(len(content)))
				got, err := io.ReadAll(r)
				r.Close()
				if err != nil || !bytes.Equal(got, content[from:]) {
					t.Errorf("from %d: %d bytes, %v; want %d", from, len(got), err, len(content)-int(from))
				}
			}
			want := [2]int32{1, 2} // a cache that failed is asked once
			if tt.name == "works" {
				want = [2]int32{2, 0}
			}
			if got := [2]int32{asked.Load(), server.Load()}; got != want {
				t.Errorf("cache and server were asked %d times, want %d", got, want)
			}
			if got := c.DistrustCache(); got != tt.trusted {
				t.Errorf("bytes came from it: %v, want %v", got, tt.trusted)
			}
		})
	}
	c := nodeClient(t, http.NotFound)
	for _, bad := range []string{"ftp://x", "http://", "http://u:p@x", "http://x?y", "::"} {
		c.UseCache(bad)
		if c.cache.url != "" {
			t.Errorf("UseCache(%q) takes it", bad)
		}
	}
}
