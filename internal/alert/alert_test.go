package alert

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/mem"
)

var (
	ctx    = context.Background()
	secret = []byte("0123456789abcdef")
)

// receiver is a webhook that checks signatures.
type receiver struct {
	t      *testing.T
	mu     sync.Mutex
	fail   int // so many answers of 500 come first; -1 for ever
	asked  int
	got    []string // "KIND NODE"
	ids    []string
	server *httptest.Server
}

func newReceiver(t *testing.T) *receiver {
	r := &receiver{t: t}
	r.server = httptest.NewServer(r)
	t.Cleanup(r.server.Close)
	return r
}

func (r *receiver) ServeHTTP(w http.ResponseWriter, q *http.Request) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.asked++
	body, _ := io.ReadAll(q.Body)
	if err := Verify(secret, q.Header, body, time.Now(), time.Minute); err != nil {
		r.t.Errorf("delivery: %v", err)
	}
	r.ids = append(r.ids, q.Header.Get(HeaderDelivery))
	if r.fail != 0 {
		r.fail--
		w.WriteHeader(http.StatusInternalServerError)
		return
	}
	var m Message
	if err := json.Unmarshal(body, &m); err != nil {
		r.t.Error(err)
	}
	for _, e := range m.Events {
		r.got = append(r.got, e.Kind+" "+e.Node)
	}
}

func (r *receiver) story() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.got, ", ")
}

func tell(t *testing.T, s store.Store, kinds ...string) {
	t.Helper()
	err := s.Update(ctx, func(tx store.Tx) error {
		for _, k := range kinds {
			if err := tx.AppendEvent(ctx, &fleet.Event{At: time.Now(), Actor: "server", Node: "n1", Kind: k}); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

func until(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// run sends until stop.
func run(s *Sender) (stop func()) {
	c, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { s.Run(c); close(done) }()
	return func() { cancel(); <-done }
}

func progressOf(t *testing.T, st store.Store, hook string) (p Progress) {
	t.Helper()
	rec, err := st.Record(ctx, Kind, hook)
	if errors.Is(err, store.ErrNotFound) {
		return p
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(rec.Doc, &p); err != nil {
		t.Fatal(err)
	}
	return p
}

// Events that a hook wants arrive in order, once, over failures and a restart
// of the sender; old ones and others do not.
func TestDeliveries(t *testing.T) {
	st, r := mem.New(), newReceiver(t)
	r.fail = 3
	tell(t, st, "node.lost")
	s := &Sender{Store: st, Hooks: []Hook{{Name: "pager", URL: r.server.URL, Secret: secret, Kinds: []string{"node.lost", "recovery."}}}, Pause: time.Millisecond}
	stop := run(s)
	until(t, "a place to start from", func() bool { return progressOf(t, st, "pager").After == 1 })
	tell(t, st, "dhcp.offer", "node.lost", "node.back", "recovery.storm")
	until(t, "two events", func() bool { return r.story() == "node.lost n1, recovery.storm n1" })
	until(t, "a place to go on from", func() bool { return progressOf(t, st, "pager").After == 5 })
	stop()
	tell(t, st, "recovery.would")
	defer run(s)()
	until(t, "the next", func() bool { return r.story() == "node.lost n1, recovery.storm n1, recovery.would n1" })
	if want := []string{"pager-5", "pager-5", "pager-5", "pager-5", "pager-6"}; !slices.Equal(r.ids, want) {
		t.Errorf("deliveries %v; want %v: one that is tried again keeps its name", r.ids, want)
	}
}

// A hook that does not answer is given up, with an event; the others go on,
// and are told.
func TestDead(t *testing.T) {
	st, dead, alive := mem.New(), newReceiver(t), newReceiver(t)
	dead.fail = -1
	s := &Sender{Store: st, Hooks: []Hook{{Name: "dead", URL: dead.server.URL, Secret: secret}, {Name: "alive", URL: alive.server.URL, Secret: secret}}, Pause: time.Microsecond}
	defer run(s)()
	until(t, "both hooks to start", func() bool {
		a, errA := st.Record(ctx, Kind, "dead")
		b, errB := st.Record(ctx, Kind, "alive")
		return errA == nil && errB == nil && a != nil && b != nil
	})
	tell(t, st, "node.lost")
	until(t, "the dead letter", func() bool { return alive.story() == "node.lost n1, alert.dead " })
	ev, err := st.Events(ctx, store.EventQuery{Kind: "alert."})
	if err != nil || len(ev) != 1 || !strings.Contains(ev[0].Message, "webhook dead was not told of 1 event(s), 1 to 1: 14 tries, the last: webhook dead answers 500") {
		t.Errorf("dead letter: %+v, %v", ev, err)
	}
	until(t, "its own failure to be passed over", func() bool { return progressOf(t, st, "dead").After == 2 })
	if p := progressOf(t, st, "dead"); p.Dropped != 1 {
		t.Errorf("progress %+v", p)
	}
}

// Redirects are not followed: they would lead where the configuration does
// not.
func TestNoRedirect(t *testing.T) {
	r := newReceiver(t)
	away := httptest.NewServer(http.RedirectHandler(r.server.URL, http.StatusTemporaryRedirect))
	defer away.Close()
	s := &Sender{}
	err := s.Send(ctx, &Hook{Name: "x", URL: away.URL, Secret: secret}, nil, Message{})
	if err == nil || !strings.Contains(err.Error(), "307") || r.asked != 0 {
		t.Errorf("%v, and the other end was asked %d times", err, r.asked)
	}
}

func TestVerify(t *testing.T) {
	at, body := time.Unix(1_800_000_000, 0), []byte(`{"x":1}`)
	h := http.Header{HeaderTimestamp: {"1800000000"}, HeaderSignature: {Sign(secret, at, body)}}
	// Made with: printf %s '1800000000.{"x":1}' | openssl dgst -sha256 -hmac 0123456789abcdef
	if got, want := Sign(secret, at, body), "v1=3376ffbb07b17659eb9c4b6782ac7a7fbc53ed3970f1df90dc70189c3fcbdc6d"; got != want {
		t.Errorf("Sign = %s; want %s", got, want)
	}
	if err := Verify(secret, h, body, at.Add(time.Minute), 5*time.Minute); err != nil {
		t.Error(err)
	}
	for what, err := range map[string]error{
		"old":            Verify(secret, h, body, at.Add(time.Hour), 5*time.Minute),
		"from later":     Verify(secret, h, body, at.Add(-time.Hour), 5*time.Minute),
		"another body":   Verify(secret, h, []byte(`{"x":2}`), at, 5*time.Minute),
		"another secret": Verify([]byte("x"), h, body, at, 5*time.Minute),
		"no timestamp":   Verify(secret, http.Header{HeaderSignature: h[HeaderSignature]}, body, at, 5*time.Minute),
		"another time":   Verify(secret, http.Header{HeaderTimestamp: {"1800000001"}, HeaderSignature: h[HeaderSignature]}, body, at, 5*time.Minute),
	} {
		if !errors.Is(err, ErrForged) {
			t.Errorf("%s: %v", what, err)
		}
	}
}

func TestReadSecret(t *testing.T) {
	f := filepath.Join(t.TempDir(), "secret")
	for _, c := range []struct {
		text string
		mode os.FileMode
		want string
	}{{"", 0, "openssl rand"}, {"short\n", 0o600, "want at least 16"}, {"0123456789abcdef\n", 0o644, "chmod 600"}, {"0123456789abcdef\n", 0o600, ""}} {
		if c.mode != 0 {
			if err := errors.Join(os.WriteFile(f, []byte(c.text), 0o600), os.Chmod(f, c.mode)); err != nil {
				t.Fatal(err)
			}
		}
		got, err := ReadSecret(f)
		if c.want == "" && string(got) != "0123456789abcdef" || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("%q, %o: %q, %v; want %q", c.text, c.mode, got, err, c.want)
		}
	}
}
