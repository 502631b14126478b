package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/vmtest"
)

// seat is a server, and the operator's place beside it.
type seat struct {
	dir     string // its configuration's folder, below Options.Dir
	log     string
	command func(ctx context.Context, name string, args ...string) *exec.Cmd // runs a program there
	server  *exec.Cmd
	ended   chan struct{} // closed when server has ended
}

// lab is the rack, the servers beside it, and the operator's hands.
type lab struct {
	Options
	*seat   // at which the operator sits
	rack    *vmtest.Rack
	story   *exec.Cmd         // `pxeserver events --follow`
	digests map[string]string // "v1" -> image digest
	table   table
	started time.Time
}

func (l *lab) config() string       { return filepath.Join(l.Dir, l.dir, "pxeserver.yaml") }
func (l *lab) bin(p string) string  { return filepath.Join(l.Bin, p) }
func (l *lab) path(p string) string { return filepath.Join(l.Dir, p) }

// close ends everything the demo started.
func (l *lab) close() error {
	l.stopStory()
	return errors.Join(l.killServer(), l.rack.Close())
}

// startServer runs `pxeserver serve` in the rack's namespace and waits until
// it answers.
func (l *lab) startServer(ctx context.Context) error {
	logFile, err := os.OpenFile(l.path(l.log), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer logFile.Close()
	cmd := l.command(context.Background(), l.bin("pxeserver"), "serve", "--config", l.config())
	cmd.Stdout, cmd.Stderr = logFile, logFile
	if err := cmd.Start(); err != nil {
		return err
	}
	l.server, l.ended = cmd, make(chan struct{})
	go func(ended chan struct{}) {
		_ = cmd.Wait()
		close(ended)
	}(l.ended)
	ctx, cancel := l.whileServing(ctx)
	defer cancel()
	return l.until(ctx, "pxeserver to answer", time.Minute, func() (bool, string) {
		var nodes []fleet.Node
		err := l.query(ctx, &nodes, "node", "list")
		return err == nil, fmt.Sprint(err)
	})
}

// whileServing returns a context that ends when the server does.
func (l *lab) whileServing(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancelCause(ctx)
	go func(ended chan struct{}) {
		select {
		case <-ended:
			cancel(fmt.Errorf("pxeserver ended by itself; see %s", l.path(l.log)))
		case <-ctx.Done():
		}
	}(l.ended)
	return ctx, func() { cancel(nil) }
}

// killServer ends the server with SIGKILL, as a crash would.
func (l *lab) killServer() error {
	if l.server == nil {
		return nil
	}
	err := l.server.Process.Signal(syscall.SIGKILL)
	<-l.ended
	l.server = nil
	if errors.Is(err, os.ErrProcessDone) {
		return errors.New("pxeserver ended by itself; see " + l.log)
	}
	return err
}

// operator runs a pxeserver command as an operator would, showing it and
// what it prints.
func (l *lab) operator(ctx context.Context, args ...string) (string, error) {
	l.say("$ pxeserver %s", l.shorten(strings.Join(args, " ")))
	out, err := l.pxeserver(ctx, args...)
	for line := range strings.Lines(out) {
		l.say("  %s", strings.TrimRight(line, "\n"))
	}
	return out, err
}

func (l *lab) pxeserver(ctx context.Context, args ...string) (string, error) {
	cmd := l.command(ctx, l.bin("pxeserver"), append([]string{"--config", l.config()}, args...)...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		return out.String(), fmt.Errorf("pxeserver %s: %w: %s", strings.Join(args, " "), err, strings.TrimSpace(errOut.String()))
	}
	return out.String(), nil
}

// query runs a pxeserver command with -o json into v.
func (l *lab) query(ctx context.Context, v any, args ...string) error {
	out, err := l.pxeserver(ctx, append(args, "-o", "json")...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(out), v); err != nil {
		return fmt.Errorf("pxeserver %s: %w", strings.Join(args, " "), err)
	}
	return nil
}

// node asks the server for one node.
func (l *lab) node(ctx context.Context, name string) (fleet.Node, error) {
	var n fleet.Node
	err := l.query(ctx, &n, "node", "show", name)
	return n, err
}

// until polls a condition; its second result says how things stand and is
// part of the error when time runs out.
func (l *lab) until(ctx context.Context, what string, limit time.Duration, met func() (bool, string)) error {
	deadline := time.Now().Add(limit)
	for {
		ok, state := met()
		if ok {
			return nil
		}
		if time.Now().After(deadline) {
			return fmt.Errorf("waited %s for %s; last seen: %s", limit, what, state)
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("waiting for %s: %w (last seen: %s)", what, context.Cause(ctx), state)
		case <-time.After(time.Second):
		}
	}
}

// settled waits until a node runs the image in a confirmed slot, healthy and
// attested in this boot, and returns it.
func (l *lab) settled(ctx context.Context, name, digest string, limit time.Duration) (fleet.Node, error) {
	var n fleet.Node
	err := l.until(ctx, fmt.Sprintf("node %s on %s, confirmed and healthy", name, l.label(digest)), limit, func() (bool, string) {
		var err error
		if n, err = l.node(ctx, name); err != nil {
			return false, err.Error()
		}
		return runs(n, digest), l.describe(n)
	})
	return n, err
}

// runs: booted from a good slot that holds the image, healthy, and accepted
// by attestation in this very boot.
func runs(n fleet.Node, digest string) bool {
	r := n.Reported
	return r != nil && r.Stage == fleet.StageSystem && r.BootedImage() == digest &&
		r.Slot(r.Booted).State == fleet.SlotGood && r.Healthy &&
		n.Verdict != nil && n.Verdict.Accepted && n.Verdict.BootID == r.BootID
}

func (l *lab) describe(n fleet.Node) string {
	r := n.Reported
	if r == nil {
		return fmt.Sprintf("%s, nothing reported", n.State)
	}
	s := fmt.Sprintf("%s: stage %s, booted %q", n.State, r.Stage, r.Booted)
	for _, x := range r.Slots {
		s += fmt.Sprintf(", %s %s %s %s", x.Slot, x.State, l.label(x.Image), x.Reason)
	}
	if c, bad := fleet.FirstFailure(r.Health); bad {
		s += fmt.Sprintf(", check %s %s: %s", c.Name, c.Status, c.Detail)
	}
	if n.Verdict != nil {
		s += ", attestation: " + n.Verdict.Summary
	}
	return s
}

// label turns a digest into the name the story uses.
func (l *lab) label(digest string) string {
	for name, d := range l.digests {
		if d == digest {
			return name
		}
	}
	return digest
}
