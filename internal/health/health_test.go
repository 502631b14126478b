package health

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
)

func sh(script string) []string { return []string{"/bin/sh", "-c", script} }

// fakeSystemctl answers like systemctl for a few units.
func fakeSystemctl(t *testing.T) []string {
	t.Helper()
	p := filepath.Join(t.TempDir(), "systemctl")
	script := `#!/bin/sh
case "$1 $3" in
"is-active good.service") echo active ;;
"is-active slow.service") echo activating; exit 3 ;;
"is-active gone.service") echo inactive; exit 3 ;;
"list-units "*) cat "$(dirname "$0")/failed" ;;
esac
`
	if err := os.WriteFile(p, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(filepath.Dir(p), "failed"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	return []string{p}
}

func fakeRoot(t *testing.T) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range map[string]string{
		"proc/modules":              "nvidia_uvm 1 0 - Live 0x0\ndm_verity 1 0 - Live 0x0\n",
		"proc/sys/kernel/osrelease": "6.1.0-57-amd64\n",
		"sys/module/nvme/version":   "1\n",
		"etc/issue":                 "hello\n",
	} {
		p := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(p), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func TestRun(t *testing.T) {
	systemctl := fakeSystemctl(t)
	tests := []struct {
		name   string
		check  manifest.Check
		want   fleet.CheckStatus
		detail string // part of Detail
	}{
		{"exec passes", manifest.Check{Exec: sh("echo fine")}, fleet.CheckPassed, "fine"},
		{"exec fails with its last line", manifest.Check{Exec: sh("echo a; echo 'GPU 7 of 8' >&2; exit 3")}, fleet.CheckFailed, "exit status 3: GPU 7 of 8"},
		{"exec killed by a signal", manifest.Check{Exec: sh("kill -SEGV $$")}, fleet.CheckFailed, "signal"},
		{"exec of a missing program", manifest.Check{Exec: []string{"/nowhere/nvidia-smi"}}, fleet.CheckUnknown, "command is missing"},
		{"exec of a missing program in the shell", manifest.Check{Exec: sh("nowhere-smi")}, fleet.CheckUnknown, "127"},
		{"unit active", manifest.Check{Unit: "good.service"}, fleet.CheckPassed, "active"},
		{"unit starting", manifest.Check{Unit: "slow.service"}, fleet.CheckUnknown, "expected active, seen activating"},
		{"unit inactive", manifest.Check{Unit: "gone.service"}, fleet.CheckFailed, "expected active, seen inactive"},
		{"unit without an answer", manifest.Check{Unit: "mute.service"}, fleet.CheckUnknown, "no state"},
		{"no failed units", manifest.Check{Units: "no-failed"}, fleet.CheckPassed, ""},
		{"module, spelt with hyphens", manifest.Check{Module: "nvidia-uvm"}, fleet.CheckPassed, "loaded"},
		{"module built in", manifest.Check{Module: "nvme"}, fleet.CheckPassed, "built in"},
		{"module absent", manifest.Check{Module: "nvidia"}, fleet.CheckFailed, "expected loaded, seen absent"},
		{"file", manifest.Check{File: "/etc/issue"}, fleet.CheckPassed, ""},
		{"file absent", manifest.Check{File: "/etc/nologin"}, fleet.CheckFailed, "expected present"},
		{"kernel pinned", manifest.Check{Kernel: "pinned"}, fleet.CheckPassed, "6.1.0-57-amd64"},
		{"nothing to do", manifest.Check{}, fleet.CheckUnknown, "does not know"},
	}
	root := fakeRoot(t)
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := &Runner{Kernel: "6.1.0-57-amd64", Root: root, Systemctl: systemctl}
			tt.check.Name = "c"
			got := r.Run(t.Context(), []manifest.Check{tt.check})[0]
			if got.Status != tt.want || !strings.Contains(got.Detail, tt.detail) {
				t.Errorf("Run(%+v) = %s %q, want %s with %q", tt.check, got.Status, got.Detail, tt.want, tt.detail)
			}
			if !got.Required || got.Class != fleet.FaultSoftware {
				t.Errorf("Run(%+v) = required %v class %q, want true software", tt.check, got.Required, got.Class)
			}
		})
	}
}

func TestRunOtherKernel(t *testing.T) {
	r := &Runner{Kernel: "6.1.0-50-amd64", Root: fakeRoot(t)}
	got := r.Run(t.Context(), []manifest.Check{{Name: "k", Kernel: "pinned"}})[0]
	if want := "kernel: expected 6.1.0-50-amd64, seen 6.1.0-57-amd64"; got.Status != fleet.CheckFailed || got.Detail != want {
		t.Errorf("Run = %s %q, want failed %q", got.Status, got.Detail, want)
	}
}

func TestRunFailedUnits(t *testing.T) {
	systemctl := fakeSystemctl(t)
	list := "ssh.service loaded failed failed OpenSSH\nnv.service loaded failed failed x\n"
	if err := os.WriteFile(filepath.Join(filepath.Dir(systemctl[0]), "failed"), []byte(list), 0o644); err != nil {
		t.Fatal(err)
	}
	r := &Runner{Systemctl: systemctl}
	got := r.Run(t.Context(), []manifest.Check{{Name: "u", Units: "no-failed", Class: "environment", Advisory: true}})[0]
	got.Millis = 0
	want := fleet.CheckResult{
		Name: "u", Status: fleet.CheckFailed, Class: fleet.FaultEnvironment,
		Detail: "failed units: expected none, seen ssh.service nv.service",
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("Run (-want +got):\n%s", d)
	}
}

// TestRunUncooperative is case C69: children that hang, hold the pipe open or
// ignore SIGTERM. Each must be reported within its limit, and no process of
// it may be left.
func TestRunUncooperative(t *testing.T) {
	tests := []struct {
		name   string
		script string
		want   fleet.CheckStatus
		detail string
	}{
		{"child holds the pipe", "echo $$ >PIDFILE; sleep 300 & wait", fleet.CheckUnknown, "check timed out after 300ms"},
		{"never exits", "echo $$ >PIDFILE; trap '' TERM INT HUP; while :; do sleep 300; done", fleet.CheckUnknown, "check timed out after 300ms"},
		{"half an answer, then hangs", "echo $$ >PIDFILE; printf '0, NVIDIA H'; sleep 300", fleet.CheckUnknown, "check timed out after 300ms"},
		{"exits, its child keeps stdout", "echo $$ >PIDFILE; echo ok; sleep 300 & exit 0", fleet.CheckPassed, "ok"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			pidfile := filepath.Join(t.TempDir(), "pid")
			limit := 300 * time.Millisecond
			if tt.want == fleet.CheckPassed {
				limit = time.Minute // it ends by the drain delay, not by the limit
			}
			c := manifest.Check{
				Name: "smi", Timeout: manifest.Duration(limit),
				Exec: sh(strings.ReplaceAll(tt.script, "PIDFILE", pidfile)),
			}
			got := new(Runner).Run(context.Background(), []manifest.Check{c})[0]
			if got.Status != tt.want || got.Detail != tt.detail {
				t.Errorf("Run = %s %q, want %s %q", got.Status, got.Detail, tt.want, tt.detail)
			}
			b, err := os.ReadFile(pidfile)
			if err != nil {
				t.Fatal(err)
			}
			pgid, _ := strconv.Atoi(strings.TrimSpace(string(b)))
			waitGone(t, pgid)
		})
	}
}

// waitGone waits until no process is left in the group; the test's own
// deadline ends it otherwise.
func waitGone(t *testing.T, pgid int) {
	t.Helper()
	for live(t, pgid) {
		select {
		case <-t.Context().Done():
			t.Fatalf("process group %d still exists", pgid)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// live reports whether a process of the group runs; zombies that nobody
// reaps (a container without init) do not count.
func live(t *testing.T, pgid int) bool {
	t.Helper()
	if syscall.Kill(-pgid, 0) != nil {
		return false
	}
	stats, _ := filepath.Glob("/proc/[0-9]*/stat")
	for _, p := range stats {
		b, err := os.ReadFile(p)
		if err != nil {
			continue
		}
		f := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
		if len(f) > 2 && f[2] == strconv.Itoa(pgid) && f[0] != "Z" {
			return true
		}
	}
	return false
}

// TestRunDoesNotPileUp: a run that cannot be killed is not joined by another.
func TestRunDoesNotPileUp(t *testing.T) {
	r := &Runner{}
	r.setBusy(key(0, "smi"), 4711)
	c := manifest.Check{Name: "smi", Exec: sh("exit 0")}
	got := r.Run(t.Context(), []manifest.Check{c})[0]
	if got.Status != fleet.CheckUnknown || !strings.Contains(got.Detail, "pid 4711") {
		t.Errorf("Run while pid 4711 hangs = %s %q, want unknown naming the pid", got.Status, got.Detail)
	}
	r.setBusy(key(0, "smi"), 0)
	if got := r.Run(t.Context(), []manifest.Check{c})[0]; got.Status != fleet.CheckPassed {
		t.Errorf("Run after it went = %s %q, want passed", got.Status, got.Detail)
	}
}

func TestRunKeepsOrder(t *testing.T) {
	checks := []manifest.Check{
		{Name: "slow", Exec: sh("sleep 0.2")},
		{Name: "fast", Exec: sh("exit 0")},
		{Name: "slow", Exec: sh("sleep 0.1")},
	}
	var names []string
	for _, r := range new(Runner).Run(t.Context(), checks) {
		names = append(names, r.Name)
		if r.Status != fleet.CheckPassed {
			t.Errorf("%s = %s %q, want passed", r.Name, r.Status, r.Detail)
		}
	}
	if d := cmp.Diff([]string{"slow", "fast", "slow"}, names); d != "" {
		t.Errorf("order (-want +got):\n%s", d)
	}
}
