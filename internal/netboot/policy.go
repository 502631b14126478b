package netboot

import (
	"context"
	"io"
	"time"
)

// AnswerKind says what a client gets.
type AnswerKind string

// The answers. AnswerNone and AnswerRefuse both send no boot file; the
// second is told to the operator as a problem.
const (
	AnswerInstaller AnswerKind = "installer" // the installer UKI
	AnswerSlot      AnswerKind = "slot"      // the UKI of the image the node should run, root from its disk
	AnswerNone      AnswerKind = "none"      // leave the client alone
	AnswerRefuse    AnswerKind = "refuse"    // it must not boot from us
)

// Answer is the one decision about a client, valid for DHCP, TFTP and HTTP.
type Answer struct {
	Kind   AnswerKind
	Reason string // one line for people: why this answer
	Node   string // name of the node, "" when not known
	Rack   string // of the node, for its share of what is sent (Limits); "": by relay or subnet

	// File is the name under which the UKI is handed out: a clean relative
	// path of printable ASCII that names the content ("b/3f2a9c01d4e5/
	// installer.efi"), at most 100 bytes, so that it may be cached for ever.
	File string
	Size int64 // in bytes, exact
	// Open returns the content. It may be called many times, concurrently;
	// the caller closes. An *os.File lets the kernel send it.
	Open func() (io.ReadSeekCloser, error)
	// Profile is the shape of DHCP replies for this machine; ProfileAuto (the
	// zero value) unless its firmware needs another. See docs/netboot.md.
	Profile Profile
}

// Serves reports whether the answer carries a file.
func (a Answer) Serves() bool {
	return (a.Kind == AnswerInstaller || a.Kind == AnswerSlot) && a.File != "" && a.Open != nil
}

// Policy decides what a client may boot. Decide is called for each DHCP
// request of a client that could boot, and again for each TFTP and HTTP
// request from its address; it must be quick, free of side effects and safe
// for concurrent use. An error means "cannot tell now": nothing is sent, and
// the client will ask again.
type Policy interface {
	Decide(ctx context.Context, c Client) (Answer, error)
}

// PolicyFunc makes a function a Policy.
type PolicyFunc func(ctx context.Context, c Client) (Answer, error)

// Decide calls f.
func (f PolicyFunc) Decide(ctx context.Context, c Client) (Answer, error) { return f(ctx, c) }

// decide asks p, after refusing what no policy could serve.
func decide(ctx context.Context, p Policy, c Client) (Answer, error) {
	if why := c.CannotBoot(); why != "" && c.Kind.Boots() {
		return Answer{Kind: AnswerRefuse, Reason: why}, nil
	}
	return p.Decide(ctx, c)
}

// pickProfile applies the first rule for c, unless the policy chose already.
func (e *engine) pickProfile(ans *Answer, c Client) {
	if ans.Profile != ProfileAuto {
		return
	}
	for _, rule := range e.cfg.Profiles {
		if rule.matches(c) {
			ans.Profile = rule.Profile
			return
		}
	}
}

// mayAnswer asks the policy about clients that boot. Firmware that is to get
// no file gets no answer at all: an offer without a file would make it wait
// longer.
func (e *engine) mayAnswer(ctx context.Context, r *request) (Answer, bool) {
	if !r.client.Kind.Boots() {
		r.why = "asks for an address only"
		return Answer{Kind: AnswerNone, Reason: r.why}, true
	}
	ans, err := decide(ctx, e.policy, r.client)
	r.why = ans.Reason
	e.pickProfile(&ans, r.client)
	if err != nil {
		r.why = "deciding: " + err.Error()
		e.log.Error("dhcp: deciding", "client", r.client.Name(), "error", err)
		return ans, false
	}
	if ans.Serves() {
		return ans, true
	}
	e.stats.Refused.Add(1)
	if e.watch.once(r.client.Key(), "silent:"+ans.Reason, e.now(), 5*time.Minute) {
		e.log.Info("dhcp: no boot file", "client", r.client.Name(), "kind", r.client.Kind, "answer", ans.Kind, "reason", ans.Reason)
		kind := "dhcp.ignored"
		if ans.Kind == AnswerRefuse {
			kind = "dhcp.refused"
		}
		e.event(kind, r.client, ans.Reason)
	}
	return ans, false
}
