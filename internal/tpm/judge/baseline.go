package judge

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"strings"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/tpm/eventlog"
	"github.com/turnout-project/turnout/internal/tpm/measure"
)

// BaselinePCRs are those whose values depend on the board, its firmware and
// its Secure Boot keys, and on nothing else.
var BaselinePCRs = []int{0, 2, 3, 7}

// KindBaseline is a firmware that is not as approved. KindSameBoot is a value
// that changed although the machine was not booted anew.
const (
	KindBaseline = "baseline"
	KindSameBoot = "same-boot"
)

// Firmware is what a machine's firmware is held against.
type Firmware struct {
	Model    fleet.Model
	Approved []*fleet.Baseline // of the model, in the judged bank; any of them will do
	Enforce  bool              // false: a difference is told, and the verdict stands
}

// judgeFirmware compares the firmware's PCRs with the approved sets, and
// tells the differences to the nearest one.
func (c *court) judgeFirmware() {
	fw := c.in.Firmware
	if fw == nil || len(fw.Approved) == 0 && !fw.Enforce {
		return
	}
	if len(fw.Approved) == 0 {
		c.find(KindBaseline, -1, "firmware baseline", fmt.Sprintf("no firmware of this model (%s) was approved; `pxeserver baseline list` shows what was seen", fw.Model))
		return
	}
	var nearest []fleet.Finding
	for i, b := range fw.Approved {
		differs := c.differences(b)
		if len(differs) == 0 {
			return
		}
		if i == 0 || len(differs) < len(nearest) {
			nearest = differs
		}
	}
	c.verdict.Findings = append(c.verdict.Findings, nearest...)
}

// differences names, for each PCR that is not as in b, the first event that
// differs.
func (c *court) differences(b *fleet.Baseline) []fleet.Finding {
	var out []fleet.Finding
	for _, p := range BaselinePCRs {
		seen := hexOf(c.in.PCRs[p])
		if b.PCRs[p] == seen {
			continue
		}
		f := fleet.Finding{
			Kind: KindBaseline, PCR: p, Event: -1, What: "firmware", Expected: b.PCRs[p], Seen: seen,
			Detail: fmt.Sprintf("the firmware measures something else than was approved for %s (baseline %s)", c.in.Firmware.Model, b.ID),
		}
		if c.proven[p] {
			c.nameEvent(&f, b.Events[p])
		}
		out = append(out, f)
	}
	return out
}

// nameEvent points a finding to the first event of its PCR that is not the
// one that was approved.
func (c *court) nameEvent(f *fleet.Finding, approved []string) {
	if len(approved) == 0 {
		return
	}
	for _, e := range c.eventsOf(f.PCR) {
		d := hexOf(e.Digest(c.in.Bank))
		if len(approved) == 0 || approved[0] != d {
			f.Event, f.What, f.Expected, f.Seen = e.Index, e.String(), "", d
			if len(approved) > 0 {
				f.Expected = approved[0]
			}
			return
		}
		approved = approved[1:]
	}
	f.Detail += fmt.Sprintf("; %d events that were approved are missing at the end", len(approved))
}

// blocking reports whether a finding stands against acceptance.
func (c *court) blocking(f fleet.Finding) bool {
	return f.Kind != KindBaseline || c.in.Firmware == nil || c.in.Firmware.Enforce
}

// warning sums the findings up that do not stand against acceptance.
func warning(fs []fleet.Finding) string {
	if len(fs) == 0 {
		return ""
	}
	var pcrs []string
	for _, f := range fs {
		pcrs = append(pcrs, fmt.Sprint(f.PCR))
	}
	return fmt.Sprintf("; warning: the firmware (PCR %s) is not as approved: %s", strings.Join(pcrs, ", "), fs[0].Detail)
}

// Learn returns what the firmware of an accepted machine measured, as a
// baseline that nobody has approved yet. State and times are the caller's.
func Learn(model fleet.Model, bank string, pcrs map[int]string, rawLog []byte) (*fleet.Baseline, error) {
	log, err := eventlog.ParseBank(rawLog, bank)
	if err != nil {
		return nil, err
	}
	b := &fleet.Baseline{Model: model, Bank: bank, PCRs: map[int]string{}, Events: map[int][]string{}, State: fleet.BaselineLearned}
	for _, p := range BaselinePCRs {
		b.PCRs[p] = pcrs[p]
		for _, e := range log.Events {
			if e.PCR == p && e.Extends() {
				b.Events[p] = append(b.Events[p], hexOf(e.Digest(bank)))
			}
		}
	}
	b.ID = BaselineID(model, bank, pcrs)
	return b, nil
}

// BaselineID names a set of firmware values of a model by a hash of it.
func BaselineID(model fleet.Model, bank string, pcrs map[int]string) string {
	values := make([]string, len(BaselinePCRs))
	for i, p := range BaselinePCRs {
		values[i] = pcrs[p]
	}
	doc, _ := json.Marshal([]any{model, bank, values}) // strings only: cannot fail
	sum := sha256.Sum256(doc)
	return hex.EncodeToString(sum[:6])
}

// SameBoot compares two quotes of one boot: every value must be the same, but
// that PCR 11 may have gone on to a later phase. It returns a finding for each
// that is not.
func SameBoot(bank string, before, now map[int][]byte) []fleet.Finding {
	var out []fleet.Finding
	for _, p := range Selection {
		if bytes.Equal(before[p], now[p]) || p == 11 && later(bank, before[p], now[p]) {
			continue
		}
		out = append(out, fleet.Finding{
			Kind: KindSameBoot, PCR: p, Event: -1, What: "TPM quote", Expected: hexOf(before[p]), Seen: hexOf(now[p]),
			Detail: fmt.Sprintf("PCR %d has changed since the last quote, and the machine was not booted anew", p),
		})
	}
	return out
}

// later reports whether now is before, extended by the last words of the
// longest boot phase.
func later(bank string, before, now []byte) bool {
	if len(before) != eventlog.Size(bank) {
		return false
	}
	words := measure.Words(measure.Phases[len(measure.Phases)-1])
	for i := range words {
		if bytes.Equal(extendPhase(bank, before, strings.Join(words[i:], ":")), now) {
			return true
		}
	}
	return false
}
