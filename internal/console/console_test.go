package console_test

import (
	"bytes"
	"crypto/tls"
	"encoding/json"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/console"
	"github.com/turnout-project/turnout/internal/server"
)

// visitor is a browser as far as HTTP goes: it keeps one cookie.
type visitor struct {
	l      *lab
	cookie *http.Cookie
	csrf   string
}

// ask sends a request with the cookie and headers "K: v", and returns the
// status and the body.
func (v *visitor) ask(method, path, body string, headers ...string) (*http.Response, string) {
	v.l.t.Helper()
	req, err := http.NewRequest(method, v.l.url+path, strings.NewReader(body))
	v.l.must(err)
	if body != "" {
		req.Header.Set("Content-Type", "application/json")
	}
	for _, h := range headers {
		k, val, _ := strings.Cut(h, ": ")
		req.Header.Set(k, val)
	}
	if v.cookie != nil {
		req.AddCookie(v.cookie)
	}
	c := &http.Client{Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true},
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.Do(req)
	v.l.must(err)
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	v.l.must(err)
	for _, k := range resp.Cookies() {
		v.cookie = k
	}
	return resp, string(b)
}

func (v *visitor) want(status int, method, path, body string, headers ...string) string {
	v.l.t.Helper()
	resp, b := v.ask(method, path, body, headers...)
	if resp.StatusCode != status {
		v.l.t.Errorf("%s %s %v = %s %s; want %d", method, path, headers, resp.Status, b, status)
	}
	return b
}

func (l *lab) signIn(role string) *visitor {
	l.t.Helper()
	v := &visitor{l: l}
	var s struct{ Name, Role, CSRF string }
	l.must(json.Unmarshal([]byte(v.want(200, "POST", "/console/session", `{"token":"`+l.tokens[role]+`"}`)), &s))
	if s.Role != role || s.Name != role+"-alice" || s.CSRF == "" || v.cookie == nil {
		l.t.Fatalf("session = %+v, cookie %v", s, v.cookie)
	}
	v.csrf = "X-Turnout-Csrf: " + s.CSRF
	return v
}

func TestPages(t *testing.T) {
	l := newLab(t)
	v := &visitor{l: l}
	if resp, _ := v.ask("GET", "/", ""); resp.StatusCode != http.StatusFound || resp.Header.Get("Location") != console.Path {
		t.Errorf("GET / = %s to %q; want 302 to %s", resp.Status, resp.Header.Get("Location"), console.Path)
	}
	for p, kind := range map[string]string{
		"": "text/html; charset=utf-8", "fleet": "text/html; charset=utf-8", "nodes/r1-n01": "text/html; charset=utf-8",
		"static/app.js": "text/javascript; charset=utf-8", "static/base.css": "text/css; charset=utf-8", "static/icon.svg": "image/svg+xml",
	} {
		resp, body := v.ask("GET", console.Path+p, "")
		if resp.StatusCode != 200 || resp.Header.Get("Content-Type") != kind || body == "" {
			t.Errorf("GET %s = %s, %q, %d bytes; want 200, %q", p, resp.Status, resp.Header.Get("Content-Type"), len(body), kind)
		}
		if again, _ := v.ask("GET", console.Path+p, "", "If-None-Match: "+resp.Header.Get("ETag")); again.StatusCode != http.StatusNotModified {
			t.Errorf("GET %s with its ETag = %s; want 304", p, again.Status)
		}
		for k, want := range map[string]string{"X-Content-Type-Options": "nosniff", "X-Frame-Options": "DENY", "Referrer-Policy": "no-referrer", "Cross-Origin-Opener-Policy": "same-origin"} {
			if got := resp.Header.Get(k); got != want {
				t.Errorf("GET %s: %s = %q; want %q", p, k, got, want)
			}
		}
		csp := resp.Header.Get("Content-Security-Policy")
		for _, d := range []string{"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'", "frame-ancestors 'none'", "base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'"} {
			if !slices.Contains(strings.Split(csp, "; "), d) {
				t.Errorf("GET %s: policy %q lacks %q", p, csp, d)
			}
		}
	}
	v.want(404, "GET", "/console/static/no-such.js", "")
	v.want(405, "PUT", "/console/fleet", "")
}

// The pages name nothing outside, no script or style within the markup, and
// only files that are there.
func TestAssets(t *testing.T) {
	files := os.DirFS("assets")
	names := regexp.MustCompile(`(?:from|import\()\s*"\./([^"]+)"|/console/(static/[a-z.]+)`)
	count := 0
	err := fs.WalkDir(files, ".", func(p string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := fs.ReadFile(files, p)
		count++
		for _, bad := range []string{"innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "onclick=", "style=\"", "<style", "@import"} {
			if bytes.Contains(b, []byte(bad)) {
				t.Errorf("%s has %q, which the policy forbids", p, bad)
			}
		}
		for _, u := range regexp.MustCompile(`https?://[^"\s)]+`).FindAllString(string(b), -1) {
			if u != "http://www.w3.org/2000/svg" {
				t.Errorf("%s names %s", p, u)
			}
		}
		for _, m := range names.FindAllStringSubmatch(string(b), -1) {
			name := m[2]
			if m[1] != "" {
				name = path.Join(path.Dir(p), m[1])
			}
			if _, err := fs.Stat(files, name); err != nil {
				t.Errorf("%s names %s: %v", p, name, err)
			}
		}
		return err
	})
	if err != nil || count < 10 {
		t.Fatalf("%d files, %v", count, err)
	}
}

func TestCookie(t *testing.T) {
	c := newLab(t).signIn("viewer").cookie
	if !c.HttpOnly || !c.Secure || c.SameSite != http.SameSiteStrictMode || c.Path != "/" || c.Domain != "" || !strings.HasPrefix(c.Name, "__Host-") || c.MaxAge != int(console.Life.Seconds()) {
		t.Errorf("cookie = %+v; want HttpOnly, Secure, SameSite=Strict, __Host-, %s", c, console.Life)
	}
}

func TestSignIn(t *testing.T) {
	l := newLab(t)
	v := &visitor{l: l}
	v.want(401, "GET", "/console/session", "")
	v.want(401, "POST", "/console/session", `{"token":"turnout_wrong"}`)
	v.want(401, "POST", "/console/session", `{}`)
	v.want(400, "POST", "/console/session", `{`)
	good := `{"token":"` + l.tokens["viewer"] + `"}`
	v.want(403, "POST", "/console/session", good, "Content-Type: text/plain")
	v.want(403, "POST", "/console/session", good, "Sec-Fetch-Site: cross-site")
	v.want(403, "POST", "/console/session", good, "Origin: https://evil.example")
	if v.cookie != nil {
		t.Errorf("a refused sign-in left cookie %v", v.cookie)
	}
	v = l.signIn("viewer")
	v.want(200, "GET", "/console/session", "")
	v.want(200, "GET", api.PathNodes, "")
	cookie := v.cookie
	v.want(403, "DELETE", "/console/session", "")
	v.want(204, "DELETE", "/console/session", "", v.csrf)
	v.cookie = cookie // a thief's copy
	v.want(401, "GET", api.PathNodes, "")
	v.want(401, "GET", "/console/session", "")
}

// A session may do what the operator's token may, and no more.
func TestRoles(t *testing.T) {
	l := newLab(t)
	l.seed(10, l.publish("2", "6.2"), l.publish("1", "6.1"))
	cordon := func(v *visitor, status int) {
		t.Helper()
		v.want(status, "POST", api.PathNodes+"/r1-n02/cordon", `{"reason":"test"}`, v.csrf)
		v.want(status, "POST", api.PathNodes+"/r1-n02/uncordon", `{}`, v.csrf)
	}
	cordon(l.signIn("viewer"), 403)
	cordon(l.signIn("operator"), 200)
	cordon(l.signIn("admin"), 200)
	l.signIn("viewer").want(200, "GET", api.PathNodes+"/r1-n02/timeline", "")
	op := l.signIn("operator")
	op.want(403, "POST", api.PathNodes+"/r1-n02/cleartpm", `{}`, op.csrf)
	ev, err := l.op.Events(ctx, api.EventQuery{Kind: "node.cordon"})
	l.must(err)
	if len(ev) != 2 || ev[0].Actor != "operator:operator-alice" {
		t.Errorf("events = %+v; want two cordons by their operators", ev)
	}
}

// What changes something needs the session's CSRF token and comes from our
// own pages; a bearer token needs neither.
func TestCrossSite(t *testing.T) {
	l := newLab(t)
	l.seed(10, l.publish("2", "6.2"), l.publish("1", "6.1"))
	v, other := l.signIn("operator"), l.signIn("operator")
	act := api.PathNodes + "/r1-n02/cordon"
	v.want(403, "POST", act, `{}`)
	v.want(403, "POST", act, `{}`, "X-Turnout-Csrf: ")
	v.want(403, "POST", act, `{}`, other.csrf)
	v.want(403, "POST", act, `{}`, v.csrf, "Sec-Fetch-Site: cross-site")
	v.want(403, "POST", act, `{}`, v.csrf, "Sec-Fetch-Site: same-site")
	v.want(403, "POST", act, `{}`, v.csrf, "Origin: https://evil.example")
	v.want(403, "DELETE", api.PathNodes+"/r1-n02", "")
	v.want(200, "POST", act, `{}`, v.csrf, "Sec-Fetch-Site: same-origin", "Origin: "+l.url)
	(&visitor{l: l}).want(200, "POST", act, `{}`, "Authorization: Bearer "+l.tokens["operator"])
}

// Sessions end by themselves, live through a restart of the server, and do
// not outlive the token that opened them.
func TestSessionsEnd(t *testing.T) {
	l := newLab(t)
	busy, idle := l.signIn("viewer"), l.signIn("viewer")
	for range 3 {
		l.ahead += console.Idle - time.Minute
		busy.want(200, "GET", api.PathVersion, "")
	}
	idle.want(401, "GET", api.PathVersion, "")
	l.start()
	busy.want(200, "GET", api.PathVersion, "")
	idle.want(401, "GET", api.PathVersion, "")
	for l.ahead < console.Life-console.Idle {
		l.ahead += console.Idle / 2
		busy.want(200, "GET", api.PathVersion, "")
	}
	l.ahead = console.Life + time.Second
	busy.want(401, "GET", api.PathVersion, "")

	v := l.signIn("operator")
	l.o.Tokens = slices.DeleteFunc(l.o.Tokens, func(k server.Token) bool { return k.Name == "operator-alice" })
	l.start()
	v.want(401, "GET", api.PathVersion, "")
	v.want(401, "GET", "/console/session", "")
}

// A sign-out at one server holds at another on the same store, in a minute.
func TestSignOutElsewhere(t *testing.T) {
	l := newLab(t)
	v := l.signIn("viewer")
	first := l.url
	l.start() // l.url is another server's now
	v.want(200, "GET", api.PathVersion, "")
	v.want(204, "DELETE", "/console/session", "", v.csrf)
	l.url = first
	l.ahead += time.Minute
	v.want(401, "GET", api.PathVersion, "")
}

func TestMalformedCookies(t *testing.T) {
	l := newLab(t)
	v := l.signIn("viewer")
	for _, value := range []string{"", "x", strings.Repeat("0", 64), v.cookie.Value + "0"} {
		c := *v.cookie
		c.Value = value
		(&visitor{l: l, cookie: &c}).want(401, "GET", api.PathNodes, "")
	}
}
