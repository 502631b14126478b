package cas

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// mirror serves files by the path that came over the wire, and counts requests.
type mirror struct {
	*httptest.Server
	mu    sync.Mutex
	files map[string]string // escaped path to content
	asked []string
	fail  func(w http.ResponseWriter, n int) bool // n-th request, from 1; true if it was answered
}

func newMirror(t *testing.T, files map[string]string) *mirror {
	t.Helper()
	m := &mirror{files: files}
	m.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		path := r.RequestURI
		m.mu.Lock()
		m.asked = append(m.asked, path)
		n, content, ok := len(m.asked), m.files[path], false
		if _, ok = m.files[path]; !ok {
			content = ""
		}
		m.mu.Unlock()
		switch {
		case m.fail != nil && m.fail(w, n):
		case !ok:
			http.NotFound(w, r)
		default:
			fmt.Fprint(w, content)
		}
	}))
	t.Cleanup(m.Close)
	return m
}

func item(m *mirror, path, content string) Item {
	return Item{Name: strings.TrimPrefix(path, "/"), URI: m.URL + path, SHA256: sumOf([]byte(content)), Size: int64(len(content))}
}

func TestFetch(t *testing.T) {
	m := newMirror(t, map[string]string{"/a.deb": "aaa", "/b.deb": "bbbb"})
	s := open(t)
	items := []Item{item(m, "/a.deb", "aaa"), item(m, "/b.deb", "bbbb"), item(m, "/a.deb", "aaa")}
	var last Progress
	tell := func(p Progress) {
		if p.Items > p.ItemsTotal || p.Items < last.Items {
			t.Errorf("progress went from %+v to %+v", last, p)
		}
		last = p
	}
	if err := s.Fetch(context.Background(), items, 1, tell); err != nil {
		t.Fatal(err)
	}
	if want := (Progress{Items: 3, ItemsTotal: 3, Bytes: 10, BytesTotal: 10, BytesLoaded: 7}); cmp.Diff(want, clean(last)) != "" {
		t.Errorf("last progress = %+v, want %+v", last, want)
	}
	if !s.Has(items[0].SHA256) || !s.Has(items[1].SHA256) {
		t.Error("a blob is missing")
	}
	s.Offline, last = true, Progress{}
	if err := s.Fetch(context.Background(), items, 0, tell); err != nil {
		t.Errorf("offline Fetch of what is there = %v", err)
	}
	if last.BytesLoaded != 0 || last.Bytes != 10 || len(m.asked) != 2 {
		t.Errorf("second Fetch: %+v, %d requests in all; want none more than 2", last, len(m.asked))
	}
	err := s.Fetch(context.Background(), []Item{item(m, "/c.deb", "c")}, 0, nil)
	if err == nil || !strings.Contains(err.Error(), "c.deb") || !strings.Contains(err.Error(), "offline") {
		t.Errorf("offline Fetch of what is not there = %v", err)
	}
}

func clean(p Progress) Progress { p.Name = ""; return p }

// Mirrors want "+" as %2B and "~" as it is; some know another spelling only.
func TestFetchSpelling(t *testing.T) {
	names := []string{
		"libollama-nvidia_0.11.5~rc2_amd64.deb", "passenger-common1.8_3.0.21-1bbox1+ng_amd64.deb",
		"librdkafka++1_2.10.1-1.cflt~ubu22_amd64.deb", "mono-runtime-common_6.8.0.105+dfsg-3.2_amd64.deb",
	}
	encode := func(r ...string) func(string) string { return strings.NewReplacer(r...).Replace }
	servers := map[string]func(string) string{
		"%2B":         encode("+", "%2B"),
		"plain":       encode(),
		"%2B and %7E": encode("+", "%2B", "~", "%7E"),
	}
	for server, spelled := range servers {
		files := map[string]string{}
		for _, n := range names {
			files[spelled("/pool/"+n)] = n
		}
		m := newMirror(t, files)
		for _, uri := range []func(string) string{encode(), encode("+", "%2b", "~", "%7e")} {
			s := open(t)
			m.asked = nil
			var items []Item
			for _, n := range names {
				items = append(items, Item{Name: n, URI: m.URL + uri("/pool/"+n), SHA256: sumOf([]byte(n)), Size: int64(len(n))})
			}
			if err := s.Fetch(context.Background(), items, 1, nil); err != nil {
				t.Errorf("a server that knows %s: %v", server, err)
			}
			if first := m.asked[0]; strings.ContainsAny(first, "+") {
				t.Errorf("asked first for %s, with a plain +", first)
			}
			if server == "%2B" && len(m.asked) != len(names) {
				t.Errorf("a server that knows %%2B was asked %d times for %d files", len(m.asked), len(names))
			}
		}
	}
}

func TestFetchRetries(t *testing.T) {
	m := newMirror(t, map[string]string{"/a.deb": "aaa"})
	m.fail = func(w http.ResponseWriter, n int) bool {
		switch n {
		case 1:
			w.WriteHeader(http.StatusServiceUnavailable)
		case 2: // the connection breaks in the middle of the body
			w.Header().Set("Content-Length", "3")
			fmt.Fprint(w, "a")
			panic(http.ErrAbortHandler)
		default:
			return false
		}
		return true
	}
	s := open(t)
	var last Progress
	if err := s.Fetch(context.Background(), []Item{item(m, "/a.deb", "aaa")}, 0, func(p Progress) { last = p }); err != nil {
		t.Fatal(err)
	}
	if len(m.asked) != 3 || last.Bytes != 3 {
		t.Errorf("%d requests, progress %+v; want 3 requests and 3 bytes", len(m.asked), last)
	}
}

func TestFetchGone(t *testing.T) {
	gone := newMirror(t, nil)
	other := newMirror(t, map[string]string{"/a.deb": "xxx"})
	s := open(t)
	s.Mirrors = []string{other.URL, t.TempDir()}
	err := s.Fetch(context.Background(), []Item{item(gone, "/a+b.deb", "aaa")}, 0, nil)
	var g *GoneError
	if !errors.As(err, &g) || len(g.Sources) != 3 {
		t.Fatalf("Fetch = %v, want a *GoneError of three sources", err)
	}
	for _, want := range []string{"a+b.deb", "gone from every source", gone.URL, other.URL, "404"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error %q does not say %q", err, want)
		}
	}
	if s.Has(sumOf([]byte("aaa"))) || len(left(t, s)) != 0 {
		t.Error("a failed Fetch left something")
	}
}

func TestFetchWrongBytes(t *testing.T) {
	m := newMirror(t, map[string]string{"/a.deb": "evil"})
	s := open(t)
	err := s.Fetch(context.Background(), []Item{item(m, "/a.deb", "good")}, 0, nil)
	var mismatch *MismatchError
	if !errors.As(err, &mismatch) || len(m.asked) != 1 {
		t.Errorf("Fetch = %v after %d requests; want a *MismatchError after one", err, len(m.asked))
	}
	if s.Has(sumOf([]byte("evil"))) || s.Has(sumOf([]byte("good"))) {
		t.Error("wrong bytes are in the store")
	}
}

// A store is a mirror for others, over HTTP and as a folder.
func TestMirrors(t *testing.T) {
	gone := newMirror(t, nil)
	it := item(gone, "/a.deb", "aaa")
	full := open(t)
	if err := full.Put(context.Background(), it.SHA256, it.Size, strings.NewReader("aaa")); err != nil {
		t.Fatal(err)
	}
	web := httptest.NewServer(http.FileServer(http.Dir(full.Dir())))
	defer web.Close()
	for _, m := range []string{full.Dir(), full.Dir() + "/", web.URL, web.URL + "/"} {
		s := open(t)
		s.Mirrors = []string{m}
		if err := s.Fetch(context.Background(), []Item{it}, 0, nil); err != nil {
			t.Errorf("Fetch from mirror %s = %v", m, err)
		}
		if !s.Has(it.SHA256) {
			t.Errorf("the blob of mirror %s is not in the store", m)
		}
	}
}

func TestFetchCancelled(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	m := newMirror(t, nil)
	m.fail = func(w http.ResponseWriter, n int) bool {
		cancel()
		w.WriteHeader(http.StatusServiceUnavailable)
		return true
	}
	err := open(t).Fetch(ctx, []Item{item(m, "/a.deb", "aaa")}, 0, nil)
	if !errors.Is(err, context.Canceled) || len(m.asked) != 1 {
		t.Errorf("Fetch = %v after %d requests, want %v after one", err, len(m.asked), context.Canceled)
	}
}
