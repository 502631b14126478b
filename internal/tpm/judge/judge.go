// Package judge says whether a machine runs the image it should run, by what
// its TPM signed and its firmware logged. It is pure.
//
// The way of trust, each step resting on the one before:
//
//	quote.Verify    PCR values are what this TPM holds now
//	replay          the digests in the event log are what led to these values
//	PCR 4           the firmware started the image's boot applications, in order, and nothing else
//	PCR 11          systemd-stub found the image's sections, and the boot got to the phase it should be in
//	PCR 12, 13      nothing was added to the UKI: no other command line, no credentials, no extensions
//
// Types and data of events are not signed. Decisions are made from digests
// alone; data only helps to explain.
//
// PCRs 0, 1, 2, 3, 5, 6 and 7 must replay, so that the log is whole and an
// operator can see what is in it. They differ from board to board and from
// one firmware version to the next: 0, 2, 3 and 7 are held against what
// operators approved for the hardware model (see Firmware), 1, 5 and 6 against
// nothing.
package judge

import (
	"fmt"
	"slices"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/tpm/eventlog"
	"github.com/turnout-project/turnout/internal/tpm/measure"
	"github.com/turnout-project/turnout/internal/tpm/quote"
)

// Selection is what a node must quote: the firmware's PCRs, all of which its
// log must explain; 11 for the UKI's sections and the boot phase; 12 and 13,
// which must be empty. PCRs 8 to 10, 14 and 15 are left out: what user space
// measures into them is in no log that the server gets.
var Selection = []int{0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13}

// Kinds of findings, besides those of package quote.
const (
	KindRequest   = "request"       // the manifest or the input cannot be judged by
	KindNoLog     = "no-log"        // there is no event log
	KindTruncated = "truncated-log" // the log ends inside an event, or is damaged
	KindLogBank   = "log-bank"      // the log has no digests of the quoted bank
	KindEmptyBank = "empty-bank"    // the firmware never extended the bank
	KindReplay    = "replay"        // the log does not lead to the quoted value
	KindPCRValue  = "pcr-value"     // the value is not that of the image
	KindPhase     = "phase"         // the boot is not in the phase it should be in
	KindEvent     = "event"         // an event is not as it should be
)

// Input is one piece of evidence and what to judge it by.
type Input struct {
	Manifest *manifest.Manifest
	Digest   string         // of the image, for the verdict
	Path     string         // boot path that the node claims: "disk", "network", "installer"
	Stage    fleet.Stage    // which program attests; says which UKI and boot phase are expected
	Bank     string         // "sha256" or "sha384"
	PCRs     map[int][]byte // values proven by quote.Verify, all of Selection
	Log      []byte         // the firmware's event log

	// AllowApplications maps digests (hex, of Bank) of further programs that
	// the firmware may start to their names: drivers of a vendor, or, under
	// the name measure.AppLoader, the systemd-boot of another image of the
	// fleet, since both slots share one loader.
	AllowApplications map[string]string

	// Firmware says what PCRs 0, 2, 3 and 7 may be. Nil: anything.
	Firmware *Firmware
}

// Judge gives the verdict. At and BootID are the caller's to fill in.
func Judge(in Input) fleet.Verdict {
	c := &court{in: in, verdict: fleet.Verdict{Image: in.Digest, Bank: in.Bank}}
	if c.admissible() {
		c.replayAll()
		c.judgePCR4()
		c.judgePCR7()
		c.judgePCR11()
		c.judgeZero()
		c.judgeFirmware()
	}
	return c.close()
}

// Refused is the verdict on a quote that quote.Verify refused.
func Refused(digest, bank string, err error) fleet.Verdict {
	v := fleet.Verdict{Image: digest, Bank: bank, Summary: err.Error()}
	if q := quote.AsError(err); q != nil {
		v.Findings = []fleet.Finding{q.Finding()}
	} else {
		v.Findings = []fleet.Finding{{Kind: KindRequest, PCR: -1, Event: -1, What: "attestation", Detail: err.Error()}}
	}
	return v
}

// court collects the findings of one judgement.
type court struct {
	in       Input
	log      *eventlog.Log
	replayed map[int][]byte // what the log leads to
	proven   map[int]bool   // PCRs whose events the quote proves
	verdict  fleet.Verdict
}

// find adds a finding that concerns a PCR (or -1) and no single event.
func (c *court) find(kind string, pcr int, what, detail string) *fleet.Finding {
	c.verdict.Findings = append(c.verdict.Findings, fleet.Finding{Kind: kind, PCR: pcr, Event: -1, What: what, Detail: detail})
	return &c.verdict.Findings[len(c.verdict.Findings)-1]
}

// admissible checks that there is something to judge, and reads the log.
func (c *court) admissible() bool {
	in := c.in
	if in.Manifest == nil || !slices.Contains(measure.Banks, in.Bank) {
		c.find(KindRequest, -1, "request", fmt.Sprintf("cannot judge bank %q: want one of %v, and a manifest", in.Bank, measure.Banks))
		return false
	}
	for _, p := range Selection {
		if len(in.PCRs[p]) != eventlog.Size(in.Bank) {
			c.find(string(quote.KindSelection), p, "TPM quote", fmt.Sprintf("no proven value of PCR %d: it must be quoted", p))
		}
	}
	if len(c.verdict.Findings) > 0 || !c.extended() {
		return false
	}
	return c.readLog()
}

// extended refuses a bank that the firmware does not use. What is in such a
// bank anybody could have written after the boot.
func (c *court) extended() bool {
	for _, p := range []int{0, 4, 7, 11} {
		if uniform(c.in.PCRs[p]) {
			c.find(KindEmptyBank, p, "PCR bank", fmt.Sprintf("PCR %d of bank %s was never extended: the firmware does not measure into it, or the UKI was not started by firmware", p, c.in.Bank))
		}
	}
	return len(c.verdict.Findings) == 0
}

// uniform reports whether all bytes are 0x00 or all are 0xFF.
func uniform(b []byte) bool {
	for _, x := range b {
		if x != b[0] {
			return false
		}
	}
	return len(b) == 0 || b[0] == 0 || b[0] == 0xff
}

// close decides, and writes the summary.
func (c *court) close() fleet.Verdict {
	v := c.verdict
	v.Accepted = !slices.ContainsFunc(v.Findings, c.blocking) && v.Path != "" && c.log != nil
	if v.Accepted {
		v.Summary = fmt.Sprintf("runs %s by boot path %s; PCR 4 and PCR 11 are as built%s", c.in.Manifest.Label(), v.Path, warning(v.Findings))
		return v
	}
	if len(v.Findings) == 0 { // cannot happen, and must not pass if it does
		c.find(KindRequest, -1, "request", "nothing was judged")
		v = c.verdict
	}
	v.Summary = summary(v.Bank, v.Findings)
	return v
}

// summary makes one sentence of the findings: the first that names an event,
// else the first.
func summary(bank string, fs []fleet.Finding) string {
	i := max(slices.IndexFunc(fs, func(f fleet.Finding) bool { return f.Event >= 0 }), 0)
	f := fs[i]
	s := f.Detail
	switch {
	case f.Event >= 0:
		s = fmt.Sprintf("%s PCR %d event %d (%s): expected %s, seen %s: %s", bank, f.PCR, f.Event, f.What, short(f.Expected), short(f.Seen), f.Detail)
	case f.PCR >= 0 && f.Expected != "":
		s = fmt.Sprintf("%s PCR %d (%s): expected %s, seen %s: %s", bank, f.PCR, f.What, short(f.Expected), short(f.Seen), f.Detail)
	}
	for _, o := range fs {
		if o.Kind == KindEvent && o.PCR == 11 && f.PCR != 11 {
			s += "; " + o.Detail
			break
		}
	}
	return s
}

// short cuts a digest to its first 12 digits.
func short(hex string) string {
	if hex == "" {
		return "nothing"
	}
	if len(hex) > 12 {
		return hex[:12] + "…"
	}
	return hex
}
