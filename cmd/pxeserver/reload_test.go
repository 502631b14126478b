package main

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"github.com/turnout-project/turnout/internal/server"
)

// A running server takes a new operator in on SIGHUP, says what takes a
// restart, and goes on as it was with a file that is not good.
func TestReload(t *testing.T) {
	l := newLab(t)
	l.start()
	edit := func(from, to string) {
		t.Helper()
		b, err := os.ReadFile(l.config)
		if err != nil || !strings.Contains(string(b), from) {
			t.Fatalf("%v: %q is not in the configuration", err, from)
		}
		if err := os.WriteFile(l.config, []byte(strings.Replace(string(b), from, to, 1)), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	hup := func(logged string) {
		t.Helper()
		if err := l.cmd.Process.Signal(syscall.SIGHUP); err != nil {
			t.Fatal(err)
		}
		l.until("the log to say "+logged, func() bool {
			b, _ := os.ReadFile(filepath.Join(l.dir, "log"))
			return strings.Contains(string(b), logged)
		})
	}
	token, line := server.NewToken("bob", "viewer")
	file := filepath.Join(t.TempDir(), "bob.token")
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	if r := l.do("node", "list", "--token-file", file); r.code != exitRefused {
		t.Fatalf("a token that nobody knows: %+v", r)
	}
	tokens, err := os.OpenFile(filepath.Join(l.dir, "tokens"), os.O_APPEND|os.O_WRONLY, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := tokens.WriteString(line); err != nil {
		t.Fatal(err)
	}
	tokens.Close()
	edit("every: 10m0s", "every: 20m0s")
	edit("heartbeat: 1s", "heartbeat: 2s")
	hup("changes that take a restart\" keys=heartbeat")
	if r := l.do("node", "list", "--token-file", file); r.code != exitOK {
		t.Errorf("the new token: %+v", r)
	}
	edit("mode: off", "mode: perhaps")
	hup("the configuration was not reloaded")
	edit("mode: perhaps", "mode: off") // for the client, which reads it too
	if r := l.do("node", "list", "--token-file", file); r.code != exitOK {
		t.Errorf("after a file that is not good: %+v", r)
	}
}
