package slottest

import (
	"context"
	"errors"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/fleet"
)

// Life plays the life of a node on a carrier: every transition, with the
// loader between them.
func Life(t *testing.T, open Opener) {
	for _, tt := range []struct {
		name string
		play func(*story)
	}{
		{"first installation", func(*story) {}},
		{"update", playUpdate},
		{"unconfirmed image runs out of tries", playFallback},
		{"condemned image", playCondemn},
		{"flip there and back", playFlip},
		{"cancel an update", playCancel},
		{"cancel a flip", playCancelFlip},
		{"demoted by its initrd", playDemote},
		{"installation interrupted, then repeated", playInterrupted},
		{"hundred updates", playMany},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &story{t: t, ctx: context.Background(), n: NewNode(open(t, false)), v1: NewImage("v1"), v2: NewImage("v2")}
			must(t, s.n.Provision(s.ctx, s.v1))
			s.want(fleet.SlotA, fleet.SlotGood, fleet.SlotEmpty)
			tt.play(s)
		})
	}
}

// story is a node on which image v1 is confirmed in slot A.
type story struct {
	t      *testing.T
	ctx    context.Context
	n      *Node
	v1, v2 Image
}

func (s *story) must(err error) { s.t.Helper(); must(s.t, err) }

func (s *story) status() abslot.Status {
	s.t.Helper()
	st, err := s.n.Machine().Status(s.ctx)
	s.must(err)
	return st
}

func (s *story) want(booted fleet.Slot, a, b fleet.SlotState) {
	s.t.Helper()
	st := s.status()
	if st.Problem != nil {
		s.t.Fatalf("problem: %v", st.Problem)
	}
	if st.Booted != booted || st.Slots[0].State != a || st.Slots[1].State != b || len(st.Strays) > 0 {
		s.t.Fatalf("booted %s, A %s, B %s, strays %q; want booted %s, A %s, B %s\n%s", st.Booted, st.Slots[0].State,
			st.Slots[1].State, st.Strays, booted, a, b, strings.Join(s.n.Lines, "\n"))
	}
}

func (s *story) boot(want Image, name string) {
	s.t.Helper()
	got, err := s.n.Boot(s.ctx)
	s.must(err)
	if got != name || s.n.Evidence.RootHash != want.RootHash {
		s.t.Fatalf("booted %s; want %s", got, name)
	}
}

func (s *story) refused(err, want error) {
	s.t.Helper()
	if !errors.Is(err, want) {
		s.t.Fatalf("error %v; want %v", err, want)
	}
}

func playUpdate(s *story) {
	m := s.n.Machine()
	s.must(m.Begin(s.ctx, fleet.SlotB))
	s.want(fleet.SlotA, fleet.SlotGood, fleet.SlotWriting)
	s.n.Write(fleet.SlotB, s.v2)
	s.must(m.Stage(s.ctx, fleet.SlotB, s.v2.Staged()))
	s.want(fleet.SlotA, fleet.SlotGood, fleet.SlotStaged)
	s.boot(s.v1, "g000001-"+s.v1.Short+".efi") // staged is not started
	s.must(m.Arm(s.ctx, fleet.SlotB, 7, 3))
	s.want(fleet.SlotA, fleet.SlotGood, fleet.SlotArmed)
	s.boot(s.v2, "g000007-"+s.v2.Short+"+2-1.efi")
	s.want(fleet.SlotB, fleet.SlotGood, fleet.SlotTrying)
	s.refused(m.Begin(s.ctx, fleet.SlotA), abslot.ErrUnconfirmed)
	s.boot(s.v2, "g000007-"+s.v2.Short+"+1-2.efi")
	s.boot(s.v2, "g000007-"+s.v2.Short+"+0-3.efi")
	s.want(fleet.SlotB, fleet.SlotGood, fleet.SlotTrying) // the last trial, although the name says +0
	s.must(s.n.Confirm(s.ctx))
	s.want(fleet.SlotB, fleet.SlotGood, fleet.SlotGood)
	s.must(s.n.Confirm(s.ctx)) // again: nothing
	s.boot(s.v2, "g000007-"+s.v2.Short+".efi")
}

func playFallback(s *story) {
	s.must(s.n.Install(s.ctx, fleet.SlotB, s.v2, 2))
	s.boot(s.v2, "g000002-"+s.v2.Short+"+1-1.efi")
	s.boot(s.v2, "g000002-"+s.v2.Short+"+0-2.efi")
	for range 3 {
		s.boot(s.v1, "g000001-"+s.v1.Short+".efi")
		s.want(fleet.SlotA, fleet.SlotGood, fleet.SlotBad)
	}
	if r := s.status().Slots[1].Reason; !strings.Contains(r, "ran out of trial boots") {
		s.t.Errorf("reason %q", r)
	}
	// The same image is not armed again, unless somebody says so.
	m := s.n.Machine()
	s.refused(s.n.Install(s.ctx, fleet.SlotB, s.v2, 3), abslot.ErrBanned)
	s.must(m.Lift(s.ctx, s.v2.Short))
	s.must(m.Arm(s.ctx, fleet.SlotB, 3, 1))
	s.boot(s.v2, "g000003-"+s.v2.Short+"+0-1.efi")
	s.must(s.n.Confirm(s.ctx))
}

func playCondemn(s *story) {
	m := s.n.Machine()
	s.must(s.n.Install(s.ctx, fleet.SlotB, s.v2, 2))
	s.boot(s.v2, "g000002-"+s.v2.Short+"+1-1.efi")
	s.must(m.Condemn(s.ctx, fleet.SlotB, "check kernel failed", false))
	s.must(m.Condemn(s.ctx, fleet.SlotB, "check kernel failed", false)) // again: nothing
	s.want(fleet.SlotB, fleet.SlotGood, fleet.SlotBad)
	s.refused(s.n.Confirm(s.ctx), abslot.ErrState)
	s.refused(m.Condemn(s.ctx, fleet.SlotA, "this one too", false), abslot.ErrLastGood)
	s.boot(s.v1, "g000001-"+s.v1.Short+".efi")
	s.want(fleet.SlotA, fleet.SlotGood, fleet.SlotBad)
	if r := s.status().Slots[1].Reason; r != "check kernel failed" {
		s.t.Errorf("reason %q; want the one given", r)
	}
	s.refused(s.n.Install(s.ctx, fleet.SlotB, s.v2, 3), abslot.ErrBanned)
	s.must(s.n.Install(s.ctx, fleet.SlotB, NewImage("v3"), 3))
}

func playFlip(s *story) {
	m := s.n.Machine()
	playUpdate(s)
	s.refused(m.Flip(s.ctx, fleet.SlotA, s.v2.Short, 8, 1), abslot.ErrMismatch)
	s.refused(m.Flip(s.ctx, fleet.SlotA, s.v1.Short, 7, 1), abslot.ErrStale)
	s.must(m.Flip(s.ctx, fleet.SlotA, s.v1.Short, 8, 1))
	s.boot(s.v1, "g000008-"+s.v1.Short+"+0-1.efi")
	s.want(fleet.SlotA, fleet.SlotTrying, fleet.SlotGood)
	s.must(s.n.Confirm(s.ctx))
	s.boot(s.v1, "g000008-"+s.v1.Short+".efi")
	s.must(m.Flip(s.ctx, fleet.SlotB, "", 9, 0)) // and back, but it is never confirmed
	s.boot(s.v2, "g000009-"+s.v2.Short+"+1-1.efi")
	s.boot(s.v2, "g000009-"+s.v2.Short+"+0-2.efi")
	s.boot(s.v1, "g000008-"+s.v1.Short+".efi")
}

func playCancel(s *story) {
	m := s.n.Machine()
	s.must(s.n.Install(s.ctx, fleet.SlotB, s.v2, 2))
	s.must(m.Cancel(s.ctx, fleet.SlotB))
	s.want(fleet.SlotA, fleet.SlotGood, fleet.SlotStaged)
	s.boot(s.v1, "g000001-"+s.v1.Short+".efi")
	s.must(m.Arm(s.ctx, fleet.SlotB, 2, 0))
	s.boot(s.v2, "g000002-"+s.v2.Short+"+1-1.efi")
	s.refused(m.Cancel(s.ctx, fleet.SlotB), abslot.ErrBooted)
}

func playCancelFlip(s *story) {
	m := s.n.Machine()
	playUpdate(s)
	before, err := s.n.ESP.List(s.ctx, abslot.LinuxDir)
	s.must(err)
	s.must(m.Flip(s.ctx, fleet.SlotA, s.v1.Short, 8, 0))
	s.must(m.Cancel(s.ctx, fleet.SlotA))
	after, err := s.n.ESP.List(s.ctx, abslot.LinuxDir)
	s.must(err)
	for _, f := range before {
		found := false
		for _, g := range after {
			found = found || f == g
		}
		if !found || len(after) != len(before) {
			s.t.Fatalf("after flip and cancel there are %v; want %v", after, before)
		}
	}
	s.want(fleet.SlotB, fleet.SlotGood, fleet.SlotGood)
}

func playDemote(s *story) {
	s.must(s.n.Install(s.ctx, fleet.SlotB, s.v2, 2))
	s.n.Hashes[fleet.SlotB] = "" // the tree was damaged on disk
	got, err := s.n.Boot(s.ctx)
	s.must(err)
	name, err := s.n.Machine().Demote(s.ctx, "root does not verify")
	s.must(err)
	if want := "g000002-" + s.v2.Short + "+1-1.efi"; got != want || name != want {
		s.t.Fatalf("booted %s, demoted %s; want %s", got, name, want)
	}
	s.boot(s.v1, "g000001-"+s.v1.Short+".efi")
	_, err = s.n.Machine().Demote(s.ctx, "root does not verify")
	s.refused(err, abslot.ErrLastGood)
	s.must(s.n.Install(s.ctx, fleet.SlotB, NewImage("v3"), 3))
}

func playInterrupted(s *story) {
	m := s.n.Machine()
	s.must(m.Begin(s.ctx, fleet.SlotB))
	s.n.Hashes[fleet.SlotB] = s.v2.RootHash // written, then the power went
	s.boot(s.v1, "g000001-"+s.v1.Short+".efi")
	s.want(fleet.SlotA, fleet.SlotGood, fleet.SlotWriting)
	s.refused(m.Arm(s.ctx, fleet.SlotB, 2, 0), abslot.ErrState)
	s.must(s.n.Install(s.ctx, fleet.SlotB, s.v2, 2))
	s.boot(s.v2, "g000002-"+s.v2.Short+"+1-1.efi")
}

func playMany(s *story) {
	slot := fleet.SlotA
	for g := uint64(2); g <= 101; g++ {
		image := s.v1
		if slot = slot.Other(); slot == fleet.SlotB {
			image = s.v2
		}
		s.must(s.n.Install(s.ctx, slot, image, g))
		_, err := s.n.Boot(s.ctx)
		s.must(err)
		s.must(s.n.Confirm(s.ctx))
	}
	s.want(fleet.SlotA, fleet.SlotGood, fleet.SlotGood)
	files, err := s.n.ESP.List(s.ctx, abslot.LinuxDir)
	s.must(err)
	copies, err := s.n.ESP.List(s.ctx, abslot.TurnoutDir)
	s.must(err)
	if len(files) != 2 || len(copies) != 3 {
		s.t.Errorf("after a hundred updates: %v and %v; want two UKIs, two manifests and the journal", files, copies)
	}
}
