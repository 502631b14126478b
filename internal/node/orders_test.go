package node

import (
	"errors"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/fleet"
)

// withOrders lets a technician speak to the agent.
func (r *rig) withOrders() Orders {
	r.cfg.Orders = filepath.Join(r.t.TempDir(), "agent.sock")
	return Orders{Socket: r.cfg.Orders}
}

// wantRefused wants a refusal that says why.
func wantRefused(t *testing.T, what string, err error, why string) {
	t.Helper()
	var no *orderRefused
	if !errors.As(err, &no) || !strings.Contains(err.Error(), why) {
		t.Errorf("%s: %v; want a refusal that says %q", what, err, why)
	}
}

// A technician flips a node that has no server; the agent does not take it
// back, and reboots.
func TestOrderFlip(t *testing.T) {
	r := newRig(t, fleet.SlotA, goodA, goodB)
	o := r.withOrders()
	r.server.away = true
	r.healthy()
	r.run()
	r.until("the socket", func() bool { _, err := os.Stat(o.Socket); return err == nil })
	if st, err := os.Stat(o.Socket); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("socket: %v, %v; want it for root alone", st.Mode(), err)
	}
	got, err := o.Flip(t.Context(), FlipOrder{Reason: "fan noise"})
	if err != nil {
		t.Fatal(err)
	}
	if want := (FlipResult{fleet.SlotB, shortB, 3}); got != want {
		t.Errorf("flip: %+v, want %+v", got, want)
	}
	if why := <-r.reboots; !strings.Contains(why, "slot B is armed") {
		t.Errorf("rebooted because %q", why)
	}
	r.wantUKIs(goodA, "g000003-"+shortB+"+2.efi")
	lines, err := ReadStory(r.cfg.Dir, 0)
	if err != nil || !slices.ContainsFunc(lines, func(l StoryLine) bool {
		return l.Kind == "slot.flip-ordered" && strings.Contains(l.Message, "fan noise") && l.BootID == bootID && !l.At.IsZero()
	}) {
		t.Errorf("story on the node: %+v, %v", lines, err)
	}
}

func TestOrderFlipRefused(t *testing.T) {
	for _, tt := range []struct{ name, booted, other, why string }{
		{"the other is bad", goodA, badB, "slot B is bad"},
		{"there is no other", goodA, "", "slot B is empty"},
		{"on trial", "g000003-" + shortA + "+1-1.efi", goodB, "slot A, which runs, is trying"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, fleet.SlotA, tt.booted, tt.other)
			o := r.withOrders()
			r.server.away = true
			r.healthy()
			r.run()
			r.until("the socket", func() bool { _, err := os.Stat(o.Socket); return err == nil })
			before := r.ukis()
			_, err := o.Flip(t.Context(), FlipOrder{})
			wantRefused(t, tt.name, err, tt.why)
			r.wantUKIs(before...)
		})
	}
}

// Without a server a healthy trial is confirmed by hand; one that is not
// healthy, or whose attestation was refused, only by force.
func TestOrderConfirm(t *testing.T) {
	r := newRig(t, fleet.SlotB, tryingB, goodA)
	o := r.withOrders()
	r.server.away = true
	r.cfg.Grace = 1 << 62
	r.run()
	r.until("the socket", func() bool { _, err := os.Stat(o.Socket); return err == nil })
	r.until("a refusal for health", func() bool {
		_, err := o.Confirm(t.Context(), ConfirmOrder{})
		return err != nil && strings.Contains(err.Error(), `health check "workload" failed`)
	})
	r.wantUKIs(goodA, tryingB)
	r.healthy()
	r.until("the confirm", func() bool {
		s, err := o.Confirm(t.Context(), ConfirmOrder{Reason: "network is down"})
		return err == nil && s.State == fleet.SlotGood
	})
	r.wantUKIs(goodA, goodB)
}

func TestOrderConfirmByForce(t *testing.T) {
	r := newRig(t, fleet.SlotB, tryingB, goodA)
	o := r.withOrders()
	r.server.away = true
	r.cfg.Grace = 1 << 62
	r.run()
	r.until("the confirm", func() bool {
		_, err := o.Confirm(t.Context(), ConfirmOrder{Reason: "I know", Force: true})
		return err == nil
	})
	r.wantUKIs(goodA, goodB)
}

func TestOrderAttest(t *testing.T) {
	r := newRig(t, fleet.SlotA, goodA, goodB)
	o := r.withOrders()
	r.healthy()
	r.run()
	r.until("a verdict", func() bool {
		v, err := o.Attest(t.Context())
		return err == nil && v.Accepted
	})
}

func TestOrderNobody(t *testing.T) {
	if _, err := (Orders{filepath.Join(t.TempDir(), "none")}).Attest(t.Context()); !errors.Is(err, ErrNoService) {
		t.Errorf("no socket: %v", err)
	}
}

// Where the service does not run, the command arms the slot itself, and the
// agent of the next boot of the same system does not take it for stale.
func TestArmFlip(t *testing.T) {
	r := newRig(t, fleet.SlotA, goodA, goodB)
	got, err := ArmFlip(t.Context(), r.cfg, "by hand")
	if err != nil || got.Slot != fleet.SlotB || got.Generation != 3 {
		t.Fatalf("ArmFlip = %+v, %v", got, err)
	}
	r.wantUKIs(goodA, "g000003-"+shortB+"+2.efi")
	r.server.away = true
	r.healthy()
	r.run()
	if why := <-r.reboots; !strings.Contains(why, "slot B is armed") {
		t.Errorf("rebooted because %q", why)
	}
}

// The story stays short, whole lines, the newest.
func TestStoryIsShortened(t *testing.T) {
	r := newRig(t, fleet.SlotA, goodA, goodB)
	a, err := New(r.cfg)
	if err != nil {
		t.Fatal(err)
	}
	for range 3000 {
		a.tell("test.line", "%s", strings.Repeat("x", 200))
	}
	a.tell("test.last", "the end")
	st, err := os.Stat(filepath.Join(r.cfg.Dir, storyFile))
	if err != nil || st.Size() > storyMost+1024 {
		t.Fatalf("story: %v, %v", st.Size(), err)
	}
	lines, err := ReadStory(r.cfg.Dir, 10)
	if err != nil || len(lines) != 10 || lines[9].Kind != "test.last" {
		t.Errorf("%d lines, %v", len(lines), err)
	}
	all, err := ReadStory(r.cfg.Dir, 0)
	if err != nil || len(all) < 300 {
		t.Errorf("%d lines are left, %v", len(all), err)
	}
}
