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
func Parse(b []byte) (*Log, error) {
	if len(b) == 0 {
		return nil, ErrEmpty
	}
	if len(b) > MaxSize {
		return nil, fmt.Errorf("event log of %d bytes is larger than the %d that are accepted", len(b), MaxSize)
	}
	p := &parser{rest: b, log: &Log{Algorithms: []Algorithm{{ID: 0x0004, Size: 20}}}}
	size := len(b)
	for len(p.rest) > 0 && !p.padding() {
		at := size - len(p.rest)
		e := Event{Index: len(p.log.Events), Offset: at}
		if err := p.event(&e); err != nil {
			return nil, &MalformedError{Event: e.Index, Offset: at, Reason: err.Error(), Prefix: p.log}
		}
		p.log.Events = append(p.log.Events, e)
	}
	return p.log, nil
}

// parser reads a log from front to back.
type parser struct {
	rest     []byte
	log      *Log
	locality bool // a StartupLocality event was seen
	pcr0     bool // an event that extends PCR 0 was seen
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
		e.Digests = []Digest{{ID: 0x0004, Value: d}}
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
		if slices.ContainsFunc(e.Digests, func(d Digest) bool { return d.ID == id }) {
			return fmt.Errorf("two digests of algorithm %#04x", id)
		}
		v, err := p.take(p.log.Algorithms[i].Size, "digest")
		if err != nil {
			return err
		}
		e.Digests = append(e.Digests, Digest{ID: id, Value: v})
	}
	return nil
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
	return nil
}
