package node

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/fleet"
)

var (
	v1 = "sha256:" + strings.Repeat("1", 64)
	v2 = "sha256:" + strings.Repeat("2", 64)
	v3 = "sha256:" + strings.Repeat("3", 64)
)

func slot(s fleet.Slot, st fleet.SlotState, image string, gen uint64) fleet.SlotReport {
	return fleet.SlotReport{Slot: s, State: st, Image: image, Generation: gen}
}

// good is a node on its confirmed slot A with v1, slot B as given.
func good(b fleet.SlotReport) State {
	b.Slot = fleet.SlotB
	return State{
		Booted: fleet.SlotA, Slots: [2]fleet.SlotReport{slot(fleet.SlotA, fleet.SlotGood, v1, 1), b},
		Acted: 1, Desired: fleet.Desired{Image: v1, Generation: 1}, Grace: 30 * time.Second,
		Soaked: true, Verdict: &fleet.Verdict{Accepted: true},
	}
}

// trial is a node in a trial boot of slot B with v2, slot A good with v1.
func trial() State {
	return State{
		Booted: fleet.SlotB, Counted: true, Acted: 2, Grace: 30 * time.Second,
		Slots: [2]fleet.SlotReport{
			slot(fleet.SlotA, fleet.SlotGood, v1, 1), slot(fleet.SlotB, fleet.SlotTrying, v2, 2),
		},
		Desired: fleet.Desired{Image: v2, Generation: 2},
	}
}

func failing(status fleet.CheckStatus, d time.Duration) *Failure {
	return &Failure{Check: fleet.CheckResult{Name: "gpu", Status: status, Detail: "expected 8, seen 7", Class: fleet.FaultSoftware, Required: true}, For: d}
}

func refused(pcr int) *fleet.Verdict {
	return &fleet.Verdict{Summary: "PCR is wrong", Findings: []fleet.Finding{{PCR: pcr, Kind: "pcr-value"}}}
}

func TestDecide(t *testing.T) {
	with := func(s State, f func(*State)) State { f(&s); return s }
	tests := []struct {
		name  string
		state State
		want  Action // Reason: a part of it
	}{
		{"the installer decides nothing", State{}, Action{Kind: Wait, Reason: "no slot"}},
		{"no server, and the image does not allow to do without", with(trial(), func(s *State) { s.Soaked, s.Desired, s.Offline = true, fleet.Desired{}, time.Hour }),
			Action{Kind: Wait, Slot: fleet.SlotB, Reason: "waiting for an accepted attestation"}},
		{"no server, and the image allows it", with(trial(), func(s *State) {
			s.Soaked, s.Desired, s.Offline, s.ConfirmOffline = true, fleet.Desired{}, offlinePatience, true
		}), Action{Kind: Confirm, Slot: fleet.SlotB, Generation: 2, Reason: "no server was reached"}},
		{"no server yet", with(trial(), func(s *State) {
			s.Soaked, s.Desired, s.Offline, s.ConfirmOffline = true, fleet.Desired{}, offlinePatience-1, true
		}), Action{Kind: Wait, Slot: fleet.SlotB, Reason: "waiting for an accepted attestation"}},
		{"no server, not healthy for the soak", with(trial(), func(s *State) { s.Desired, s.Offline, s.ConfirmOffline = fleet.Desired{}, time.Hour, true }),
			Action{Kind: Wait, Slot: fleet.SlotB, Reason: "whole soak"}},
		{"refused, then the server went away", with(trial(), func(s *State) {
			s.Soaked, s.Offline, s.ConfirmOffline, s.Verdict = true, time.Hour, true, refused(11)
		}), Action{Kind: Condemn, Slot: fleet.SlotB, Generation: 2, Reason: "attestation refused"}},
		{"evidence disagrees", with(trial(), func(s *State) { s.Problem = "evidence disagrees"; s.Verdict = refused(11) }),
			Action{Kind: Wait, Slot: "B", Reason: "evidence disagrees"}},

		// A trial.
		{"trial: health is not known yet", trial(), Action{Kind: Wait, Slot: "B", Reason: "soak"}},
		{"trial: healthy, the server is silent", with(trial(), func(s *State) { s.Soaked = true; s.Desired = fleet.Desired{} }),
			Action{Kind: Wait, Slot: "B", Reason: "waiting for an accepted attestation"}},
		{"trial: attested, not healthy", with(trial(), func(s *State) { s.Verdict = &fleet.Verdict{Accepted: true} }),
			Action{Kind: Wait, Slot: "B", Reason: "soak"}},
		{"trial: healthy and attested", with(trial(), func(s *State) { s.Soaked = true; s.Verdict = &fleet.Verdict{Accepted: true} }),
			Action{Kind: Confirm, Slot: "B", Generation: 2, Reason: "healthy"}},
		{"trial: healthy and attested, not counted", with(trial(), func(s *State) {
			s.Soaked, s.Counted, s.Verdict = true, false, &fleet.Verdict{Accepted: true}
		}), Action{Kind: Wait, Slot: "B", Reason: "did not count"}},
		{"trial: started over the network", with(trial(), func(s *State) {
			s.Slots[1].State, s.Soaked, s.Counted, s.Verdict = fleet.SlotArmed, true, false, &fleet.Verdict{Accepted: true}
		}), Action{Kind: Wait, Slot: "B", Reason: "did not count"}},
		{"trial: fails within the grace", with(trial(), func(s *State) { s.Failing = failing(fleet.CheckFailed, 29*time.Second) }),
			Action{Kind: Wait, Slot: "B", Reason: "soak"}},
		{"trial: fails", with(trial(), func(s *State) { s.Failing = failing(fleet.CheckFailed, 30*time.Second) }),
			Action{Kind: Condemn, Slot: "B", Generation: 2, Reason: `health check "gpu" failed: expected 8, seen 7`}},
		{"trial: fails, the server is silent", with(trial(), func(s *State) {
			s.Failing, s.Desired = failing(fleet.CheckFailed, time.Minute), fleet.Desired{}
		}), Action{Kind: Condemn, Slot: "B", Generation: 2, Reason: "gpu"}},
		{"trial: no answer for a while", with(trial(), func(s *State) { s.Failing = failing(fleet.CheckUnknown, 119*time.Second) }),
			Action{Kind: Wait, Slot: "B", Reason: "soak"}},
		{"trial: no answer for too long", with(trial(), func(s *State) { s.Failing = failing(fleet.CheckUnknown, 120*time.Second) }),
			Action{Kind: Condemn, Slot: "B", Generation: 2, Reason: `"gpu" unknown`}},
		{"trial: fails, nothing to fall back to", with(trial(), func(s *State) {
			s.Slots[0], s.Failing = slot("A", fleet.SlotEmpty, "", 0), failing(fleet.CheckFailed, time.Hour)
		}), Action{Kind: Wait, Slot: "B", Reason: "the other slot is empty, so this one stays"}},
		{"trial: refused", with(trial(), func(s *State) { s.Soaked, s.Verdict = true, refused(11) }),
			Action{Kind: Condemn, Slot: "B", Generation: 2, Reason: "attestation refused: PCR is wrong"}},
		{"trial: refused for the firmware", with(trial(), func(s *State) { s.Soaked, s.Verdict = true, refused(0) }),
			Action{Kind: Wait, Slot: "B", Reason: "waiting for an accepted attestation"}},
		{"trial: refused for an old nonce", with(trial(), func(s *State) { s.Soaked, s.Verdict = true, refused(-1) }),
			Action{Kind: Wait, Slot: "B", Reason: "waiting for an accepted attestation"}},
		{"trial: refused, other slot bad", with(trial(), func(s *State) { s.Slots[0].State, s.Verdict = fleet.SlotBad, refused(4) }),
			Action{Kind: Wait, Slot: "B", Reason: "this one stays"}},
		{"trial: withdrawn", with(trial(), func(s *State) { s.Desired = fleet.Desired{Image: v1, Generation: 3, Reason: "halted"} }),
			Action{Kind: Condemn, Slot: "B", Generation: 2, Reason: "withdrawn"}},
		{"trial: a third image waits for its end", with(trial(), func(s *State) { s.Desired = fleet.Desired{Image: v3, Generation: 3} }),
			Action{Kind: Wait, Slot: "B", Reason: "soak"}},
		{"trial: a stale wish for the old image", with(trial(), func(s *State) { s.Desired = fleet.Desired{Image: v1, Generation: 1} }),
			Action{Kind: Wait, Slot: "B", Reason: "soak"}},

		// A confirmed slot.
		{"good: content", good(fleet.SlotReport{State: fleet.SlotEmpty}), Action{Kind: Wait, Slot: "A", Reason: "idle"}},
		{"good: the server is silent", with(good(fleet.SlotReport{State: fleet.SlotEmpty}), func(s *State) {
			s.Desired, s.Verdict = fleet.Desired{}, nil
		}), Action{Kind: Wait, Slot: "A", Reason: "idle"}},
		{"good: unhealthy is the server's affair", with(good(slot("B", fleet.SlotGood, v2, 2)), func(s *State) {
			s.Soaked, s.Failing = false, failing(fleet.CheckFailed, time.Hour)
		}), Action{Kind: Wait, Slot: "A", Reason: "idle"}},
		{"good: refused, other good", with(good(slot("B", fleet.SlotGood, v2, 2)), func(s *State) { s.Verdict = refused(11) }),
			Action{Kind: Condemn, Slot: "A", Generation: 1, Reason: "attestation refused"}},
		{"good: refused, other not good", with(good(slot("B", fleet.SlotTrying, v2, 2)), func(s *State) { s.Verdict = refused(11) }),
			Action{Kind: Wait, Slot: "A", Reason: "this one stays"}},
		{"good: new image", with(good(fleet.SlotReport{State: fleet.SlotEmpty}), func(s *State) {
			s.Desired = fleet.Desired{Image: v2, Generation: 2, Reason: "rollout r1"}
		}), Action{Kind: Install, Slot: "B", Image: v2, Generation: 2, Tries: 2, Reason: "rollout r1"}},
		{"good: new image, tries asked for", with(good(fleet.SlotReport{State: fleet.SlotBad}), func(s *State) {
			s.Desired = fleet.Desired{Image: v2, Generation: 2, Tries: 5}
		}), Action{Kind: Install, Slot: "B", Image: v2, Generation: 2, Tries: 5}},
		{"good: same generation, other image", with(good(fleet.SlotReport{State: fleet.SlotEmpty}), func(s *State) {
			s.Desired = fleet.Desired{Image: v2, Generation: 1}
		}), Action{Kind: Wait, Slot: "A", Reason: "idle"}},
		{"good: no wish", with(good(fleet.SlotReport{State: fleet.SlotEmpty}), func(s *State) { s.Desired = fleet.Desired{Generation: 9} }),
			Action{Kind: Wait, Slot: "A", Reason: "idle"}},
		{"good: wish met already", with(good(fleet.SlotReport{State: fleet.SlotEmpty}), func(s *State) { s.Desired.Generation = 7 }),
			Action{Kind: Ack, Slot: "A", Generation: 7, Reason: "already"}},
		{"good: flip", with(good(slot("B", fleet.SlotGood, v2, 2)), func(s *State) { s.Desired = fleet.Desired{Image: v2, Generation: 3} }),
			Action{Kind: Flip, Slot: "B", Image: v2, Generation: 3, Tries: 2}},
		{"good: other slot known by its short digest", with(good(slot("B", fleet.SlotGood, strings.Repeat("2", 12), 2)), func(s *State) {
			s.Desired = fleet.Desired{Image: v2, Generation: 3}
		}), Action{Kind: Flip, Slot: "B", Image: v2, Generation: 3, Tries: 2}},
		{"good: to be reinstalled with another image", with(good(slot("B", fleet.SlotGood, v2, 2)), func(s *State) {
			s.Desired = fleet.Desired{Image: v2, Generation: 3, Reinstall: true}
		}), Action{Kind: Install, Slot: "B", Image: v2, Generation: 3, Tries: 2}},
		{"good: to be reinstalled with what runs", with(good(slot("B", fleet.SlotGood, v2, 2)), func(s *State) {
			s.Desired = fleet.Desired{Image: v1, Generation: 3, Reinstall: true}
		}), Action{Kind: Wait, Slot: "A", Reason: "boot this node from the network"}},
		{"good: staged", with(good(slot("B", fleet.SlotStaged, v2, 0)), func(s *State) { s.Desired = fleet.Desired{Image: v2, Generation: 3} }),
			Action{Kind: Arm, Slot: "B", Image: v2, Generation: 3, Tries: 2}},
		{"good: a bad image asked for again is installed anew", with(good(slot("B", fleet.SlotBad, v2, 2)), func(s *State) {
			s.Desired = fleet.Desired{Image: v2, Generation: 3}
		}), Action{Kind: Install, Slot: "B", Image: v2, Generation: 3, Tries: 2}},
		{"good: fell back, the old wish is not repeated", with(good(slot("B", fleet.SlotBad, v2, 2)), func(s *State) {
			s.Acted, s.Desired = 2, fleet.Desired{Image: v2, Generation: 2}
		}), Action{Kind: Wait, Slot: "A", Reason: "idle"}},
		{"good: armed by this boot", with(good(slot("B", fleet.SlotArmed, v2, 2)), func(s *State) {
			s.ArmedNow, s.Acted, s.Desired = true, 2, fleet.Desired{Image: v2, Generation: 2}
		}), Action{Kind: Reboot, Slot: "B", Generation: 2, Reason: "armed"}},
		{"good: armed by this boot, then the server went silent", with(good(slot("B", fleet.SlotArmed, v2, 2)), func(s *State) {
			s.ArmedNow, s.Acted, s.Desired = true, 2, fleet.Desired{}
		}), Action{Kind: Reboot, Slot: "B", Generation: 2, Reason: "armed"}},
		{"good: armed by an earlier boot, passed over", with(good(slot("B", fleet.SlotArmed, v2, 2)), func(s *State) {
			s.Acted, s.Desired = 2, fleet.Desired{Image: v2, Generation: 2}
		}), Action{Kind: Cancel, Slot: "B", Reason: "did not start it"}},
		{"good: armed, the wish changed", with(good(slot("B", fleet.SlotArmed, v2, 2)), func(s *State) {
			s.ArmedNow, s.Acted, s.Desired = true, 2, fleet.Desired{Image: v1, Generation: 3}
		}), Action{Kind: Cancel, Slot: "B", Reason: "another image"}},

		// Neither.
		{"every slot is bad", with(trial(), func(s *State) {
			s.Slots[0].State, s.Slots[1].State, s.Soaked, s.Verdict = fleet.SlotBad, fleet.SlotBad, true, &fleet.Verdict{Accepted: true}
		}), Action{Kind: Wait, Slot: "B", Reason: "booted slot B is bad"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := Decide(tt.state)
			if !strings.Contains(got.Reason, tt.want.Reason) {
				t.Errorf("Decide().Reason = %q, want it to contain %q", got.Reason, tt.want.Reason)
			}
			got.Reason, tt.want.Reason = "", ""
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("Decide (-want +got):\n%s", d)
			}
		})
	}
}

// TestDecideNeverDemotesWithoutCause goes through every combination of slot
// states with a silent server and healthy checks: whatever the state, nothing
// is condemned, confirmed or written.
func TestDecideNeverDemotesWithoutCause(t *testing.T) {
	states := []fleet.SlotState{fleet.SlotEmpty, fleet.SlotWriting, fleet.SlotStaged, fleet.SlotArmed, fleet.SlotTrying, fleet.SlotGood, fleet.SlotBad}
	for _, booted := range fleet.Slots {
		for _, a := range states {
			for _, b := range states {
				s := State{Booted: booted, Soaked: true, Counted: true, Grace: time.Second,
					Slots: [2]fleet.SlotReport{slot("A", a, v1, 1), slot("B", b, v2, 2)}}
				switch got := Decide(s); got.Kind {
				case Wait, Cancel:
				default:
					t.Errorf("booted %s, A %s, B %s, silent server: %+v, want wait or cancel", booted, a, b, got)
				}
			}
		}
	}
}

// TestDecideInvariants goes through every combination of facts and checks
// what must hold whatever the facts are.
func TestDecideInvariants(t *testing.T) {
	states := []fleet.SlotState{fleet.SlotEmpty, fleet.SlotWriting, fleet.SlotStaged, fleet.SlotArmed, fleet.SlotTrying, fleet.SlotGood, fleet.SlotBad}
	verdicts := []*fleet.Verdict{nil, {Accepted: true}, refused(11), refused(0), refused(-1)}
	failures := []*Failure{nil, failing(fleet.CheckFailed, time.Hour), failing(fleet.CheckUnknown, time.Second)}
	wishes := []fleet.Desired{{}, {Image: v1, Generation: 3}, {Image: v2, Generation: 3}, {Image: v3, Generation: 3}, {Image: v3, Generation: 2}}
	n := 0
	for _, booted := range fleet.Slots {
		for _, a := range states {
			for _, b := range states {
				for bits := range 8 {
					for _, v := range verdicts {
						for _, f := range failures {
							for _, d := range wishes {
								s := State{
									Booted: booted, Slots: [2]fleet.SlotReport{slot("A", a, v1, 1), slot("B", b, v2, 2)},
									Acted: 2, Desired: d, Verdict: v, Failing: f, Grace: 30 * time.Second,
									Soaked: bits&1 != 0 && f == nil, Counted: bits&2 != 0, ArmedNow: bits&4 != 0,
								}
								checkInvariants(t, s, Decide(s))
								n++
							}
						}
					}
				}
			}
		}
	}
	if n < 50_000 {
		t.Errorf("only %d combinations", n)
	}
}

func checkInvariants(t *testing.T, s State, a Action) {
	t.Helper()
	fail := func(why string) { t.Helper(); t.Errorf("%+v\n-> %+v: %s", s, a, why) }
	switch a.Kind {
	case Confirm:
		if a.Slot != s.Booted || !s.Soaked || !s.Counted || s.Verdict == nil || !s.Verdict.Accepted {
			fail("confirmed without health, count and accepted attestation of the booted slot")
		}
	case Condemn:
		if a.Slot != s.Booted || s.other().State != fleet.SlotGood {
			fail("condemned with no good slot to go to")
		}
	case Install, Arm, Flip:
		if a.Slot == s.Booted || s.booted().State != fleet.SlotGood {
			fail("wrote or armed a slot while the booted one is not confirmed")
		}
		if a.Generation <= s.Acted || a.Image != s.Desired.Image {
			fail("acted on a stale wish")
		}
	case Cancel, Reboot:
		if a.Slot == s.Booted {
			fail("concerns the booted slot")
		}
	}
}
