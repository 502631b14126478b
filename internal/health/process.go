package health

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Overtime is how long a check may go on after its time limit.
const Overtime = drainDelay + reapDelay

const (
	drainDelay  = time.Second     // how long output of an ended check is waited for
	reapDelay   = 2 * time.Second // how long a killed check is waited for
	outputLimit = 8 << 10         // bytes of output kept
	detailLimit = 240             // bytes of a Detail
)

// answer is what a process left behind.
type answer struct {
	stdout string
	detail string // last line of what it said, see detail
	err    error  // of exec.Cmd
}

// run starts argv in a process group of its own. When ctx ends, the group is
// killed. A process that cannot be killed (state D) is left alone and
// remembered under key; until it is gone, run refuses to start another.
func (r *Runner) run(ctx context.Context, key string, argv []string) (answer, error) {
	if pid := r.hanging(key); pid != 0 {
		return answer{}, fmt.Errorf("an earlier run (pid %d) hangs and cannot be killed", pid)
	}
	var stdout, stderr limited
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	cmd.WaitDelay = drainDelay
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	if err := cmd.Start(); err != nil {
		return answer{}, err
	}
	pid := cmd.Process.Pid
	r.setBusy(key, pid)
	done := make(chan error, 1)
	go func() {
		err := cmd.Wait()
		if errors.Is(err, exec.ErrWaitDelay) {
			// A child of it still holds the pipes, so its group still exists.
			_ = syscall.Kill(-pid, syscall.SIGKILL)
		}
		r.setBusy(key, 0)
		done <- err
	}()
	select {
	case err := <-done:
		return answer{stdout.String(), detail(stdout.String(), stderr.String(), err), err}, nil
	case <-ctx.Done():
	}
	select { // Wait returns soon after the kill, unless the process is in state D
	case <-done:
	case <-time.After(drainDelay + reapDelay):
	}
	return answer{}, ctx.Err()
}

func (r *Runner) hanging(key string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.busy[key]
}

func (r *Runner) setBusy(key string, pid int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.busy == nil {
		r.busy = map[string]int{}
	}
	if pid == 0 {
		delete(r.busy, key)
		return
	}
	r.busy[key] = pid
}

// exec judges a command by its exit status.
func (r *Runner) exec(ctx context.Context, key string, argv []string, limit time.Duration) (fleet.CheckStatus, string) {
	a, err := r.run(ctx, key, argv)
	if err != nil {
		return cannot(err, limit)
	}
	var exit *exec.ExitError
	switch {
	case a.err == nil || errors.Is(a.err, exec.ErrWaitDelay):
		return fleet.CheckPassed, a.detail
	case errors.As(a.err, &exit) && exit.ExitCode() == 127:
		return fleet.CheckUnknown, join(argv[0]+": exit status 127: a command is missing", a.detail)
	case errors.As(a.err, &exit):
		return fleet.CheckFailed, join(argv[0]+": "+exit.Error(), a.detail)
	}
	return fleet.CheckUnknown, a.err.Error()
}

// unit asks systemd for the state of one unit.
func (r *Runner) unit(ctx context.Context, key, unit string, limit time.Duration) (fleet.CheckStatus, string) {
	a, err := r.run(ctx, key, append(r.systemctl(), "is-active", "--", unit))
	if err != nil {
		return cannot(err, limit)
	}
	switch seen := strings.TrimSpace(a.stdout); seen {
	case "active":
		return fleet.CheckPassed, unit + " is active"
	case "":
		return fleet.CheckUnknown, join("systemctl gave no state for "+unit, a.detail)
	case "activating", "reloading":
		return fleet.CheckUnknown, fmt.Sprintf("%s: expected active, seen %s", unit, seen)
	default:
		return fleet.CheckFailed, fmt.Sprintf("%s: expected active, seen %s", unit, seen)
	}
}

// noFailed asks systemd for units that failed.
func (r *Runner) noFailed(ctx context.Context, key string, limit time.Duration) (fleet.CheckStatus, string) {
	a, err := r.run(ctx, key, append(r.systemctl(),
		"list-units", "--state=failed", "--plain", "--no-legend", "--no-pager", "--full"))
	if err != nil {
		return cannot(err, limit)
	}
	if a.err != nil {
		return fleet.CheckUnknown, join("systemctl: "+a.err.Error(), a.detail)
	}
	var failed []string
	for line := range strings.Lines(a.stdout) {
		if f := strings.Fields(line); len(f) > 0 {
			failed = append(failed, f[0])
		}
	}
	if len(failed) > 0 {
		return fleet.CheckFailed, clip("failed units: expected none, seen " + strings.Join(failed, " "))
	}
	return fleet.CheckPassed, "no failed units"
}

func (r *Runner) systemctl() []string {
	if len(r.Systemctl) > 0 {
		return append([]string(nil), r.Systemctl...)
	}
	return []string{"systemctl"}
}

// cannot words a check that gave no answer.
func cannot(err error, limit time.Duration) (fleet.CheckStatus, string) {
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return fleet.CheckUnknown, fmt.Sprintf("check timed out after %s", limit)
	case errors.Is(err, exec.ErrNotFound), errors.Is(err, fs.ErrNotExist):
		return fleet.CheckUnknown, clip("command is missing: " + err.Error())
	}
	return fleet.CheckUnknown, clip(err.Error())
}

func join(a, b string) string {
	if b == "" {
		return clip(a)
	}
	return clip(a + ": " + b)
}

func clip(s string) string {
	s = strings.ToValidUTF8(strings.ReplaceAll(strings.TrimSpace(s), "\n", " "), "?")
	if len(s) > detailLimit {
		s = strings.ToValidUTF8(s[:detailLimit], "") + "…"
	}
	return s
}

// detail picks the line that tells most: of a failure the last of stderr, of
// a success the last of stdout, and either where there is only one.
func detail(stdout, stderr string, err error) string {
	a, b := lastLine(stdout), lastLine(stderr)
	if b != "" && (err != nil || a == "") {
		return b
	}
	return a
}

func lastLine(s string) string {
	s = strings.TrimSpace(s)
	return clip(s[strings.LastIndexByte(s, '\n')+1:])
}

// limited keeps the last outputLimit bytes written to it. It may be read
// while a hung process still writes.
type limited struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *limited) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.b.Write(p)
	if over := l.b.Len() - outputLimit; over > 0 {
		l.b.Next(over)
	}
	return len(p), nil
}

func (l *limited) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}
