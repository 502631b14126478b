package node

import (
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

// The agent attests at the server's pace, names its log rather than send it,
// sends it when asked, and replaces its certificate in time.
func TestAgentAttestsAgain(t *testing.T) {
	r := newRig(t, fleet.SlotA, goodA, goodB)
	r.server.every, r.server.renew = 1, 1
	r.healthy()
	r.run()
	attests := func() (out []api.AttestRequest) {
		r.server.with(func() { out = append(out, r.server.attests...) })
		return out
	}
	r.until("a second attestation", func() bool { return len(attests()) >= 2 })
	got := attests()
	if string(got[0].EventLog) != "log" || got[0].LogHash != "" || got[0].Model == nil || got[0].Model.Vendor != "QEMU" {
		t.Errorf("first evidence = %+v; want the log and the model", got[0])
	}
	if len(got[1].EventLog) != 0 || got[1].LogHash != api.LogHash([]byte("log")) {
		t.Errorf("second evidence = %+v; want the hash of the log", got[1])
	}
	r.server.with(func() { r.server.wantLog = true })
	r.until("the log on demand", func() bool { return len(attests()[2:]) > 0 && len(attests()[len(attests())-1].EventLog) > 0 })
	r.until("another certificate", func() (ok bool) {
		r.server.with(func() { ok = r.server.enrols >= 2 })
		return ok
	})
	if n := strings.Count(r.logged(), "attestation accepted"); n != 1 {
		t.Errorf("%d lines about attestation; want one", n)
	}
}

// Asked by an operator the agent attests at once, with the whole log, though
// its pace is one attestation a boot.
func TestAgentAttestsOnDemand(t *testing.T) {
	r := newRig(t, fleet.SlotA, goodA, "")
	r.run()
	attests := func() (out []api.AttestRequest) {
		r.server.with(func() { out = append(out, r.server.attests...) })
		return out
	}
	r.until("the attestation of the boot", func() bool { return len(attests()) == 1 })
	r.server.with(func() { r.server.ask = &fleet.Ask{ID: 1, Act: fleet.AskAttest} })
	r.until("another one", func() bool { return len(attests()) == 2 })
	if got := attests()[1]; len(got.EventLog) == 0 {
		t.Errorf("asked for: %+v; want the whole log", got)
	}
	at := 0
	r.server.with(func() { at = len(r.server.reports) })
	r.until("two more heartbeats", func() bool {
		n := 0
		r.server.with(func() { n = len(r.server.reports) })
		return n > at+2
	})
	if n := len(attests()); n != 2 {
		t.Errorf("%d attestations; want that each favour is done once", n)
	}
}
