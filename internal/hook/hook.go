// Package hook calls what operators have put between rollouts and the
// scheduler of their jobs: a program or a webhook that drains a node and
// gives it back. Which there are is said in the server's configuration only.
//
// A program gets its arguments, then "drain" or "undrain" and the node's
// name, and the variables TURNOUT_ACTION, _NODE, _ROLLOUT, _IMAGE, _REASON and
// _DEADLINE (RFC 3339; jobs that still run then keep the node from being
// moved). It ends with 0 when it is done, with 75 (EX_TEMPFAIL) when jobs
// still run, to be called again, and else it has failed. The first line it
// prints is shown to operators, of a failed one the last of its errors.
//
// A webhook gets the same as JSON in a signed POST (see internal/alert for
// the signature), and answers 200 when it is done, 202 when jobs still run.
// Both are called again after a restart of the server: they must be
// idempotent.
package hook

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/turnout-project/turnout/internal/alert"
	"github.com/turnout-project/turnout/internal/rollout"
)

// Hook is one way to drain nodes: a program, or else a webhook.
type Hook struct {
	Exec    []string      // program and its first arguments
	URL     string        // webhook
	Secret  []byte        // signs what is sent to it
	Timeout time.Duration // of one call; 0 means DefaultTimeout
}

// DefaultTimeout is how long one call may take.
const DefaultTimeout = time.Minute

// stillBusy is the status of a program that is to be called again
// (EX_TEMPFAIL of sysexits.h).
const stillBusy = 75

// maxWords bounds what is kept of what a hook says.
const maxWords = 300

// Set is all hooks by name. It implements rollout.Drainer.
type Set map[string]Hook

// request is what a webhook gets.
type request struct {
	Action   string    `json:"action"` // "drain", "undrain"
	Node     string    `json:"node"`
	Rollout  string    `json:"rollout"`
	Image    string    `json:"image"`
	Reason   string    `json:"reason"`
	Deadline time.Time `json:"deadline,omitzero"`
}

// Drain implements rollout.Drainer.
func (s Set) Drain(ctx context.Context, c rollout.DrainCall) (done bool, note string, err error) {
	return s.call(ctx, "drain", c)
}

// Undrain implements rollout.Drainer.
func (s Set) Undrain(ctx context.Context, c rollout.DrainCall) (done bool, note string, err error) {
	return s.call(ctx, "undrain", c)
}

func (s Set) call(ctx context.Context, action string, c rollout.DrainCall) (bool, string, error) {
	h, ok := s[c.Hook]
	if !ok {
		return false, "", fmt.Errorf("no hook %q in the server's configuration", c.Hook)
	}
	limit := h.Timeout
	if limit <= 0 {
		limit = DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	r := request{Action: action, Node: c.Node, Rollout: c.Rollout, Image: c.Image, Reason: "turnout " + c.Rollout, Deadline: c.Deadline.UTC().Truncate(time.Second)}
	call := h.post
	if len(h.Exec) > 0 {
		call = h.run
	}
	done, note, err := call(ctx, r)
	if err != nil && ctx.Err() != nil {
		err = fmt.Errorf("hook %s did not end within %s", c.Hook, limit)
	} else if err != nil {
		err = fmt.Errorf("hook %s: %w", c.Hook, err)
	}
	return done, note, err
}

// run calls a program, which ends with all it started at the latest when ctx
// does.
func (h Hook) run(ctx context.Context, r request) (done bool, note string, err error) {
	args := append(append([]string{}, h.Exec[1:]...), r.Action, r.Node)
	cmd := exec.CommandContext(ctx, h.Exec[0], args...)
	cmd.Env = []string{
		"PATH=" + cmp.Or(os.Getenv("PATH"), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), "HOME=" + os.Getenv("HOME"), "LC_ALL=C.UTF-8",
		"TURNOUT_ACTION=" + r.Action, "TURNOUT_NODE=" + r.Node, "TURNOUT_ROLLOUT=" + r.Rollout, "TURNOUT_IMAGE=" + r.Image,
		"TURNOUT_REASON=" + r.Reason, "TURNOUT_DEADLINE=" + r.Deadline.Format(time.RFC3339),
	}
	for _, k := range []string{"KUBECONFIG", "SLURM_CONF"} {
		if v := os.Getenv(k); v != "" {
			cmd.Env = append(cmd.Env, k+"="+v)
		}
	}
	var out, errs limited
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = time.Second
	err = cmd.Run()
	note = firstLine(out.String())
	var status *exec.ExitError
	switch {
	case err == nil:
		return true, note, nil
	case errors.As(err, &status) && status.ExitCode() == stillBusy:
		return false, note, nil
	}
	if said := lastLine(errs.String()); said != "" {
		err = fmt.Errorf("%s (%w)", said, err)
	}
	return false, note, err
}

// post calls a webhook.
func (h Hook) post(ctx context.Context, r request) (done bool, note string, err error) {
	body, err := json.Marshal(r)
	if err != nil {
		return false, "", err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(body))
	if err != nil {
		return false, "", err
	}
	now := time.Now()
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set(alert.HeaderTimestamp, strconv.FormatInt(now.Unix(), 10))
	req.Header.Set(alert.HeaderSignature, alert.Sign(h.Secret, now, body))
	c := http.Client{CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	resp, err := c.Do(req)
	if err != nil {
		return false, "", err
	}
	defer resp.Body.Close()
	said, err := io.ReadAll(io.LimitReader(resp.Body, 4096))
	if err != nil {
		return false, "", err
	}
	note = firstLine(string(said))
	switch resp.StatusCode {
	case http.StatusOK, http.StatusNoContent:
		return true, note, nil
	case http.StatusAccepted:
		return false, note, nil
	}
	return false, note, fmt.Errorf("it answers %s %s", resp.Status, note)
}

// limited keeps the beginning and the end of what is written to it.
type limited struct{ head, tail []byte }

func (l *limited) Write(p []byte) (int, error) {
	const most = 4096
	if room := most - len(l.head); room > 0 {
		l.head = append(l.head, p[:min(room, len(p))]...)
	}
	l.tail = append(l.tail, p...)
	if over := len(l.tail) - most; over > 0 {
		l.tail = l.tail[over:]
	}
	return len(p), nil
}

// String returns all, or the end if it was too much.
func (l *limited) String() string {
	if len(l.tail) <= len(l.head) {
		return string(l.head)
	}
	return string(l.tail)
}

func firstLine(s string) string {
	line, _, _ := strings.Cut(strings.TrimSpace(s), "\n")
	return clip(line)
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return clip(s[strings.LastIndexByte(s, '\n')+1:])
}

// clip cuts what is no text, or too much of it.
func clip(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > maxWords {
		s = strings.ToValidUTF8(s[:maxWords], "") + "…"
	}
	return s
}
