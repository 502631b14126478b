package server

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/tpm/judge"
	"github.com/turnout-project/turnout/internal/tpm/quote"
)

// Judge implements TPM: is the quote this TPM's and an answer to this nonce,
// has its clock gone on, is it the boot it was, and does what it says fit the
// image?
//
// A node that was accepted in this boot may send the hash of its log instead
// of the log. If nothing at all has changed, what it was held against
// included, the last verdict holds.
func (t *Trust) Judge(e Evidence) (fleet.Verdict, *store.Clock) {
	r, image := e.Request, e.Image.Digest
	a, err := quote.Verify(quote.Expect{AK: e.AKPublic, Nonce: r.Nonce, Bank: bank, PCRs: judge.Selection}, r.Quote, r.Signature, r.PCRs)
	if err != nil {
		return judge.Refused(image, bank, err), nil
	}
	same, err := follows(a, e.Before, r.BootID)
	if err != nil {
		return judge.Refused(image, bank, err), nil
	}
	if same {
		if fs := judge.SameBoot(bank, binary(e.Before.PCRs), a.PCRs); len(fs) > 0 {
			return fleet.Verdict{Image: image, Bank: bank, Findings: fs, Summary: fs[0].Detail}, nil
		}
	}
	clock := clockOf(a, r)
	allowed := t.allowed(e.Fleet)
	judgedBy := judgedBy(e, allowed)
	if len(r.EventLog) == 0 && r.LogHash != "" {
		clock.Log, clock.JudgedBy = r.LogHash, judgedBy
		if !same || !unchanged(e, clock) {
			why := "something has changed since the last attestation: send the whole event log"
			return fleet.Verdict{Image: image, Bank: bank, Summary: why, Findings: []fleet.Finding{{
				Kind: judge.KindNoLog, PCR: -1, Event: -1, What: "event log", Detail: why,
			}}}, nil
		}
		return *e.Last, clock
	}
	v := judge.Judge(judge.Input{
		Manifest: e.Image.Manifest, Digest: image, Path: r.Path, Stage: r.Stage,
		Bank: bank, PCRs: a.PCRs, Log: r.EventLog, AllowApplications: allowed, Firmware: e.Firmware,
	})
	if v.Accepted {
		clock.JudgedBy = judgedBy
	}
	return v, clock
}

// follows holds the clock of a quote against that of the newest before, and
// reports whether both are of the same boot and can be compared.
func follows(a quote.Attested, before *store.Clock, bootID string) (same bool, err error) {
	if before == nil {
		return false, nil
	}
	newBoot, err := a.Follows(quote.Attested{ResetCount: before.Reset, RestartCount: before.Restart, Clock: before.Millis})
	if q := quote.AsError(err); q != nil {
		q.Detail += "; if the TPM was cleared in the firmware setup: pxeserver node clear-tpm"
		return false, q
	}
	if newBoot && bootID != "" && bootID == before.BootID {
		return false, &quote.Error{Kind: quote.KindClock, Detail: fmt.Sprintf(
			"the TPM was reset (it counts %d, it had %d) while the machine kept running: its PCRs may have been written anew", a.ResetCount, before.Reset)}
	}
	if !newBoot && before.Firmware != 0 && before.Firmware != a.Firmware {
		return false, &quote.Error{Kind: quote.KindClock, Detail: fmt.Sprintf(
			"the TPM's firmware is %#x; it was %#x before, and the TPM was not reset in between, which an update of it needs", a.Firmware, before.Firmware)}
	}
	return !newBoot && before.Bank == bank, nil
}

// unchanged reports whether the last verdict is still that on this evidence.
func unchanged(e Evidence, now *store.Clock) bool {
	b, v := e.Before, e.Last
	if b.JudgedBy == "" || b.JudgedBy != now.JudgedBy || b.Log != now.Log || b.BootID != now.BootID || b.Firmware != now.Firmware {
		return false
	}
	for p, value := range now.PCRs {
		if b.PCRs[p] != value {
			return false
		}
	}
	return v != nil && v.Accepted && v.Image == e.Image.Digest && v.BootID == now.BootID
}

// judgedBy is a hash of everything that evidence is held against.
func judgedBy(e Evidence, allowed map[string]string) string {
	doc := struct {
		Image, Path string
		Stage       fleet.Stage
		Allowed     map[string]string
		Firmware    *judge.Firmware
	}{e.Image.Digest, e.Request.Path, e.Request.Stage, allowed, e.Firmware}
	b, err := json.Marshal(doc)
	if err != nil {
		return "" // never the same as anything
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}

func clockOf(a quote.Attested, r *api.AttestRequest) *store.Clock {
	c := &store.Clock{
		Reset: a.ResetCount, Restart: a.RestartCount, Millis: a.Clock, BootID: r.BootID, Firmware: a.Firmware,
		Bank: a.Bank, PCRs: map[int]string{}, Log: api.LogHash(r.EventLog),
	}
	for p, v := range a.PCRs {
		c.PCRs[p] = hex.EncodeToString(v)
	}
	return c
}

// binary decodes hexadecimal PCR values; one that is none becomes nil.
func binary(values map[int]string) map[int][]byte {
	out := make(map[int][]byte, len(values))
	for p, v := range values {
		b, err := hex.DecodeString(v)
		if err == nil {
			out[p] = b
		}
	}
	return out
}
