// Package console is the web console: its pages (plain HTML, CSS and
// JavaScript modules, embedded as they are written) and the sessions of the
// browsers that show them. It knows no fleet: the pages speak to the
// operator API like every other client, with a session in place of a token.
//
//	browser --token--> POST /console/session --> cookie and CSRF token
//	browser --cookie (and, to change something, CSRF token)--> /v1/…
//
// The pages load nothing from elsewhere, and the content security policy
// lets them load nothing from elsewhere.
package console

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"encoding/json"
	"errors"
	"io/fs"
	"log/slog"
	"net/http"
	"path"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/store"
)

// Path is where the console is served.
const Path = "/console/"

//go:embed assets
var embedded embed.FS

// Who is an operator as the console shows them.
type Who struct {
	Name string `json:"name"`
	Role string `json:"role"` // "viewer", "operator", "admin"
}

// Options is what a Console is made of.
type Options struct {
	Store store.Store
	Know  func(token [sha256.Size]byte) (Who, bool) // finds an operator by the hash of their token
	Now   func() time.Time
	Log   *slog.Logger // nil: quiet
}

// Console serves the pages and the session. Make one with New.
type Console struct {
	*Sessions
	know  func([sha256.Size]byte) (Who, bool)
	log   *slog.Logger
	files map[string]file
	mux   *http.ServeMux
}

type file struct {
	body       []byte
	kind, etag string
}

// New makes a console.
func New(o Options) *Console {
	c := &Console{Sessions: newSessions(o.Store, o.Now), know: o.Know, log: o.Log, files: load(), mux: http.NewServeMux()}
	if c.log == nil {
		c.log = slog.New(slog.DiscardHandler)
	}
	c.mux.HandleFunc("GET "+Path, c.page)
	c.mux.HandleFunc("GET "+Path+"session", c.showSession)
	c.mux.HandleFunc("POST "+Path+"session", c.signIn)
	c.mux.HandleFunc("DELETE "+Path+"session", c.signOut)
	return c
}

var kinds = map[string]string{
	".html": "text/html; charset=utf-8", ".css": "text/css; charset=utf-8",
	".js": "text/javascript; charset=utf-8", ".svg": "image/svg+xml",
}

// load reads the embedded files once; it cannot fail on what was compiled in.
func load() map[string]file {
	files := map[string]file{}
	err := fs.WalkDir(embedded, "assets", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := embedded.ReadFile(p)
		sum := sha256.Sum256(b)
		files[strings.TrimPrefix(p, "assets/")] = file{b, kinds[path.Ext(p)], `"` + hex.EncodeToString(sum[:12]) + `"`}
		return err
	})
	if err != nil {
		panic("console: embedded files: " + err.Error())
	}
	return files
}

// policy lets a page run our scripts and styles, speak to us, and nothing
// more; text never becomes markup (trusted types), and nobody may frame it.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; manifest-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"

// ServeHTTP implements http.Handler for all below Path.
func (c *Console) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	h := w.Header()
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("X-Frame-Options", "DENY")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cross-Origin-Opener-Policy", "same-origin")
	h.Set("Cross-Origin-Resource-Policy", "same-origin")
	h.Set("Permissions-Policy", "camera=(), geolocation=(), microphone=()")
	h.Set("Cache-Control", "no-cache")
	c.mux.ServeHTTP(w, r)
}

// page sends a file, or index.html for the paths that its script makes.
func (c *Console) page(w http.ResponseWriter, r *http.Request) {
	name := strings.TrimPrefix(r.URL.Path, Path)
	f, ok := c.files[name]
	if !ok && path.Ext(name) != "" && strings.HasPrefix(name, "static/") {
		http.NotFound(w, r)
		return
	}
	if !ok {
		f = c.files["index.html"]
	}
	w.Header().Set("Content-Type", f.kind)
	w.Header().Set("ETag", f.etag)
	http.ServeContent(w, r, "", time.Time{}, bytes.NewReader(f.body))
}

// shown is a session as its page sees it.
type shown struct {
	Who
	CSRF    string    `json:"csrf"`
	Expires time.Time `json:"expires"`
}

func (c *Console) showSession(w http.ResponseWriter, r *http.Request) {
	sess, err := c.Of(r)
	if err != nil {
		c.refuse(w, r, err)
		return
	}
	c.show(w, r, sess)
}

func (c *Console) show(w http.ResponseWriter, r *http.Request, sess *Session) {
	who, ok := c.know(sess.Token)
	if !ok {
		c.refuse(w, r, errNone)
		return
	}
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("Content-Type", "application/json")
	if err := json.NewEncoder(w).Encode(shown{who, sess.CSRF, sess.Expires}); err != nil {
		c.log.Debug("answer not delivered", "path", r.URL.Path, "err", err)
	}
}

// signIn opens a session for an operator's token.
func (c *Console) signIn(w http.ResponseWriter, r *http.Request) {
	var in struct{ Token string }
	if err := crossOrigin.Check(r); err != nil || !strings.HasPrefix(r.Header.Get("Content-Type"), "application/json") {
		c.refuse(w, r, problem(http.StatusForbidden, "sign in on the console's own page"))
		return
	}
	if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 4096)).Decode(&in); err != nil {
		c.refuse(w, r, problem(http.StatusBadRequest, "the request has no token"))
		return
	}
	hash := sha256.Sum256([]byte(strings.TrimSpace(in.Token)))
	who, ok := c.know(hash)
	if !ok {
		c.log.Warn("sign-in refused: unknown token", "client", r.RemoteAddr)
		c.refuse(w, r, problem(http.StatusUnauthorized, "this token is not known here"))
		return
	}
	sess, cookie, err := c.open(r.Context(), hash)
	if err != nil {
		c.refuse(w, r, err)
		return
	}
	c.log.Info("signed in", "operator", who.Name, "role", who.Role, "client", r.RemoteAddr)
	http.SetCookie(w, cookie)
	c.show(w, r, sess)
}

func (c *Console) signOut(w http.ResponseWriter, r *http.Request) {
	if _, err := c.Of(r); err != nil {
		c.refuse(w, r, err)
		return
	}
	if err := c.close(r); err != nil {
		c.refuse(w, r, err)
		return
	}
	http.SetCookie(w, newCookie("", -1))
	w.WriteHeader(http.StatusNoContent)
}

func problem(status int, detail string) *api.Problem {
	return &api.Problem{Title: http.StatusText(status), Status: status, Detail: detail}
}

// refuse writes an error as a problem (RFC 9457).
func (c *Console) refuse(w http.ResponseWriter, r *http.Request, err error) {
	var p *api.Problem
	if !errors.As(err, &p) {
		c.log.Error("request failed", "method", r.Method, "path", r.URL.Path, "err", err)
		p = problem(http.StatusInternalServerError, "the server could not do this; its log says why")
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	if err := json.NewEncoder(w).Encode(p); err != nil {
		c.log.Debug("answer not delivered", "path", r.URL.Path, "err", err)
	}
}
