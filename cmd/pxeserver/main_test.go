package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/internal/api"
)

// TestMain makes the test binary a pxeserver when the tests start it as one.
func TestMain(m *testing.M) {
	if os.Getenv("TURNOUT_TEST_PXESERVER") != "" {
		main()
	}
	for _, e := range []string{"TURNOUT_CONFIG", "TURNOUT_SERVER", "TURNOUT_CA", "TURNOUT_TOKEN_FILE", "TURNOUT_CLIENT_CERT"} {
		os.Unsetenv(e)
	}
	os.Exit(m.Run())
}

// result is what a command did.
type result struct {
	code        int
	out, errOut string
}

func command(args ...string) result { return commandIn("", args...) }

func commandIn(stdin string, args ...string) result {
	var out, errOut bytes.Buffer
	code := run(context.Background(), args, strings.NewReader(stdin), &out, &errOut)
	return result{code, out.String(), errOut.String()}
}

// lab is a server of its own process, and its operator.
type lab struct {
	t      *testing.T
	dir    string
	config string
	cmd    *exec.Cmd
}

func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// newLab makes a server on the loopback interface, without boot services.
func newLab(t *testing.T, initArgs ...string) *lab {
	t.Helper()
	l := &lab{t: t, dir: filepath.Join(t.TempDir(), "server")}
	l.config = filepath.Join(l.dir, "pxeserver.yaml")
	r := command(append([]string{"init", "--dir", l.dir, "--address", "127.0.0.1", "--dhcp", "off", "--heartbeat", "1s",
		"--listen", fmt.Sprintf("127.0.0.1:%d", freePort(t))}, initArgs...)...)
	if r.code != exitOK {
		t.Fatalf("init: %+v", r)
	}
	text, err := os.ReadFile(l.config)
	if err != nil {
		t.Fatal(err)
	}
	off := strings.NewReplacer("http_boot: 0", "http_boot: -1", "tftp: 0", "tftp: -1")
	if err := os.WriteFile(l.config, []byte(off.Replace(string(text))), 0o600); err != nil {
		t.Fatal(err)
	}
	return l
}

// start runs the server until the test ends or kill.
func (l *lab) start() {
	l.t.Helper()
	log, err := os.OpenFile(filepath.Join(l.dir, "log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		l.t.Fatal(err)
	}
	defer log.Close()
	cmd := exec.Command(os.Args[0], "serve", "--config", l.config)
	cmd.Env = append(os.Environ(), "TURNOUT_TEST_PXESERVER=1")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		l.t.Fatal(err)
	}
	l.cmd = cmd
	l.t.Cleanup(func() { l.kill(); l.showLog() })
	l.until("the server answers", func() bool { return l.do("node", "list").code == exitOK })
}

func (l *lab) showLog() {
	if b, _ := os.ReadFile(filepath.Join(l.dir, "log")); l.t.Failed() {
		l.t.Logf("server's log:\n%s", b)
	}
}

// kill ends the server without warning.
func (l *lab) kill() {
	if l.cmd != nil {
		l.cmd.Process.Kill()
		l.cmd.Wait() //nolint:errcheck // killed
		l.cmd = nil
	}
}

// do runs an operator's command against the server.
func (l *lab) do(args ...string) result {
	return command(append([]string{"--config", l.config}, args...)...)
}

// must is do for what has to work.
func (l *lab) must(args ...string) string {
	l.t.Helper()
	r := l.do(args...)
	if r.code != exitOK {
		l.t.Fatalf("pxeserver %s: status %d\n%s%s", strings.Join(args, " "), r.code, r.out, r.errOut)
	}
	return r.out
}

func (l *lab) until(what string, cond func() bool) {
	l.t.Helper()
	deadline := time.Now().Add(time.Minute) // bounds a hang only
	for !cond() {
		if time.Now().After(deadline) {
			l.t.Fatalf("gave up waiting until %s", what)
		}
		time.Sleep(20 * time.Millisecond)
	}
}

func TestInitKeepsWhatIsThere(t *testing.T) {
	l := newLab(t)
	before := map[string]string{}
	for _, f := range []string{"pxeserver.yaml", "ca.pem", "data/ca.key", "tokens", "operator.token"} {
		b, err := os.ReadFile(filepath.Join(l.dir, f))
		if err != nil {
			t.Fatal(err)
		}
		before[f] = string(b)
	}
	r := command("init", "--dir", l.dir, "--address", "127.0.0.1", "--dhcp", "off")
	if r.code != exitRefused || !strings.Contains(r.errOut, "exists; nothing was changed") {
		t.Errorf("second init: %+v; want refused", r)
	}
	if err := os.Remove(l.config); err != nil { // as if the first had been interrupted
		t.Fatal(err)
	}
	if r := command("init", "--dir", l.dir, "--address", "127.0.0.1", "--dhcp", "off"); r.code != exitOK {
		t.Errorf("init again: %+v", r)
	}
	for f, want := range before {
		if b, err := os.ReadFile(filepath.Join(l.dir, f)); f != "pxeserver.yaml" && (err != nil || string(b) != want) {
			t.Errorf("%s was changed by a second init (%v)", f, err)
		}
	}
	if r := l.do("check-config"); r.code != exitOK {
		t.Errorf("check-config: %+v", r)
	}
	for _, f := range []string{"data/ca.key", "tokens", "operator.token"} {
		if fi, err := os.Stat(filepath.Join(l.dir, f)); err != nil || fi.Mode().Perm() != 0o600 {
			t.Errorf("%s: %v, %v; want mode 0600", f, fi.Mode(), err)
		}
	}
}

func TestWrongCommandLines(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.yaml")
	if err := os.WriteFile(broken, []byte("address: 10.0.0.1\nhartbeat: 1s\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	l := newLab(t)
	for _, tt := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"serv"}, exitUsage, "did you mean serve?"},
		{[]string{"node", "lst"}, exitUsage, "did you mean"},
		{[]string{"node", "show"}, exitUsage, "want one argument, a node"},
		{[]string{"node", "list", "--poll", "x"}, exitUsage, "unknown flag"},
		{[]string{"init", "--dir", dir + "/x"}, exitUsage, "--address"},
		{[]string{"init", "--dir", dir + "/x", "--address", "10.0.0.1"}, exitUsage, "dhcp.subnet"},
		{[]string{"--config", broken, "check-config"}, exitUsage, broken + ":2: unknown key \"hartbeat\""},
		{[]string{"--config", broken, "node", "list"}, exitUsage, "unknown key"},
		{[]string{"--config", dir + "/none.yaml", "node", "list"}, exitFailure, "pxeserver init"},
		{[]string{"--server", "http://x", "--ca", l.dir + "/ca.pem", "--token-file", l.dir + "/operator.token", "node", "list"}, exitUsage, "want https://HOST:PORT"},
		{[]string{"--server", "https://x:1", "--ca", "nowhere", "--token-file", l.dir + "/operator.token", "node", "list"}, exitUsage, "server CA"},
		{[]string{"--config", l.config, "node", "list"}, exitUnreachable, "is `pxeserver serve` running there?"},
		{[]string{"--config", l.config, "rollout", "start", "--stage", "x"}, exitUsage, "--image IMAGE"},
		{[]string{"--config", l.config, "rollout", "start", "--image", "x", "--stage", "x", "--max-unavailable", "many"}, exitUsage, "--max-unavailable"},
		{[]string{"--config", l.config, "serve", "--log-level", "loud"}, exitUsage, "--log-level"},
	} {
		r := command(tt.args...)
		if r.code != tt.code || !strings.Contains(r.errOut, tt.want) {
			t.Errorf("pxeserver %s: status %d, %q; want %d, %q", strings.Join(tt.args, " "), r.code, r.errOut, tt.code, tt.want)
		}
		if strings.Count(r.errOut, "\n") > 3 || r.out != "" {
			t.Errorf("pxeserver %s says too much:\n%s%s", strings.Join(tt.args, " "), r.out, r.errOut)
		}
	}
	if _, err := os.Stat(dir + "/x"); err == nil {
		t.Error("a refused init wrote something")
	}
}

// Every command teaches: what it does, and its exit statuses.
func TestHelp(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		if c.Name() == "help" || c.Name() == "completion" {
			return
		}
		if c.Short == "" || !strings.Contains(c.Long, "Exit status:") {
			t.Errorf("%s: short %q; its long help must say what it does and its exit statuses", c.CommandPath(), c.Short)
		}
		for _, s := range c.Commands() {
			walk(s)
		}
	}
	root := newRootCommand()
	walk(root)
	for _, shell := range []string{"bash", "zsh", "fish"} {
		if r := command("completion", shell); r.code != exitOK || len(r.out) < 500 {
			t.Errorf("completion %s: status %d, %d bytes", shell, r.code, len(r.out))
		}
	}
}

func TestStatusOfErrors(t *testing.T) {
	for _, tt := range []struct {
		err  error
		want int
	}{
		{nil, exitOK}, {errors.New("x"), exitFailure}, {context.Canceled, exitFailure},
		{&api.Problem{Status: 400}, exitUsage}, {&api.Problem{Status: 401}, exitRefused}, {&api.Problem{Status: 403}, exitRefused},
		{&api.Problem{Status: 404}, exitFailure}, {&api.Problem{Status: 409}, exitRefused}, {&api.Problem{Status: 500}, exitFailure},
		{fmt.Errorf("x: %w", api.ErrUnreachable), exitUnreachable}, {fmt.Errorf("x: %w", api.ErrUntrusted), exitUnreachable},
		{&statusError{exitRollout, "halted"}, exitRollout},
	} {
		if got := report(&bytes.Buffer{}, tt.err); got != tt.want {
			t.Errorf("status of %v = %d; want %d", tt.err, got, tt.want)
		}
	}
}
