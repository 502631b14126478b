package node

import (
	"fmt"
	"slices"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
)

// State is everything a decision rests on. It holds facts of this boot only:
// a verdict or a failed check of an earlier boot is not in it.
type State struct {
	Booted  fleet.Slot          // NoSlot: nothing is decided
	Slots   [2]fleet.SlotReport // A, B; Image may be a short digest where the full one is not known
	Problem string              // why the slots must not be touched (evidence disagrees), "" when they may
	Counted bool                // the loader counted this boot, so a confirm can mean something
	// ArmedNow is true when this boot's agent armed the other slot.
	ArmedNow bool
	Desired  fleet.Desired  // newest from the server; zero when it was not heard in this boot
	Acted    uint64         // highest desired generation acted on
	Soaked   bool           // local health passed for the whole soak
	Failing  *Failure       // a required software check that does not pass now
	Verdict  *fleet.Verdict // of this boot; nil while the server has not judged
	Grace    time.Duration  // how long a trial may be unhealthy
	// Offline is for how long this boot has gone on without ever reaching a
	// server; 0 once it has. ConfirmOffline is the image's word that a healthy
	// trial may then be confirmed unattested.
	Offline        time.Duration
	ConfirmOffline bool
}

// offlinePatience is how long a server is waited for before its absence is
// taken for one.
const offlinePatience = 2 * time.Minute

// Failure is a check that fails, and for how long the node is not healthy.
type Failure struct {
	Check fleet.CheckResult
	For   time.Duration
}

// Kind says what to do.
type Kind string

// The kinds of Action.
const (
	Wait    Kind = "wait"    // nothing to do; Reason says what is waited for
	Ack     Kind = "ack"     // the wish is met already: remember its generation
	Confirm Kind = "confirm" // make the booted trial slot good
	Condemn Kind = "condemn" // make the booted slot bad, report, reset
	Install Kind = "install" // write Image into the other slot, arm it, reboot
	Arm     Kind = "arm"     // the other slot holds Image unarmed: arm it, reboot
	Flip    Kind = "flip"    // the other slot holds Image confirmed: arm it, reboot
	Cancel  Kind = "cancel"  // take back an arming that no longer counts
	Reboot  Kind = "reboot"  // the other slot is armed and this boot armed it
)

// Action is one decision. Slot is the slot it concerns.
type Action struct {
	Kind       Kind
	Slot       fleet.Slot
	Image      string // Install, Arm, Flip
	Generation uint64 // Ack, Install, Arm, Flip: of the wish; Confirm, Condemn: of the slot
	Tries      int    // Install, Arm, Flip
	Retry      bool   // Install, Arm, Flip: an operator's word, a ban of the image here is lifted
	Reason     string
}

// Decide is the whole of what a node decides alone. It is pure: the same
// state gives the same action, and doing it twice is harmless because every
// action changes the state that led to it.
//
// A silent server is a zero Desired and a nil Verdict: neither demotes
// anything, nor confirms anything.
func Decide(s State) Action {
	if s.Booted == fleet.NoSlot {
		return Action{Kind: Wait, Reason: "no slot is booted"}
	}
	if s.Problem != "" {
		return Action{Kind: Wait, Slot: s.Booted, Reason: s.Problem}
	}
	if a, ok := decideVerdict(s); ok {
		return a
	}
	switch s.booted().State {
	case fleet.SlotTrying, fleet.SlotArmed: // armed: started over the network, which counts nothing
		return decideTrial(s)
	case fleet.SlotGood:
		return decideGood(s)
	}
	return Action{Kind: Wait, Slot: s.Booted, Reason: fmt.Sprintf("booted slot %s is %s: nothing is confirmed or written from here", s.Booted, s.booted().State)}
}

func (s State) booted() fleet.SlotReport { return s.Slots[s.Booted.Index()] }
func (s State) other() fleet.SlotReport  { return s.Slots[s.Booted.Other().Index()] }

// decideVerdict answers a refused attestation that blames the image.
func decideVerdict(s State) (Action, bool) {
	why, refused := refusedImage(s.Verdict)
	if !refused {
		return Action{}, false
	}
	return s.condemn("attestation refused: " + why), true
}

// condemn gives the booted slot up if there is a good one to go to.
func (s State) condemn(reason string) Action {
	if s.other().State != fleet.SlotGood {
		return Action{Kind: Wait, Slot: s.Booted, Reason: reason + "; the other slot is " + string(s.other().State) + ", so this one stays"}
	}
	return Action{Kind: Condemn, Slot: s.Booted, Generation: s.booted().Generation, Reason: reason}
}

// imagePCRs are those whose contents come from the image: boot applications,
// sections of the UKI, and what must never be extended beside them. A fault
// in any other PCR is the firmware's and goes along to the other slot.
var imagePCRs = []int{4, 11, 12, 13}

// refusedImage reports whether v refuses the booted image itself, and why. A
// verdict about the conversation (an old nonce, a missing log) is not one:
// the node attests again.
func refusedImage(v *fleet.Verdict) (string, bool) {
	if v == nil || v.Accepted {
		return "", false
	}
	for _, f := range v.Findings {
		if slices.Contains(imagePCRs, f.PCR) {
			if v.Summary != "" {
				return v.Summary, true
			}
			return f.Detail, true
		}
	}
	return "", false
}

// unknownFactor is how much longer a check may give no answer than it may
// fail: a unit still starts, a tool waits for its driver.
const unknownFactor = 4

func decideTrial(s State) Action {
	if f := s.Failing; f != nil {
		limit := s.Grace
		if f.Check.Status == fleet.CheckUnknown {
			limit *= unknownFactor
		}
		if f.For >= limit {
			return s.condemn(fmt.Sprintf("health check %q %s: %s", f.Check.Name, f.Check.Status, f.Check.Detail))
		}
	}
	if d := s.Desired; d.Generation > max(s.Acted, s.booted().Generation) && s.other().State == fleet.SlotGood && holds(s.other(), d.Image) {
		a := s.condemn("withdrawn by the server before it was confirmed: " + d.Reason)
		return a
	}
	switch {
	case !s.Counted:
		return Action{Kind: Wait, Slot: s.Booted, Reason: "the loader did not count this boot, so it is not confirmed"}
	case !s.Soaked:
		return Action{Kind: Wait, Slot: s.Booted, Reason: "health checks have not passed for the whole soak"}
	case s.Verdict == nil && s.ConfirmOffline && s.Offline >= offlinePatience:
		return Action{Kind: Confirm, Slot: s.Booted, Generation: s.booted().Generation, Reason: "healthy; no server was reached, and the image allows to confirm without one"}
	case s.Verdict == nil || !s.Verdict.Accepted:
		return Action{Kind: Wait, Slot: s.Booted, Reason: "waiting for an accepted attestation"}
	}
	return Action{Kind: Confirm, Slot: s.Booted, Generation: s.booted().Generation, Reason: "healthy and attested"}
}

// decideGood follows the server's wish. Health failures of a slot that was
// confirmed once are reported and left to the server: they are rarely the
// image's, and flipping a fleet on them would be worse.
func decideGood(s State) Action {
	d, other := s.Desired, s.other()
	if other.State == fleet.SlotArmed {
		return decideArmed(s)
	}
	if d.Image == "" || d.Generation <= s.Acted {
		return Action{Kind: Wait, Slot: s.Booted, Reason: "idle"}
	}
	if holds(s.booted(), d.Image) && d.Reinstall {
		return Action{Kind: Wait, Slot: s.Booted, Reason: "to be reinstalled with the image that runs: boot this node from the network"}
	}
	if holds(s.booted(), d.Image) {
		return Action{Kind: Ack, Slot: s.Booted, Generation: d.Generation, Reason: "the booted slot holds the image already"}
	}
	a := Action{Kind: Install, Slot: other.Slot, Image: d.Image, Generation: d.Generation, Tries: d.Tries, Retry: d.Retry, Reason: d.Reason}
	if a.Tries == 0 {
		a.Tries = fleet.DefaultTries
	}
	if holds(other, d.Image) && !d.Reinstall {
		switch other.State {
		case fleet.SlotGood:
			a.Kind = Flip
		case fleet.SlotStaged:
			a.Kind = Arm
		}
	}
	return a
}

// decideArmed deals with an armed other slot: go there, unless the wish has
// changed, or an earlier boot armed it and the loader passed it over.
func decideArmed(s State) Action {
	d, other := s.Desired, s.other()
	switch {
	case d.Generation > s.Acted && !holds(other, d.Image):
		return Action{Kind: Cancel, Slot: other.Slot, Reason: "the server wants another image by now"}
	case !s.ArmedNow:
		return Action{Kind: Cancel, Slot: other.Slot, Reason: "armed, but the loader did not start it"}
	}
	return Action{Kind: Reboot, Slot: other.Slot, Generation: other.Generation, Reason: "slot " + string(other.Slot) + " is armed"}
}

// holds reports whether a slot holds an image; either may be given by its
// short digest.
func holds(r fleet.SlotReport, image string) bool {
	return r.Image != "" && shortOf(r.Image) == shortOf(image)
}

func shortOf(image string) string {
	if s := manifest.Short(image); s != "" {
		return s
	}
	return image
}
