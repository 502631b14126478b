package hook

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/alert"
	"github.com/turnout-project/turnout/internal/rollout"
)

var call = rollout.DrainCall{Hook: "h", Node: "n1", Rollout: "r7", Image: "sha256:aa", Deadline: time.Date(2026, 3, 1, 12, 0, 0, 5, time.UTC)}

func script(t *testing.T, text string) Hook {
	t.Helper()
	path := filepath.Join(t.TempDir(), "hook")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil { //nolint:gosec // a program
		t.Fatal(err)
	}
	return Hook{Exec: []string{path, "first"}}
}

func TestExec(t *testing.T) {
	t.Setenv("TURNOUT_SECRET", "not for hooks")
	for _, c := range []struct {
		name, text string
		done       bool
		note, err  string
	}{
		{"done", "echo free; exit 0", true, "free", ""},
		{"arguments and variables", `echo "$*|$TURNOUT_ACTION|$TURNOUT_NODE|$TURNOUT_ROLLOUT|$TURNOUT_IMAGE|$TURNOUT_REASON|$TURNOUT_DEADLINE|$TURNOUT_SECRET"`, true,
			"first drain n1|drain|n1|r7|sha256:aa|turnout r7|2026-03-01T12:00:00Z|", ""},
		{"busy", "echo 2 jobs run; echo more; exit 75", false, "2 jobs run", ""},
		{"failed", "echo working; echo first >&2; echo cannot reach the controller >&2; exit 3", false, "working", "hook h: cannot reach the controller (exit status 3)"},
		{"says too much", "head -c 100000 /dev/zero | tr '\\0' x; exit 0", true, strings.Repeat("x", maxWords) + "…", ""},
		{"terminal controls", `printf 'a\033[2Jb\n'`, true, "a[2Jb", ""},
	} {
		done, note, err := Set{"h": script(t, c.text)}.Drain(context.Background(), call)
		if done != c.done || note != c.note || (err == nil) != (c.err == "") || err != nil && err.Error() != c.err {
			t.Errorf("%s: %v, %q, %v; want %v, %q, %q", c.name, done, note, err, c.done, c.note, c.err)
		}
	}
	if _, _, err := (Set{}).Drain(context.Background(), call); err == nil || !strings.Contains(err.Error(), `no hook "h"`) {
		t.Errorf("unknown hook: %v", err)
	}
}

// A program that hangs is ended with what it has started.
func TestExecHangs(t *testing.T) {
	pid := filepath.Join(t.TempDir(), "pid")
	h := script(t, fmt.Sprintf("sleep 600 & echo $! > %s\nwait", pid))
	h.Timeout = 2 * time.Second
	_, _, err := Set{"h": h}.Undrain(context.Background(), call)
	if err == nil || !strings.Contains(err.Error(), "did not end within 2s") {
		t.Errorf("err = %v", err)
	}
	b, err := os.ReadFile(pid)
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		state, err := os.ReadFile("/proc/" + strings.TrimSpace(string(b)) + "/stat")
		if err != nil || strings.Contains(string(state), ") Z ") {
			break
		}
		if time.Now().After(end) {
			t.Fatal("what it had started still runs")
		}
	}
}

func TestWebhook(t *testing.T) {
	secret := []byte("0123456789abcdef")
	var got request
	answer := http.StatusOK
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err == nil {
			err = alert.Verify(secret, r.Header, body, time.Now(), time.Minute)
		}
		if err == nil {
			err = json.Unmarshal(body, &got)
		}
		if err != nil {
			t.Error(err)
		}
		w.WriteHeader(answer)
		fmt.Fprintln(w, "said so")
	}))
	defer srv.Close()
	s := Set{"h": {URL: srv.URL, Secret: secret}}
	for _, c := range []struct {
		status int
		done   bool
		err    string
	}{{200, true, ""}, {202, false, ""}, {302, false, "302"}, {500, false, "500 Internal Server Error said so"}} {
		answer = c.status
		done, note, err := s.Undrain(context.Background(), call)
		if done != c.done || note != "said so" || (err == nil) != (c.err == "") || err != nil && !strings.Contains(err.Error(), c.err) {
			t.Errorf("%d: %v, %q, %v; want %v, %q", c.status, done, note, err, c.done, c.err)
		}
	}
	if want := (request{"undrain", "n1", "r7", "sha256:aa", "turnout r7", time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)}); got != want {
		t.Errorf("it got %+v, want %+v", got, want)
	}
}
