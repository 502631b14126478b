package measure

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/hex"
	"errors"
	"hash"
	"strings"
)

// newHash makes the hash of a bank of Banks. It panics on any other.
func newHash(bank string) hash.Hash {
	switch bank {
	case "sha256":
		return sha256.New()
	case "sha384":
		return sha512.New384()
	}
	panic("measure: no bank " + bank)
}

// PCR is the value of one PCR in one bank while events are extended.
type PCR struct {
	bank  string
	value []byte
}

// NewPCR returns a PCR of all zero bytes. It panics on a bank that is not in
// Banks.
func NewPCR(bank string) *PCR { return &PCR{bank: bank, value: make([]byte, newHash(bank).Size())} }

// Extend extends the PCR with a digest.
func (p *PCR) Extend(digest []byte) {
	h := newHash(p.bank)
	h.Write(p.value)
	h.Write(digest)
	p.value = h.Sum(nil)
}

// Measure extends the PCR with the digest of data.
func (p *PCR) Measure(data []byte) {
	h := newHash(p.bank)
	h.Write(data)
	p.Extend(h.Sum(nil))
}

// MeasurePhase measures the words of a boot phase, see Phases.
func (p *PCR) MeasurePhase(phase string) {
	for _, w := range Words(phase) {
		p.Measure([]byte(w))
	}
}

// Words returns the words of a boot phase, in the order they are extended.
func Words(phase string) []string {
	if phase == "" {
		return nil
	}
	return strings.Split(phase, ":")
}

func (p *PCR) extendHex(digest string) error {
	b, err := hex.DecodeString(digest)
	if err != nil || len(b) != len(p.value) {
		return errors.New("digest is not of bank " + p.bank)
	}
	p.Extend(b)
	return nil
}

// Clone returns an independent copy.
func (p *PCR) Clone() *PCR { return &PCR{bank: p.bank, value: append([]byte(nil), p.value...)} }

// Value returns the value; it is not to be changed.
func (p *PCR) Value() []byte { return p.value }

// Hex returns the value in lower-case hex.
func (p *PCR) Hex() string { return hex.EncodeToString(p.value) }
