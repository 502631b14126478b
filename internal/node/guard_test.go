package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

var errReset = errors.New("reset")

func newGuard(t *testing.T, state fleet.SlotState) (Guard, *atomic.Value) {
	t.Helper()
	now := &atomic.Value{}
	now.Store(state)
	return Guard{
		Report: filepath.Join(t.TempDir(), "report.json"), Silence: 300 * time.Millisecond, Every: 5 * time.Millisecond,
		State: func(context.Context) (fleet.SlotState, error) { return now.Load().(fleet.SlotState), nil },
		Reset: func(reason string) error {
			if !strings.Contains(reason, "no sign of life") {
				t.Errorf("reset because %q", reason)
			}
			return errReset
		},
		Log: t.Logf,
	}, now
}

// A trial whose agent never comes up is ended.
func TestGuardEndsSilentTrial(t *testing.T) {
	g, _ := newGuard(t, fleet.SlotTrying)
	if err := g.Run(t.Context()); !errors.Is(err, errReset) {
		t.Errorf("Run = %v", err)
	}
}

// One that lived, and then is heard of no more, too; but not while it lives.
func TestGuardLetsAgentLive(t *testing.T) {
	g, _ := newGuard(t, fleet.SlotTrying)
	g.Silence = 2 * time.Second
	done := make(chan error, 1)
	go func() { done <- g.Run(t.Context()) }()
	for i := range 60 { // longer than Silence in all
		if err := os.WriteFile(g.Report, []byte{byte(i)}, 0o600); err != nil {
			t.Fatal(err)
		}
		when := time.Unix(int64(i+1), 0) // whatever the wall clock says
		if err := os.Chtimes(g.Report, when, when); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-done:
			t.Fatalf("ended while the agent lived: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	if err := <-done; !errors.Is(err, errReset) {
		t.Errorf("Run = %v", err)
	}
}

// A slot that is confirmed, or is confirmed meanwhile, is not guarded; nor is
// one whose state cannot be read.
func TestGuardLeavesOthersAlone(t *testing.T) {
	for name, prepare := range map[string]func(*Guard, *atomic.Value){
		"confirmed": func(_ *Guard, now *atomic.Value) { now.Store(fleet.SlotGood) },
		"meanwhile": func(_ *Guard, now *atomic.Value) {
			time.AfterFunc(20*time.Millisecond, func() { now.Store(fleet.SlotGood) })
		},
		"unreadable": func(g *Guard, _ *atomic.Value) {
			g.State = func(context.Context) (fleet.SlotState, error) { return "", errors.New("no ESP") }
		},
	} {
		g, now := newGuard(t, fleet.SlotTrying)
		prepare(&g, now)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		if err := g.Run(ctx); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		cancel()
	}
}
