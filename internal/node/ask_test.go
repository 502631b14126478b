package node

import (
	"context"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// The server may ask for a run of the checks now, and for a new start of the
// agent; each favour is done once.
func TestFavours(t *testing.T) {
	r := newRig(t, fleet.SlotA, goodA, "")
	r.cfg.CheckEvery = time.Hour
	a, err := New(r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	done := make(chan error, 1)
	go func() { done <- a.Run(ctx) }()
	r.until("a report of a failed check", func() bool {
		rep := r.server.last()
		return rep != nil && len(rep.Health) > 0 && rep.Health[0].Status == fleet.CheckFailed
	})
	r.healthy()
	r.server.with(func() { r.server.ask = &fleet.Ask{ID: 7, Act: fleet.AskRecheck} })
	r.until("a report of the check that passes", func() bool { return r.server.last().Health[0].Status == fleet.CheckPassed })
	r.server.with(func() { r.server.ask = &fleet.Ask{ID: 7, Act: fleet.AskRestart} })
	before := len(r.server.story())
	reports := func() (n int) { r.server.with(func() { n = len(r.server.reports) }); return n }
	at := reports()
	r.until("two more heartbeats", func() bool { return reports() > at+2 })
	select {
	case err := <-done:
		t.Fatalf("an old ID was obeyed: %v", err)
	default:
	}
	if n := strings.Count(r.server.story(), "agent.recheck"); n != 1 {
		t.Errorf("it rechecked %d times after %d bytes of story; want once", n, before)
	}
	r.server.with(func() { r.server.ask = &fleet.Ask{ID: 8, Act: fleet.AskRestart} })
	if err := <-done; !errors.Is(err, errAgain) {
		t.Fatalf("Run = %v; want that it was asked to start anew", err)
	}
	again, err := New(r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	go func() { done <- again.Run(ctx) }()
	at = reports()
	r.until("two heartbeats of the new one", func() bool { return reports() > at+2 })
	select {
	case err := <-done:
		t.Fatalf("the new one was asked again: %v", err)
	default:
	}
	cancel()
	if err := <-done; err != nil {
		t.Errorf("Run = %v", err)
	}
}
