// Package health runs the health checks of an image on the node that booted
// it and keeps count of how long they have passed or failed. It judges
// nothing: what follows from a failure is decided by internal/node.
//
// A check may hang, fork, or ignore signals; none of that may hold up the
// agent. Every check has its own time limit, runs in its own process group
// which is killed at that limit, and is not started again while an earlier
// run of it is still there.
package health

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
)

// DefaultTimeout is the time limit of a check that names none.
const DefaultTimeout = 30 * time.Second

// Runner runs checks. The zero value works on the machine it runs on; one
// Runner serves one image for the life of the agent, because it remembers
// which checks hang.
type Runner struct {
	Kernel    string   // release that a "kernel: pinned" check expects
	Root      string   // prefix of the files looked at; "" means "/"
	Systemctl []string // command that answers unit checks; nil means systemctl

	mu   sync.Mutex
	busy map[string]int // key of a check -> pid of its run that does not end
}

// atOnce is how many checks run at the same time: enough that one that hangs
// or waits does not hold up the others, few enough not to disturb the node.
const atOnce = 4

// Run starts the checks in their order, a few at the same time, and returns
// their results in that order. It returns when the slowest check has ended or
// reached its time limit, whatever the processes do. A check is not tried again
// within a run: the next run does that.
func (r *Runner) Run(ctx context.Context, checks []manifest.Check) []fleet.CheckResult {
	out := make([]fleet.CheckResult, len(checks))
	var wg sync.WaitGroup
	free := make(chan struct{}, atOnce)
	for i, c := range checks {
		free <- struct{}{}
		wg.Go(func() {
			defer func() { <-free }()
			out[i] = r.one(ctx, key(i, c.Name), c)
		})
	}
	wg.Wait()
	return out
}

// key names a check within its list: names alone need not be unique.
func key(i int, name string) string { return fmt.Sprintf("%d %s", i, name) }

func (r *Runner) one(ctx context.Context, key string, c manifest.Check) fleet.CheckResult {
	limit := time.Duration(c.Timeout)
	if limit <= 0 {
		limit = DefaultTimeout
	}
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	start := time.Now()
	status, detail := r.do(ctx, key, c, limit)
	return fleet.CheckResult{
		Name:     c.Name,
		Status:   status,
		Class:    class(c.Class),
		Required: !c.Advisory,
		Detail:   detail,
		Millis:   time.Since(start).Milliseconds(),
	}
}

// class maps the recipe's word to a fault class; none means software.
func class(s string) fleet.FaultClass {
	switch c := fleet.FaultClass(s); c {
	case fleet.FaultHardware, fleet.FaultEnvironment:
		return c
	}
	return fleet.FaultSoftware
}

func (r *Runner) do(ctx context.Context, key string, c manifest.Check, limit time.Duration) (fleet.CheckStatus, string) {
	switch {
	case len(c.Exec) > 0:
		return r.exec(ctx, key, c.Exec, limit)
	case c.Unit != "":
		return r.unit(ctx, key, c.Unit, limit)
	case c.Units == "no-failed":
		return r.noFailed(ctx, key, limit)
	case c.Module != "":
		return r.module(c.Module)
	case c.File != "":
		return r.file(c.File)
	case c.Kernel == "pinned":
		return r.kernel()
	}
	return fleet.CheckUnknown, "this agent does not know how to do this check; is the image newer than the agent?"
}

func (r *Runner) module(name string) (fleet.CheckStatus, string) {
	want := strings.ReplaceAll(name, "-", "_")
	b, err := os.ReadFile(r.path("/proc/modules"))
	for line := range strings.Lines(string(b)) {
		if f := strings.Fields(line); len(f) > 0 && f[0] == want {
			return fleet.CheckPassed, "loaded"
		}
	}
	if _, err := os.Stat(r.path("/sys/module/" + want)); err == nil {
		return fleet.CheckPassed, "built in"
	}
	if err != nil {
		return fleet.CheckUnknown, err.Error()
	}
	return fleet.CheckFailed, fmt.Sprintf("module %s: expected loaded, seen absent", name)
}

func (r *Runner) file(name string) (fleet.CheckStatus, string) {
	_, err := os.Stat(r.path(name))
	switch {
	case err == nil:
		return fleet.CheckPassed, "present"
	case os.IsNotExist(err):
		return fleet.CheckFailed, fmt.Sprintf("%s: expected present, seen absent", name)
	}
	return fleet.CheckUnknown, err.Error()
}

func (r *Runner) kernel() (fleet.CheckStatus, string) {
	b, err := os.ReadFile(r.path("/proc/sys/kernel/osrelease"))
	if err != nil {
		return fleet.CheckUnknown, err.Error()
	}
	if r.Kernel == "" {
		return fleet.CheckUnknown, "the image names no kernel release"
	}
	if seen := strings.TrimSpace(string(b)); seen != r.Kernel {
		return fleet.CheckFailed, fmt.Sprintf("kernel: expected %s, seen %s", r.Kernel, seen)
	}
	return fleet.CheckPassed, r.Kernel
}

func (r *Runner) path(name string) string { return filepath.Join("/", r.Root, name) }
