package quote

import (
	"fmt"
	"strings"
)

const (
	magicTPM    = 0xff544347 // TPM_GENERATED_VALUE
	typeQuote   = 0x8018     // TPM_ST_ATTEST_QUOTE
	maxAttest   = 4096
	maxBitmap   = 8
	maxSelected = 8
)

// attest is a TPMS_ATTEST of type quote (TPM 2.0 Part 2, section 10.12.12).
type attest struct {
	extraData    []byte
	clock        uint64
	resetCount   uint32
	restartCount uint32
	safe         bool
	firmware     uint64
	selections   []selection
	pcrDigest    []byte
}

// selection is one TPMS_PCR_SELECTION that selects at least one PCR.
type selection struct {
	alg  uint16
	pcrs []int // ascending
}

// parseAttest reads a TPMS_ATTEST. Magic and type come first, because the
// rest of something that is not a quote means nothing.
func parseAttest(b []byte) (*attest, error) {
	if len(b) > maxAttest {
		return nil, refuse(KindMalformed, "attestation of %d bytes", len(b))
	}
	r := &reader{b: b}
	magic, typ := r.uint32(), r.uint16()
	if !r.bad && magic != magicTPM {
		return nil, refuse(KindMagic, "the structure starts with %#08x: it was not made by a TPM", magic)
	}
	if !r.bad && typ != typeQuote {
		return nil, refuse(KindType, "attestation of type %#04x is not a quote", typ)
	}
	r.sized() // qualified name of the signer; the signature says it better
	a := &attest{extraData: r.sized(), clock: r.uint64(), resetCount: r.uint32(), restartCount: r.uint32()}
	a.safe = r.uint8() == 1
	a.firmware = r.uint64()
	if err := a.parseSelections(r); err != nil {
		return nil, err
	}
	a.pcrDigest = r.sized()
	if r.bad || len(r.b) != 0 {
		return nil, refuse(KindMalformed, "attestation ends too early or too late")
	}
	return a, nil
}

// parseSelections reads a TPML_PCR_SELECTION. Some TPMs list banks of which
// nothing is selected; these are left out.
func (a *attest) parseSelections(r *reader) error {
	n := r.uint32()
	if n > maxSelected {
		return refuse(KindMalformed, "%d PCR selections", n)
	}
	for range n {
		s := selection{alg: r.uint16(), pcrs: make([]int, 0, 24)}
		size := int(r.uint8())
		if size > maxBitmap {
			return refuse(KindMalformed, "PCR selection of %d bytes", size)
		}
		for i, b := range r.take(size) {
			for bit := range 8 {
				if b>>bit&1 == 1 {
					s.pcrs = append(s.pcrs, i*8+bit)
				}
			}
		}
		if len(s.pcrs) > 0 {
			a.selections = append(a.selections, s)
		}
	}
	return nil
}

// selectionText names the selection for people: "sha256:[0 4 7]".
func (a *attest) selectionText() string {
	var parts []string
	for _, s := range a.selections {
		name := fmt.Sprintf("algorithm %#04x", s.alg)
		for n, b := range banks {
			if b.alg == s.alg {
				name = n
			}
		}
		if s.alg == 0x0004 {
			name = "sha1"
		}
		parts = append(parts, fmt.Sprintf("%s:%v", name, s.pcrs))
	}
	if len(parts) == 0 {
		return "no PCR at all"
	}
	return strings.Join(parts, ", ")
}
