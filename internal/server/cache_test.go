package server_test

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/server"
)

// nginx runs the example of the documentation as a cache of upstream and
// returns its URL and its folder of files.
func nginx(t *testing.T, upstream string) (url, files string, stop func()) {
	t.Helper()
	bin, err := exec.LookPath("nginx")
	if err != nil {
		if bin = "/usr/sbin/nginx"; os.Getenv("CI") == "" {
			if _, err := os.Stat(bin); err != nil {
				t.Skip("nginx is not installed: Debian's package nginx has it")
			}
		}
	}
	conf, err := os.ReadFile("../../docs/examples/nginx-cache.conf")
	if err != nil {
		t.Fatal(err)
	}
	free, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := free.Addr().String()
	free.Close()
	dir := t.TempDir()
	files = filepath.Join(dir, "cache")
	for from, to := range map[string]string{
		"user www-data;": "", "/var/log/nginx/turnout-cache.log": filepath.Join(dir, "error.log"), "/run/turnout-cache.pid": filepath.Join(dir, "pid"),
		"/var/cache/turnout": files, "10.7.0.2:8081": address, "http://10.77.0.1:8081": upstream, "slice 8m": "slice 64k",
	} {
		if !bytes.Contains(conf, []byte(from)) {
			t.Fatalf("the example has no %q", from)
		}
		conf = bytes.ReplaceAll(conf, []byte(from), []byte(to))
	}
	if os.Getuid() == 0 { // its workers read what this user has
		conf = append([]byte("user root;\n"), conf...)
	}
	file := filepath.Join(dir, "nginx.conf")
	if err := os.WriteFile(file, conf, 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(bin, "-c", file, "-p", dir, "-g", "daemon off;")
	var said bytes.Buffer
	cmd.Stderr = &said
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() { _ = cmd.Wait(); close(ended) }()
	stop = func() { _ = cmd.Process.Signal(os.Interrupt); <-ended }
	t.Cleanup(stop)
	for range 200 {
		c, err := net.DialTimeout("tcp", address, time.Second)
		if err == nil {
			c.Close()
			return "http://" + address, files, stop
		}
		select {
		case <-ended:
			t.Fatalf("nginx ended: %s", said.String())
		case <-time.After(50 * time.Millisecond):
		}
	}
	t.Fatalf("nginx does not listen: %s", said.String())
	return "", "", nil
}

// Nodes of a rack with a cache fetch images through it: the second time
// nothing of it is asked of the server. A cache that is gone, or whose bytes
// are wrong, costs no installation.
func TestRackCache(t *testing.T) {
	l := newLab(t)
	b := l.upload("1")
	_, err := l.op.Publish(ctx, api.PublishRequest{Manifest: b.raw, Signature: b.sig})
	l.must(err)
	var asked atomic.Int64
	handler := l.srv.ForCaches(nil)
	upstream := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		handler.ServeHTTP(w, r)
	}))
	defer upstream.Close()
	url, files, stop := nginx(t, upstream.URL)

	m := l.ready(1, "rack", b.digest)
	told := func() string {
		t.Helper()
		hb, err := m.c.Heartbeat(ctx, &m.report)
		l.must(err)
		m.c.UseCache(hb.Cache)
		return hb.Cache
	}
	if got := told(); got != "" {
		t.Errorf("without caches nodes are told %q", got)
	}
	l.reload(func(o *server.Options) { o.Caches = map[string]string{"nvl-1": url, "*": "http://other.example"} })
	if got := told(); got != "http://other.example" {
		t.Errorf("a node of no rack that has a cache is told %q", got)
	}
	domain := "nvl-1"
	_, err = l.op.NodeAct(ctx, "n1", "domain", api.NodeRequest{Domain: &domain})
	l.must(err)
	if got := told(); got != url {
		t.Fatalf("told %q, want %q", got, url)
	}
	blob := manifest.DigestOf(b.root)
	fetch := func(from int64) []byte {
		t.Helper()
		r := m.c.Blob(ctx, b.digest, blob, from, int64(len(b.root)))
		defer r.Close()
		got, err := io.ReadAll(r)
		l.must(err)
		return got
	}
	if got := fetch(0); !bytes.Equal(got, b.root) {
		t.Fatalf("through the cache: %d bytes, want the %d of the image", len(got), len(b.root))
	}
	first := asked.Load()
	if first == 0 {
		t.Fatal("the cache asked for nothing: the node did not use it")
	}
	if got := fetch(3); !bytes.Equal(got, b.root[3:]) || asked.Load() != first {
		t.Errorf("again, from byte 3: %d bytes and %d more requests; want all of it, from the cache", len(got), asked.Load()-first)
	}
	if !m.c.DistrustCache() || m.c.DistrustCache() {
		t.Error("that bytes came from the cache is not known, or known twice")
	}
	m.c.UseCache("")
	m.c.UseCache(url)

	// Bytes that changed in the cache come through: the signed manifest is what finds them.
	damage(t, files, b.root)
	if got := fetch(0); bytes.Equal(got, b.root) || !m.c.DistrustCache() {
		t.Errorf("the damaged copy of the cache was not what came, or the cache cannot be blamed")
	}
	if got := fetch(0); !bytes.Equal(got, b.root) {
		t.Error("once the cache is distrusted the server's bytes do not come")
	}
	m.c.UseCache("")
	m.c.UseCache(url)
	stop()
	if got := fetch(0); !bytes.Equal(got, b.root) {
		t.Errorf("with the cache down: %d bytes, want the %d of the image", len(got), len(b.root))
	}
}

// damage changes the last byte of content in all files of the cache.
func damage(t *testing.T, dir string, content []byte) {
	t.Helper()
	tail := content[max(0, len(content)-32):]
	hits := 0
	err := filepath.WalkDir(dir, func(path string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		text, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		if i := bytes.LastIndex(text, tail); i >= 0 {
			hits++
			text[i+len(tail)-1] ^= 1
			return os.WriteFile(path, text, 0o600)
		}
		return nil
	})
	if err != nil || hits == 0 {
		t.Fatalf("found the content in %d files of the cache, %v", hits, err)
	}
}

// The listener for caches gives blobs of published images to whom it may, in
// answers that any HTTP cache can keep, and nothing else.
func TestForCaches(t *testing.T) {
	l := newLab(t)
	b := l.upload("1")
	path := api.PathImages + b.digest + "/blobs/" + manifest.DigestOf(b.root)
	ask := func(clients, method, path string) *httptest.ResponseRecorder {
		var ps []netip.Prefix
		if clients != "" {
			ps = append(ps, netip.MustParsePrefix(clients))
		}
		w := httptest.NewRecorder()
		r := httptest.NewRequest(method, path, nil) // from 192.0.2.1
		l.srv.ForCaches(ps).ServeHTTP(w, r)
		return w
	}
	if w := ask("", http.MethodGet, path); w.Code != http.StatusNotFound {
		t.Errorf("an image that is not published: %d", w.Code)
	}
	_, err := l.op.Publish(ctx, api.PublishRequest{Manifest: b.raw, Signature: b.sig})
	l.must(err)
	w := ask("192.0.2.0/24", http.MethodGet, path)
	h := w.Header()
	if w.Code != http.StatusOK || !bytes.Equal(w.Body.Bytes(), b.root) || h.Get("ETag") != fmt.Sprintf("%q", manifest.DigestOf(b.root)) ||
		!strings.Contains(h.Get("Cache-Control"), "immutable") || h.Get("Accept-Ranges") != "bytes" {
		t.Errorf("a blob: %d, %v", w.Code, h)
	}
	for _, tt := range []struct {
		clients, method, path string
		want                  int
	}{
		{"192.0.3.0/24", http.MethodGet, path, http.StatusForbidden},
		{"", http.MethodGet, api.PathImages + b.digest + "/blobs/sha256:" + strings.Repeat("0", 64), http.StatusNotFound},
		{"", http.MethodGet, api.PathImages + b.digest + "/signature", http.StatusNotFound},
		{"", http.MethodGet, api.PathNodes, http.StatusNotFound},
		{"", http.MethodPost, path, http.StatusMethodNotAllowed},
	} {
		if w := ask(tt.clients, tt.method, tt.path); w.Code != tt.want {
			t.Errorf("%s %s for %q: %d, want %d", tt.method, tt.path, tt.clients, w.Code, tt.want)
		}
	}
}
