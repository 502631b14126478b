package top

import (
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

// Status is what is the matter with a node, by what needs a person most.
type Status int

// The statuses, the worst first. The web console has the same.
const (
	Refused Status = iota
	Failing
	Quarantined
	Silent
	Pending
	Moving
	Trying
	Installer
	Unproven
	Cordoned
	Well
	statuses
)

// look is how a status is shown: words, a sign that differs without colour,
// and the colour (SGR, ECMA-48 section 8.3.117).
var looks = [statuses]struct{ text, sign, colour string }{
	Refused:     {"attestation refused", "✗", "31;1"},
	Failing:     {"failing a check", "✗", "31;1"},
	Quarantined: {"quarantined", "✗", "31;1"},
	Silent:      {"silent", "?", "33"},
	Pending:     {"waits for approval", "+", "35"},
	Moving:      {"on the move", "»", "36"},
	Trying:      {"trial boot", "»", "36"},
	Installer:   {"in the installer", "»", "36"},
	Unproven:    {"not proven", "·", "2"},
	Cordoned:    {"cordoned", "‖", "2"},
	Well:        {"well", "✓", "32"},
}

// String says the status in words.
func (s Status) String() string { return looks[s].text }

// StatusOf returns the status of a row of the fleet.
func StatusOf(r api.FleetRow) Status {
	switch {
	case r.State == fleet.NodePending:
		return Pending
	case r.State == fleet.NodeQuarantined:
		return Quarantined
	case r.Silent != nil:
		return Silent
	case r.Attest == api.AttestRefused:
		return Refused
	case r.Health == api.HealthFailing:
		return Failing
	case r.Wanted != "":
		return Moving
	case r.SlotState == fleet.SlotTrying:
		return Trying
	case r.Stage != "" && r.Stage != fleet.StageSystem:
		return Installer
	case r.State == fleet.NodeCordoned:
		return Cordoned
	case r.Health == api.HealthGood && r.Attest == api.AttestAccepted:
		return Well
	}
	return Unproven
}

// detail says more about a status than its words do; "" if there is no more.
func detail(r api.FleetRow, s Status, now time.Time) string {
	switch s {
	case Silent:
		return "for " + now.Sub(*r.Silent).Round(time.Second).String()
	case Failing:
		return r.Check
	case Quarantined, Pending, Cordoned:
		return r.Reason
	case Moving, Installer, Trying:
		return strings.TrimPrefix(r.Activity, "idle")
	case Unproven:
		switch {
		case r.Attest == api.AttestOld:
			return "not attested since boot"
		case r.Attest == "" && r.Stage == "":
			return "never seen"
		case r.Attest == "":
			return "not attested"
		}
		return r.Check
	}
	return ""
}
