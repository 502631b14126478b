package eventlog

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
)

// Limits of the parser beyond MaxSize.
const (
	maxAlgorithms = 16
	maxDigestSize = 128
)

const (
	specID03        = "Spec ID Event03\x00"
	startupLocality = "StartupLocality\x00"
)

// Parse reads a whole log. The error is ErrEmpty, a *MalformedError, or says
// that the log is larger than MaxSize.
func Parse(b []byte) (*Log, error) { return parse(b, 0) }

// ParseBank is Parse for those who ask for one bank only: the log is checked
// as a whole, but events keep their digest in that bank alone. A bank that
// this package does not know leaves none.
func ParseBank(b []byte, bank string) (*Log, error) {
	k, ok := bankNamed(bank)
	if !ok {
		return parse(b, 0xffff)
	}
	return parse(b, k.id)
}

// parse reads a log, and keeps the digests of one algorithm, or, for 0, all.
func parse(b []byte, keep uint16) (*Log, error) {
	if len(b) == 0 {
		return nil, ErrEmpty
	}
	if len(b) > MaxSize {
		return nil, fmt.Errorf("event log of %d bytes is larger than the %d that are accepted", len(b), MaxSize)
	}
	p := &parser{rest: b, log: &Log{Algorithms: legacyAlgorithms}, keep: keep}
	p.log.Events = make([]Event, 0, expectEvents(b))
	size := len(b)
	for len(p.rest) > 0 && !p.padding() {
		at, i := size-len(p.rest), len(p.log.Events)
		p.log.Events = append(p.log.Events, Event{Index: i, Offset: at})
		if err := p.event(&p.log.Events[i]); err != nil {
			p.log.Events = p.log.Events[:i]
			return nil, &MalformedError{Event: i, Offset: at, Reason: err.Error(), Prefix: p.log}
		}
	}
	return p.log, nil
}

// legacyAlgorithms are those of a log without a header.
var legacyAlgorithms = []Algorithm{{ID: 0x0004, Size: 20}}

// expectEvents guesses how many events a log has, so that the room for them
// is allocated once. Real ones have 300 to 550 bytes each.
func expectEvents(b []byte) int {
	n := len(b)
	for fill := b[n-1]; n > 0 && (fill == 0 || fill == 0xff) && b[n-1] == fill; {
		n--
	}
	return n/360 + 8
}

// parser reads a log from front to back.
type parser struct {
	rest     []byte
	log      *Log
	keep     uint16   // algorithm whose digests are kept, 0 for all
	digest   []Digest // room for those of all events
	locality bool     // a StartupLocality event was seen
	pcr0     bool     // an event that extends PCR 0 was seen
}

// padding reports whether only filling follows: firmware that hands over a
// fixed area fills it with 0x00 or 0xFF. Less than an event header of it is
// not taken for filling, since a log cut there looks the same.
func (p *parser) padding() bool {
	if len(p.log.Events) == 0 || len(p.rest) < 8 {
		return false
	}
	fill := p.rest[0]
	if fill != 0 && fill != 0xff {
		return false
	}
	if len(bytes.Trim(p.rest, string([]byte{fill}))) != 0 {
		return false
	}
	p.log.Padding = len(p.rest)
	return true
}

func (p *parser) take(n int, what string) ([]byte, error) {
	if n > len(p.rest) {
		return nil, fmt.Errorf("%s needs %d bytes, %d are left", what, n, len(p.rest))
	}
	b := p.rest[:n]
	p.rest = p.rest[n:]
	return b, nil
}

func (p *parser) uint32(what string) (uint32, error) {
	b, err := p.take(4, what)
	if err != nil {
		return 0, err
	}
	return binary.LittleEndian.Uint32(b), nil
}

// event reads one record into e.
func (p *parser) event(e *Event) error {
	head, err := p.take(8, "event header")
	if err != nil {
		return err
	}
	pcr := binary.LittleEndian.Uint32(head)
	e.Type = Type(binary.LittleEndian.Uint32(head[4:]))
	e.PCR = int(pcr)
	if p.log.Agile {
		err = p.digests(e)
	} else {
		var d []byte
		d, err = p.take(20, "SHA-1 digest")
		e.Digests = p.kept(0x0004, d, len(p.digest))
	}
	if err != nil {
		return err
	}
	size, err := p.uint32("event size")
	if err != nil {
		return err
	}
	if uint64(size) > uint64(len(p.rest)) {
		return fmt.Errorf("event data of %d bytes, %d are left", size, len(p.rest))
	}
	e.Data, _ = p.take(int(size), "event data")
	return p.meaning(e)
}

// digests reads the TPML_DIGEST_VALUES of a crypto-agile event.
func (p *parser) digests(e *Event) error {
	n, err := p.uint32("digest count")
	if err != nil {
		return err
	}
	if int64(n) > int64(len(p.log.Algorithms)) {
		return fmt.Errorf("%d digests, the header declares %d algorithms", n, len(p.log.Algorithms))
	}
	first, seen := len(p.digest), 0
	for range n {
		b, err := p.take(2, "digest algorithm")
		if err != nil {
			return err
		}
		id := binary.LittleEndian.Uint16(b)
		i := slices.IndexFunc(p.log.Algorithms, func(a Algorithm) bool { return a.ID == id })
		if i < 0 {
			return fmt.Errorf("digest of algorithm %#04x, which the header does not declare", id)
		}
		if seen>>i&1 == 1 {
			return fmt.Errorf("two digests of algorithm %#04x", id)
		}
		seen |= 1 << i
		v, err := p.take(p.log.Algorithms[i].Size, "digest")
		if err != nil {
			return err
		}
		e.Digests = p.kept(id, v, first)
	}
	return nil
}

// kept keeps a digest if its algorithm is wanted, and returns those of the
// event, which begin at first.
func (p *parser) kept(id uint16, value []byte, first int) []Digest {
	if p.keep == 0 || p.keep == id {
		if p.digest == nil {
			p.digest = make([]Digest, 0, cap(p.log.Events))
		}
		p.digest = append(p.digest, Digest{ID: id, Value: value})
	}
	return slices.Clip(p.digest[first:])
}

// meaning handles the events that say something about the log itself.
func (p *parser) meaning(e *Event) error {
	switch {
	case e.Index == 0 && e.Type == NoAction && bytes.HasPrefix(e.Data, []byte(specID03)):
		return p.header(e)
	case e.Type == NoAction && e.PCR == 0 && len(e.Data) == 17 && bytes.HasPrefix(e.Data, []byte(startupLocality)):
		return p.startup(e.Data[16])
	case e.Type == NoAction:
		return nil
	case e.PCR >= PCRs:
		p.log.Warnings = append(p.log.Warnings, fmt.Sprintf("event %d is for PCR %d, which no TPM has", e.Index, e.PCR))
	case e.PCR == 0:
		if e.Type == EFIHCRTMEvent && !p.pcr0 && !p.locality {
			p.log.Locality = 4
		}
		p.pcr0 = true
	}
	return nil
}

// startup records the locality of TPM2_Startup, which must be told once and
// before PCR 0 is extended.
func (p *parser) startup(locality byte) error {
	switch {
	case p.locality:
		return fmt.Errorf("a second StartupLocality event")
	case p.pcr0:
		return fmt.Errorf("StartupLocality after PCR 0 was extended")
	case locality != 0 && locality != 3 && locality != 4:
		return fmt.Errorf("StartupLocality %d, possible are 0, 3 and 4", locality)
	}
	p.locality = true
	p.log.Locality = locality
	return nil
}

// header reads the TCG_EfiSpecIDEvent of a crypto-agile log.
func (p *parser) header(e *Event) error {
	const fixed = 16 + 4 + 4 + 4 // signature, platform class, versions, count
	b := e.Data
	if len(b) < fixed {
		return fmt.Errorf("log header of %d bytes is too short", len(b))
	}
	n := binary.LittleEndian.Uint32(b[fixed-4:])
	b = b[fixed:]
	if n == 0 || n > maxAlgorithms || int(n)*4 > len(b) {
		return fmt.Errorf("log header declares %d algorithms", n)
	}
	var algs []Algorithm
	for range n {
		a := Algorithm{ID: binary.LittleEndian.Uint16(b), Size: int(binary.LittleEndian.Uint16(b[2:]))}
		b = b[4:]
		if slices.ContainsFunc(algs, func(o Algorithm) bool { return o.ID == a.ID }) {
			return fmt.Errorf("log header declares algorithm %#04x twice", a.ID)
		}
		if k, ok := bankNamed(a.Bank()); ok && k.hash.Size() != a.Size {
			return fmt.Errorf("log header says a %s digest has %d bytes", k.name, a.Size)
		}
		if a.Size == 0 || a.Size > maxDigestSize {
			return fmt.Errorf("log header says algorithm %#04x has digests of %d bytes", a.ID, a.Size)
		}
		algs = append(algs, a)
	}
	p.log.Agile, p.log.Algorithms = true, algs
	if p.keep == 0 {
		p.digest = make([]Digest, 0, len(algs)*cap(p.log.Events))
	}
	return nil
}
