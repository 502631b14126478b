package console_test

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"
)

// browser is a headless Chromium, spoken to by WebDriver
// (https://www.w3.org/TR/webdriver2/) through chromedriver.
type browser struct {
	t       *testing.T
	session string // URL
	shots   string // folder
}

func newBrowser(t *testing.T) *browser {
	t.Helper()
	driver, err := exec.LookPath("chromedriver")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatalf("chromedriver: %v (scripts/deps.sh installs chromium-driver)", err)
		}
		t.Skip("no chromedriver: apt-get install chromium chromium-driver")
	}
	cmd := exec.Command(driver, "--port=0")
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); cmd.Wait() }) //nolint:errcheck // it is over
	b := &browser{t: t, shots: t.ArtifactDir(), session: "http://127.0.0.1:" + portOf(t, out) + "/session"}
	var s struct{ SessionID string }
	b.do("POST", "", map[string]any{"capabilities": map[string]any{"alwaysMatch": map[string]any{
		"acceptInsecureCerts": true,
		"goog:loggingPrefs":   map[string]string{"browser": "ALL"},
		"goog:chromeOptions": map[string]any{"args": []string{"--headless=new", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
			"--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--user-data-dir=" + t.TempDir(), "--window-size=1440,900"}},
	}}}, &s)
	b.session += "/" + s.SessionID
	t.Cleanup(func() { b.do("DELETE", "", nil, nil) })
	return b
}

// portOf reads the port that chromedriver says it listens on.
func portOf(t *testing.T, out interface{ Read([]byte) (int, error) }) string {
	t.Helper()
	said := regexp.MustCompile(`started successfully on port (\d+)`)
	var text strings.Builder
	buf := make([]byte, 4096)
	for {
		n, err := out.Read(buf)
		text.Write(buf[:n])
		if m := said.FindStringSubmatch(text.String()); m != nil {
			go func() { // it must not block on what it says later
				for err == nil {
					_, err = out.Read(buf)
				}
			}()
			return m[1]
		}
		if err != nil {
			t.Fatalf("chromedriver: %v, said %q", err, text.String())
		}
	}
}

// do sends a command; out gets the value of the answer.
func (b *browser) do(method, path string, in, out any) {
	b.t.Helper()
	var body bytes.Buffer
	if in != nil {
		if err := json.NewEncoder(&body).Encode(in); err != nil {
			b.t.Fatal(err)
		}
	}
	req, err := http.NewRequest(method, b.session+path, &body)
	if err != nil {
		b.t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		b.t.Fatal(err)
	}
	defer resp.Body.Close()
	var a struct{ Value json.RawMessage }
	if err := json.NewDecoder(resp.Body).Decode(&a); err != nil || resp.StatusCode != http.StatusOK {
		b.t.Fatalf("%s %s: %s, %v: %.600s", method, path, resp.Status, err, a.Value)
	}
	if out != nil {
		if err := json.Unmarshal(a.Value, out); err != nil {
			b.t.Fatalf("%s %s: %v in %s", method, path, err, a.Value)
		}
	}
}

// js runs a script's body and returns what it returns.
func js[T any](b *browser, script string, args ...any) (v T) {
	b.t.Helper()
	if args == nil {
		args = []any{}
	}
	b.do("POST", "/execute/sync", map[string]any{"script": script, "args": args}, &v)
	return v
}

func (b *browser) open(url string) {
	b.t.Helper()
	b.do("POST", "/url", map[string]string{"url": url}, nil)
}

// until waits for a script to return true.
func (b *browser) until(what, script string) {
	b.t.Helper()
	deadline := time.Now().Add(10 * time.Second)
	for !js[bool](b, "return Boolean("+script+")") {
		if time.Now().After(deadline) {
			b.shot("failed")
			b.t.Fatalf("waiting for %s: it does not come; the page says %.2000q", what, js[string](b, "return document.body.innerText"))
		}
		time.Sleep(30 * time.Millisecond)
	}
}

// sees waits for a text in the page.
func (b *browser) sees(text string) {
	b.t.Helper()
	q, err := json.Marshal(text)
	if err != nil {
		b.t.Fatal(err)
	}
	b.until("text "+text, "document.body.innerText.includes("+string(q)+")")
}

// element finds one by CSS selector, once it is there.
func (b *browser) element(css string) string {
	b.t.Helper()
	q, _ := json.Marshal(css)
	b.until("element "+css, "document.querySelector("+string(q)+")")
	var e map[string]string
	b.do("POST", "/element", map[string]string{"using": "css selector", "value": css}, &e)
	for _, id := range e {
		return "/element/" + id
	}
	return ""
}

func (b *browser) click(css string) {
	b.t.Helper()
	b.do("POST", b.element(css)+"/click", map[string]any{}, nil)
}

func (b *browser) keys(css, text string) {
	b.t.Helper()
	b.do("POST", b.element(css)+"/value", map[string]string{"text": text}, nil)
}

func (b *browser) cdp(cmd string, params map[string]any) {
	b.t.Helper()
	b.do("POST", "/goog/cdp/execute", map[string]any{"cmd": cmd, "params": params}, nil)
}

// size makes the window so big, theme dark or light.
func (b *browser) size(width, height int, theme string) {
	b.t.Helper()
	b.cdp("Emulation.setDeviceMetricsOverride", map[string]any{"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600})
	b.cdp("Emulation.setEmulatedMedia", map[string]any{"features": []map[string]string{{"name": "prefers-color-scheme", "value": theme}}})
}

// shot keeps a picture of the window among the test's artefacts.
func (b *browser) shot(name string) {
	b.t.Helper()
	var text string
	b.do("GET", "/screenshot", nil, &text)
	png, err := base64.StdEncoding.DecodeString(text)
	if err == nil {
		err = os.WriteFile(filepath.Join(b.shots, name+".png"), png, 0o644)
	}
	if err != nil {
		b.t.Fatal(err)
	}
	b.audit(name)
}

// audit holds the page against axe-core's rules, if TURNOUT_AXE names its
// axe.min.js (npm install axe-core; it is not part of the project).
func (b *browser) audit(page string) {
	b.t.Helper()
	file := os.Getenv("TURNOUT_AXE")
	if file == "" {
		return
	}
	axe, err := os.ReadFile(file)
	if err != nil {
		b.t.Fatal(err)
	}
	js[any](b, string(axe))
	found := js[[]string](b, `return axe.run().then((r) => r.passes.length < 10 ? ["hardly a rule was tried"] : r.violations.map((v) =>
		v.impact + " " + v.id + ": " + v.help + ": " + v.nodes.slice(0, 3).map((n) => n.html.slice(0, 160) + " " + (n.any[0]?.message ?? "")).join(" | ") + " (" + v.nodes.length + ")"))`)
	for _, f := range found {
		b.t.Errorf("page %s: %s", page, f)
	}
}

// complaints are the errors that the browser has logged, such as a breach of
// the content security policy.
func (b *browser) complaints() (out []string) {
	b.t.Helper()
	var log []struct{ Level, Message string }
	b.do("POST", "/se/log", map[string]string{"type": "browser"}, &log)
	for _, l := range log {
		if l.Level == "SEVERE" {
			out = append(out, fmt.Sprint(l.Message))
		}
	}
	return out
}
