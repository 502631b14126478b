// Package quote verifies what a TPM signed about its PCRs (TPM2_Quote). It is
// pure: bytes in, typed answer out.
//
// The order of the checks is that of TPM 2.0 Part 1, section 31 and goes from
// "who speaks" to "what is said": key, signature, magic, type, nonce,
// selection, digest. Nothing of a quote is used before its signature holds.
package quote

import (
	"crypto/ecdsa"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"slices"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/tpm/credential"
)

// Kind says which check a quote failed. The words are those of
// fleet.Finding.Kind.
type Kind string

// The kinds of failure, in the order of the checks.
const (
	KindRequest   Kind = "request"   // Expect is not sensible: a fault of the caller
	KindKey       Kind = "key"       // the attestation key must not be trusted
	KindMalformed Kind = "malformed" // not a TPMS_ATTEST or TPMT_SIGNATURE
	KindSignature Kind = "signature" // not signed by the attestation key
	KindMagic     Kind = "magic"     // signed, but not made by a TPM
	KindType      Kind = "type"      // made by a TPM, but not a quote
	KindNonce     Kind = "nonce"     // old, or an answer to somebody else
	KindSelection Kind = "selection" // not over exactly the PCRs that were asked
	KindPCRValue  Kind = "pcr-value" // the values sent are not those that were signed
	KindClock     Kind = "clock"     // the TPM's clock went back
)

// Error is a quote that was refused.
type Error struct {
	Kind   Kind
	Detail string
}

func (e *Error) Error() string { return "quote refused (" + string(e.Kind) + "): " + e.Detail }

// Finding returns the error as a finding of a verdict.
func (e *Error) Finding() fleet.Finding {
	return fleet.Finding{Kind: string(e.Kind), PCR: -1, Event: -1, What: "TPM quote", Detail: e.Detail}
}

func refuse(k Kind, format string, args ...any) error {
	return &Error{Kind: k, Detail: fmt.Sprintf(format, args...)}
}

// MinNonce is the smallest nonce that Verify accepts, in bytes.
const MinNonce = 16

// Expect is what a quote must be.
type Expect struct {
	AK    []byte // TPM2B_PUBLIC of the enrolled attestation key
	Nonce []byte // as sent to the node, used once; at least MinNonce bytes
	Bank  string // "sha256", "sha384", "sha512"; SHA-1 is refused
	PCRs  []int  // exactly these
}

// Attested is what a verified quote says.
type Attested struct {
	Bank         string
	PCRs         map[int][]byte // proven values, exactly those asked
	Clock        uint64         // milliseconds the TPM was powered
	ResetCount   uint32         // boots; absolute for keys of the endorsement hierarchy
	RestartCount uint32         // resumes since the last boot
	Safe         bool           // Clock was not set back by a power cut; only a hint
	Firmware     uint64         // vendor's version number of the TPM firmware
}

var banks = map[string]struct {
	alg  uint16
	size int
}{
	"sha256": {0x000b, 32},
	"sha384": {0x000c, 48},
	"sha512": {0x000d, 64},
}

// Verify checks a quote (TPMS_ATTEST), its signature (TPMT_SIGNATURE) and the
// PCR values sent with it. The error is an *Error.
func Verify(x Expect, quote, sig []byte, pcrs map[int][]byte) (Attested, error) {
	if err := x.check(); err != nil {
		return Attested{}, err
	}
	ak, err := credential.ParseAK(x.AK)
	if err != nil {
		return Attested{}, refuse(KindKey, "%v", err)
	}
	if err := verifySignature(ak.Public, quote, sig); err != nil {
		return Attested{}, err
	}
	a, err := parseAttest(quote)
	if err != nil {
		return Attested{}, err
	}
	if subtle.ConstantTimeCompare(a.extraData, x.Nonce) != 1 {
		return Attested{}, refuse(KindNonce, "the quote answers another challenge than the one that was sent")
	}
	values, err := x.selected(a, pcrs)
	if err != nil {
		return Attested{}, err
	}
	return Attested{
		Bank: x.Bank, PCRs: values,
		Clock: a.clock, ResetCount: a.resetCount, RestartCount: a.restartCount, Safe: a.safe, Firmware: a.firmware,
	}, nil
}

func (x Expect) check() error {
	if _, ok := banks[x.Bank]; !ok {
		return refuse(KindRequest, "bank %q: want sha256, sha384 or sha512", x.Bank)
	}
	if len(x.Nonce) < MinNonce || len(x.Nonce) > 64 {
		return refuse(KindRequest, "nonce of %d bytes: want %d to 64", len(x.Nonce), MinNonce)
	}
	if len(x.PCRs) == 0 {
		return refuse(KindRequest, "no PCRs were asked for")
	}
	seen := 0
	for _, p := range x.PCRs {
		if p < 0 || p > 23 || seen>>p&1 == 1 {
			return refuse(KindRequest, "PCR %d is not between 0 and 23, or asked for twice", p)
		}
		seen |= 1 << p
	}
	return nil
}

// selected checks that the quote is over exactly what was asked and that the
// values sent are those that were signed, and returns a copy of them.
func (x Expect) selected(a *attest, pcrs map[int][]byte) (map[int][]byte, error) {
	want := x.PCRs
	if !slices.IsSorted(want) {
		want = slices.Sorted(slices.Values(want))
	}
	bank := banks[x.Bank]
	if len(a.selections) != 1 || a.selections[0].alg != bank.alg || !slices.Equal(a.selections[0].pcrs, want) {
		return nil, refuse(KindSelection, "the quote is over %s; asked was %s:%v", a.selectionText(), x.Bank, want)
	}
	h := sha256.New() // of the attestation key's scheme, which ParseAK requires
	values := make(map[int][]byte, len(want))
	for _, p := range want {
		if _, sent := pcrs[p]; !sent || len(pcrs) != len(want) {
			return nil, refuse(KindSelection, "values were sent for PCRs %v; quoted are %v", slices.Sorted(maps.Keys(pcrs)), want)
		}
		if len(pcrs[p]) != bank.size {
			return nil, refuse(KindPCRValue, "value of PCR %d has %d bytes; a %s PCR has %d", p, len(pcrs[p]), x.Bank, bank.size)
		}
		values[p] = slices.Clone(pcrs[p])
		h.Write(pcrs[p])
	}
	if subtle.ConstantTimeCompare(h.Sum(nil), a.pcrDigest) != 1 {
		return nil, refuse(KindPCRValue, "the PCR values sent are not those that the TPM signed")
	}
	return values, nil
}

// verifySignature checks a TPMT_SIGNATURE of ECDSA with SHA-256.
func verifySignature(key *ecdsa.PublicKey, quote, sig []byte) error {
	if len(sig) == 0 {
		return refuse(KindSignature, "there is no signature")
	}
	p := &reader{b: sig}
	alg, hash := p.uint16(), p.uint16()
	r, s := p.sized(), p.sized()
	if p.bad || len(p.b) != 0 {
		return refuse(KindMalformed, "the signature is not an ECDSA TPMT_SIGNATURE")
	}
	if alg != 0x0018 || hash != 0x000b {
		return refuse(KindSignature, "signed with scheme %#04x and hash %#04x; want ECDSA and SHA-256", alg, hash)
	}
	sum := sha256.Sum256(quote)
	if !ecdsa.Verify(key, sum[:], new(big.Int).SetBytes(r), new(big.Int).SetBytes(s)) {
		return refuse(KindSignature, "the signature is not by the enrolled attestation key")
	}
	return nil
}

// Follows compares the clock of a with that of an earlier quote of the same
// TPM, and reports whether the machine was booted anew in between. An error,
// of kind KindClock, means that a is older than prev or not of the same TPM.
func (a Attested) Follows(prev Attested) (newBoot bool, err error) {
	switch {
	case a.ResetCount < prev.ResetCount:
		return false, refuse(KindClock, "the TPM counts %d resets; it had %d before", a.ResetCount, prev.ResetCount)
	case a.ResetCount > prev.ResetCount:
		return true, nil
	case a.RestartCount < prev.RestartCount:
		return false, refuse(KindClock, "the TPM counts %d restarts since its reset; it had %d before", a.RestartCount, prev.RestartCount)
	case a.Clock <= prev.Clock:
		return false, refuse(KindClock, "the TPM's clock reads %d ms; it read %d ms before", a.Clock, prev.Clock)
	}
	return false, nil
}

// AsError returns the *Error in err, or nil.
func AsError(err error) *Error {
	var e *Error
	if errors.As(err, &e) {
		return e
	}
	return nil
}

// reader takes big-endian fields from the front of b. After a short read bad
// is set and everything is zero.
type reader struct {
	b   []byte
	bad bool
}

func (r *reader) take(n int) []byte {
	if r.bad || n > len(r.b) {
		r.bad = true
		return make([]byte, min(n, 8))
	}
	v := r.b[:n]
	r.b = r.b[n:]
	return v
}

func (r *reader) uint8() uint8   { return r.take(1)[0] }
func (r *reader) uint16() uint16 { return binary.BigEndian.Uint16(r.take(2)) }
func (r *reader) uint32() uint32 { return binary.BigEndian.Uint32(r.take(4)) }
func (r *reader) uint64() uint64 { return binary.BigEndian.Uint64(r.take(8)) }
func (r *reader) sized() []byte  { return r.take(int(r.uint16())) }
