// Package timeline tells a node's history as people see it: in episodes from
// a request or a boot to an outcome, each with its phases. It is pure.
package timeline

import (
	"slices"
	"strconv"
	"strings"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

// phase is where in an episode an event belongs. They follow each other, but
// for notes; attest and health may come in either order.
type phase int

const (
	aside phase = iota
	net
	enrolment
	install
	restart
	boot
	attest
	health
	outcome
)

var phaseNames = [...]string{"note", "net", "enrol", "install", "restart", "boot", "attest", "health", "outcome"}

// asks are the events with which something new begins, and what that is.
var asks = map[string]string{
	"node.wanted": "Installation", "slot.flip": "Slot flip", "node.reimage": "Reinstallation", "rollout.node-started": "Rollout",
	"rollout.node-returning": "Flip back",
}

// phaseOf sorts an event kind; failed says that it ends its phase badly.
func phaseOf(kind string) (p phase, failed bool) {
	switch kind {
	case "slot.confirmed", "node.slot-good":
		return outcome, false
	case "slot.condemned", "slot.cancelled", "image.banned", "node.slot-bad":
		return outcome, true
	case "node.trial-failing":
		return health, true
	case "slot.armed", "node.rebooting":
		return restart, false
	case "node.booted":
		return boot, false
	case "node.enrolled", "node.discovered", "node.foreign-tpm", "node.approve":
		return enrolment, kind == "node.foreign-tpm"
	}
	word, rest, _ := strings.Cut(kind, ".")
	switch word {
	case "dhcp", "tftp", "http":
		return net, rest == "failed" || rest == "refused" || rest == "unanswered"
	case "install":
		return install, rest == "failed" || rest == "refused"
	case "attest":
		return attest, rest == "refused"
	case "health":
		return health, rest == "failed"
	}
	return aside, false
}

// teller makes episodes of events.
type teller struct {
	eps       []api.Episode
	reached   phase
	booted    bool // this episode has seen its boot
	installer bool // the machine is in the installer: it attests to be let in
}

// Episodes sorts the events of one node, by rising ID, into episodes, oldest
// first.
func Episodes(ev []fleet.Event) []api.Episode {
	t := &teller{}
	for _, e := range ev {
		t.tell(e)
	}
	for i := range t.eps {
		t.eps[i].Outcome = conclude(&t.eps[i], i == len(t.eps)-1)
	}
	return t.eps
}

func (t *teller) tell(e fleet.Event) {
	p, failed := phaseOf(e.Kind)
	switch {
	case e.Kind == "node.booted" && !strings.HasPrefix(e.Message, "slot "):
		p, t.installer = enrolment, true
	case p == enrolment || p == install && strings.Contains(e.Message, "/dev/"):
		t.installer = true
	case p == attest && t.installer && t.reached < restart:
		p = enrolment
	case p == boot:
		t.installer = false
	}
	title := asks[e.Kind]
	if t.isNew(e.Kind, p, title) {
		t.eps = append(t.eps, api.Episode{Title: beginning(p), Started: e.At})
		t.reached, t.booted, t.installer = aside, false, p == enrolment
	} else if t.isAside(e.Kind, p) {
		p, failed = aside, false
	}
	ep := &t.eps[len(t.eps)-1]
	switch {
	case title != "" && (ep.Title == "Network boot" || len(ep.Steps) == 0):
		ep.Title = title
	case p == boot && ep.Title == "Attestation":
		ep.Title = "Boot"
	}
	t.reached, t.booted = max(t.reached, p), t.booted || p == boot
	ep.Ended = e.At
	addTo(ep, e, p, failed)
}

// isNew says whether an event begins another episode.
func (t *teller) isNew(kind string, p phase, ask string) bool {
	switch {
	case len(t.eps) == 0:
		return true
	case ask != "":
		return t.reached >= boot
	case p == aside || kind == "dhcp.ack": // leases are renewed at any time
		return false
	case p == net || p == enrolment:
		return t.reached > enrolment
	case p == install:
		return t.reached >= restart
	case p == boot:
		return t.booted || t.reached == outcome
	case p == attest:
		return t.reached == outcome
	}
	return false
}

// isAside says whether an event belongs to no phase here: it is late, from
// the boot before, or what follows an outcome.
func (t *teller) isAside(kind string, p phase) bool {
	switch p {
	case net:
		return kind == "dhcp.ack" && t.reached > enrolment
	case restart:
		return t.reached == outcome
	case health:
		return t.reached < boot || t.reached == outcome
	}
	return false
}

func beginning(p phase) string {
	switch p {
	case net, enrolment:
		return "Network boot"
	case install:
		return "Installation"
	case attest:
		return "Attestation"
	}
	return "Boot"
}

// addTo puts an event into its step. Notes make no phase of their own.
func addTo(ep *api.Episode, e fleet.Event, p phase, failed bool) {
	i := slices.IndexFunc(ep.Steps, func(s api.Step) bool { return s.Phase == phaseNames[p] })
	if i < 0 {
		for j := range ep.Steps { // whatever came before is over
			if p != aside && ep.Steps[j].State == "active" {
				ep.Steps[j].State = "done"
			}
		}
		ep.Steps = append(ep.Steps, api.Step{Phase: phaseNames[p], State: "active", Started: e.At})
		i = len(ep.Steps) - 1
	}
	s := &ep.Steps[i]
	s.Ended, s.Events = e.At, append(s.Events, e)
	if s.Detail == "" || e.Kind != "node.slot-good" && e.Kind != "image.banned" && e.Kind != "node.slot-bad" {
		s.Detail = e.Message
	}
	switch {
	case failed:
		s.State = "failed"
	case e.Kind == "health.passed" || e.Kind == "attest.accepted" || p == outcome || p == aside, p == boot && strings.Contains(e.Message, "(good)"):
		if s.State != "failed" || p == health || p == attest {
			s.State = "done"
		}
	}
	percent, _, _ := strings.Cut(e.Message, " %")
	if n, err := strconv.Atoi(percent); err == nil && p == install {
		s.Percent = n
	}
}

// conclude says how an episode ended.
func conclude(ep *api.Episode, isLast bool) string {
	out := ""
	for i := range ep.Steps {
		s := &ep.Steps[i]
		if s.State == "active" && !isLast {
			s.State = "done"
		}
		switch {
		case s.Phase == "outcome" && s.State == "failed":
			return "fell back"
		case s.Phase == "outcome":
			out = "confirmed"
		case s.Phase == "boot" && strings.Contains(s.Detail, "(good)") && out == "":
			out = "running"
		case s.State == "failed" && out != "confirmed":
			out = "failed"
		}
	}
	return out
}
