package cas

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/turnout-project/turnout/internal/pause"
)

// Item is one file to fetch.
type Item struct {
	Name   string // for people: "libc6 2.36-9+deb12u13"
	URI    string // http or https
	SHA256 string // 64 hex digits
	Size   int64  // bytes
}

// GoneError tells that no source has an item (any more).
type GoneError struct {
	Item    Item
	Sources []error // one for each source that was asked
}

func (e *GoneError) Error() string {
	var why []string
	for _, err := range e.Sources {
		why = append(why, err.Error())
	}
	return fmt.Sprintf("%s (sha256 %.12s…) is gone from every source: %s",
		e.Item.Name, e.Item.SHA256, strings.Join(why, "; "))
}

func (e *GoneError) Unwrap() []error { return e.Sources }

// attempts is how often one address is asked when the network or the server
// fails; an answer of 404 or wrong bytes is not asked for again.
const attempts = 4

// client has no overall time-out, since packages may be large and lines slow;
// a connection that stays silent is given up by stalled.
var client = &http.Client{Transport: &http.Transport{
	Proxy:                 http.ProxyFromEnvironment,
	DialContext:           (&net.Dialer{Timeout: 15 * time.Second}).DialContext,
	TLSHandshakeTimeout:   15 * time.Second,
	ResponseHeaderTimeout: 60 * time.Second,
	MaxIdleConnsPerHost:   16,
	ForceAttemptHTTP2:     true,
}}

// stalled is how long a body may bring nothing.
const stalled = 60 * time.Second

// Fetch brings every item that is missing into the store, parallel at a time
// (0 means 8), each checked by size and SHA-256. It calls progress, if not
// nil, from one goroutine at a time. On an error the items that arrived stay.
func (s *Store) Fetch(ctx context.Context, items []Item, parallel int, progress func(Progress)) error {
	if parallel <= 0 {
		parallel = 8
	}
	m := newMeter(items, progress)
	var missing []Item
	for _, it := range items {
		if err := checkSum(it.SHA256); err != nil {
			return fmt.Errorf("%s: %w", it.Name, err)
		}
		if s.hasItem(it) {
			m.had(it)
			continue
		}
		missing = append(missing, it)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.SetLimit(parallel)
	for _, it := range missing {
		g.Go(func() error { return s.fetchItem(ctx, it, m) })
	}
	return g.Wait()
}

// hasItem is Has, but for a blob that a crash of the machine cut short.
func (s *Store) hasItem(it Item) bool {
	st, err := os.Stat(s.Path(it.SHA256))
	return err == nil && st.Mode().IsRegular() && st.Size() == it.Size
}

func (s *Store) fetchItem(ctx context.Context, it Item, m *meter) error {
	if s.hasItem(it) { // another process, or an item listed twice
		m.had(it)
		return nil
	}
	if s.Offline && len(s.Sources) == 0 && !slices.ContainsFunc(s.Mirrors, filepath.IsAbs) {
		return fmt.Errorf("%s (sha256 %.12s…) is not in the store %s, and the build is offline", it.Name, it.SHA256, s.dir)
	}
	var failed []error
	for _, spellings := range s.sources(it) {
		err := s.fetchSpelled(ctx, it, spellings, m)
		if err == nil {
			m.done(it)
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		failed = append(failed, fmt.Errorf("%s: %w", spellings[0], err))
	}
	for _, from := range s.Sources {
		err := s.fetchSource(ctx, it, from, m)
		if err == nil {
			m.done(it)
			return nil
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		failed = append(failed, fmt.Errorf("%s: %w", from, err))
	}
	return &GoneError{Item: it, Sources: failed}
}

// sources returns the sources of an item in the order they are asked, each
// with the spellings of its address. A mirror of Debian wants "+" as %2B,
// since many web servers read a plain "+" as a space; a few know another
// spelling only.
func (s *Store) sources(it Item) [][]string {
	plain := strings.NewReplacer("%2B", "+", "%2b", "+", "%7E", "~", "%7e", "~").Replace(it.URI)
	spellings := []string{strings.ReplaceAll(plain, "+", "%2B")}
	for _, f := range []string{plain, strings.NewReplacer("+", "%2B", "~", "%7E").Replace(plain)} {
		if !slices.Contains(spellings, f) {
			spellings = append(spellings, f)
		}
	}
	all := [][]string{spellings}
	if s.Offline {
		all = nil
	}
	for _, m := range s.Mirrors {
		if s.Offline && !filepath.IsAbs(m) {
			continue
		}
		all = append(all, []string{strings.TrimSuffix(m, "/") + "/sha256/" + it.SHA256[:2] + "/" + it.SHA256})
	}
	return all
}

// fetchSpelled tries the spellings of one address until the server knows one.
// It returns the error of the first.
func (s *Store) fetchSpelled(ctx context.Context, it Item, spellings []string, m *meter) error {
	var first error
	for _, from := range spellings {
		err := s.fetchFrom(ctx, it, from, m)
		if err == nil {
			return nil
		}
		if first == nil {
			first = err
		}
		var status statusError
		if !errors.As(err, &status) || status.temporary() {
			break
		}
	}
	return first
}

func (s *Store) fetchFrom(ctx context.Context, it Item, from string, m *meter) error {
	if filepath.IsAbs(from) {
		f, err := os.Open(from)
		if err != nil {
			return errors.New("not there")
		}
		defer f.Close()
		body := &watched{r: f, meter: m, item: it, timer: time.NewTimer(stalled)}
		if err = s.Put(ctx, it.SHA256, it.Size, body); err != nil {
			m.lost(body.n)
		}
		return err
	}
	var err error
	for n := range attempts {
		if n > 0 {
			if err := pause.For(ctx, time.Duration(1<<n)*250*time.Millisecond); err != nil {
				return err
			}
		}
		var again bool
		if again, err = s.get(ctx, it, from, m); err == nil || !again {
			return err
		}
	}
	return fmt.Errorf("%w (%d attempts)", err, attempts)
}

// get makes one request, and tells whether another one may go better.
func (s *Store) get(ctx context.Context, it Item, from string, m *meter) (again bool, err error) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, from, nil)
	if err != nil {
		return false, err
	}
	resp, err := client.Do(req)
	if err != nil {
		var ue *url.Error
		if errors.As(err, &ue) {
			err = ue.Err
		}
		return true, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		status := statusError(resp.StatusCode)
		return status.temporary(), status
	}
	body := &watched{r: resp.Body, meter: m, item: it, timer: time.AfterFunc(stalled, func() {
		cancel(fmt.Errorf("nothing came for %s", stalled))
	})}
	defer body.timer.Stop()
	err = s.Put(ctx, it.SHA256, it.Size, body)
	if err == nil {
		return false, nil
	}
	m.lost(body.n)
	if cause := context.Cause(ctx); cause != nil && !errors.Is(cause, context.Canceled) {
		err = cause
	}
	// A body that ends early is a broken connection; one that is too long or
	// has another hash is another file.
	var mismatch *MismatchError
	return !errors.As(err, &mismatch) || mismatch.GotSize < it.Size, err
}

// statusError is an answer other than 200.
type statusError int

func (s statusError) Error() string {
	return fmt.Sprintf("the server answers %d %s", int(s), http.StatusText(int(s)))
}

func (s statusError) temporary() bool {
	return s >= 500 || s == http.StatusTooManyRequests || s == http.StatusRequestTimeout
}

// watched counts a body and gives it up when it stalls.
type watched struct {
	r     io.Reader
	timer *time.Timer
	meter *meter
	item  Item
	n     int64
}

func (w *watched) Read(b []byte) (int, error) {
	n, err := w.r.Read(b)
	w.timer.Reset(stalled)
	w.n += int64(n)
	w.meter.loaded(w.item, int64(n))
	return n, err
}
