package console

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/store"
)

// Life and Idle end a session: so long after it was opened, and so long
// after it was last used (a server that was started since counts from its
// start). A page that is open and connected uses it.
const (
	Life = 12 * time.Hour
	Idle = time.Hour
)

const (
	cookieName = "__Host-turnout-session" // the prefix makes browsers insist on Secure, Path=/ and no Domain
	csrfHeader = "X-Turnout-Csrf"
	ticketKind = "console-session"
	recheck    = time.Minute // how long another server's sign-out may go unnoticed
	maxCached  = 4096
)

// Session is a browser that is signed in. Token is the hash of the
// operator's token that opened it: the session may do what the token may,
// and ends when the token is taken away.
type Session struct {
	Token   [sha256.Size]byte
	CSRF    string
	Expires time.Time
}

// Sessions keeps browsers signed in across a restart of the server: a
// session is a ticket in the store, filed under the hash of the cookie.
type Sessions struct {
	store store.Store
	now   func() time.Time

	mu     sync.Mutex
	cached map[string]*cachedSession // by ticket key
}

type cachedSession struct {
	Session
	used, checked time.Time
}

// payload is what a ticket keeps of a session.
type payload struct {
	Token string `json:"token"`
	CSRF  string `json:"csrf"`
}

func newSessions(st store.Store, now func() time.Time) *Sessions {
	return &Sessions{store: st, now: now, cached: map[string]*cachedSession{}}
}

func random() string {
	b := make([]byte, 32)
	rand.Read(b) //nolint:errcheck // never fails since Go 1.24
	return hex.EncodeToString(b)
}

func keyOf(cookie string) string {
	h := sha256.Sum256([]byte(cookie))
	return hex.EncodeToString(h[:])
}

// open makes a session and its cookie.
func (s *Sessions) open(ctx context.Context, token [sha256.Size]byte) (*Session, *http.Cookie, error) {
	id := random()
	sess := Session{Token: token, CSRF: random(), Expires: s.now().Add(Life)}
	if err := s.store.Update(ctx, func(tx store.Tx) error { return put(ctx, tx, keyOf(id), &sess) }); err != nil {
		return nil, nil, fmt.Errorf("opening a session: %w", err)
	}
	s.cache(keyOf(id), sess)
	return &sess, newCookie(id, int(Life.Seconds())), nil
}

func newCookie(value string, maxAge int) *http.Cookie {
	return &http.Cookie{Name: cookieName, Value: value, Path: "/", MaxAge: maxAge, Secure: true, HttpOnly: true, SameSite: http.SameSiteStrictMode}
}

func put(ctx context.Context, tx store.Tx, key string, sess *Session) error {
	p, err := json.Marshal(payload{hex.EncodeToString(sess.Token[:]), sess.CSRF})
	if err != nil {
		return err
	}
	return tx.PutTicket(ctx, &store.Ticket{Kind: ticketKind, Key: key, Expires: sess.Expires, Payload: p})
}

func (s *Sessions) cache(key string, sess Session) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.cached) >= maxCached {
		clear(s.cached) // they are in the store
	}
	s.cached[key] = &cachedSession{sess, s.now(), s.now()}
}

// errNone says that a request has no session, or one that is over.
var errNone = &api.Problem{Title: http.StatusText(http.StatusUnauthorized), Status: http.StatusUnauthorized,
	Detail: "not signed in, or the session has ended", Hint: "sign in with an operator's token"}

// Has reports whether a request comes with a session cookie, good or not.
func Has(r *http.Request) bool {
	_, err := r.Cookie(cookieName)
	return err == nil
}

// Of returns the session of a request. One that could change something must
// show that it comes from a page of ours: by the session's CSRF token in
// X-Turnout-Csrf, and by what the browser says of where it comes from.
func (s *Sessions) Of(r *http.Request) (*Session, error) {
	c, err := r.Cookie(cookieName)
	if err != nil {
		return nil, errNone
	}
	sess, err := s.find(r.Context(), keyOf(c.Value))
	if err != nil {
		return nil, err
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return sess, nil
	}
	if err := crossOrigin.Check(r); err != nil || subtle.ConstantTimeCompare([]byte(r.Header.Get(csrfHeader)), []byte(sess.CSRF)) != 1 {
		return nil, &api.Problem{Title: http.StatusText(http.StatusForbidden), Status: http.StatusForbidden,
			Detail: "the request does not come from a page of this console", Hint: "reload the page"}
	}
	return sess, nil
}

var crossOrigin = http.NewCrossOriginProtection()

// find looks in the cache, and now and then in the store.
func (s *Sessions) find(ctx context.Context, key string) (*Session, error) {
	now := s.now()
	s.mu.Lock()
	c := s.cached[key]
	idle := c != nil && now.Sub(c.used) > Idle
	if c != nil && !idle && now.Sub(c.checked) < recheck && now.Before(c.Expires) {
		c.used = now
		sess := c.Session
		s.mu.Unlock()
		return &sess, nil
	}
	s.mu.Unlock()
	if idle {
		return nil, s.drop(ctx, key)
	}
	sess, err := s.load(ctx, key)
	if err != nil {
		s.forget(key)
		return nil, err
	}
	s.cache(key, *sess)
	return sess, nil
}

// load takes the ticket and puts it back: the store has no other way to look.
func (s *Sessions) load(ctx context.Context, key string) (*Session, error) {
	sess := &Session{}
	err := s.store.Update(ctx, func(tx store.Tx) error {
		t, err := tx.TakeTicket(ctx, ticketKind, key, "", s.now())
		if err != nil {
			return err
		}
		var p payload
		if err := json.Unmarshal(t.Payload, &p); err != nil {
			return err
		}
		h, err := hex.DecodeString(p.Token)
		if err != nil || len(h) != len(sess.Token) {
			return errNone
		}
		sess.Token, sess.CSRF, sess.Expires = [sha256.Size]byte(h), p.CSRF, t.Expires
		return tx.PutTicket(ctx, t)
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, errNone
	}
	return sess, err
}

func (s *Sessions) forget(key string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.cached, key)
}

// drop ends a session; the error is what a request with it gets.
func (s *Sessions) drop(ctx context.Context, key string) error {
	s.forget(key)
	err := s.store.Update(ctx, func(tx store.Tx) error {
		_, err := tx.TakeTicket(ctx, ticketKind, key, "", s.now())
		return err
	})
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return errNone
}

// close ends the session of a request, if it has one.
func (s *Sessions) close(r *http.Request) error {
	c, err := r.Cookie(cookieName)
	if err != nil {
		return nil
	}
	if err := s.drop(r.Context(), keyOf(c.Value)); !errors.Is(err, errNone) {
		return err
	}
	return nil
}
