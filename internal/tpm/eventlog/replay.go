package eventlog

import "strings"

// Replay returns the PCR values that the events of the log lead to in a bank
// ("sha1", "sha256", "sha384", "sha512"): one for each PCR with at least one
// extending event, and PCR 0 if the log tells a start locality. A PCR with an
// event that has no digest in the bank is left out. The result is nil if the
// log or this package lacks the bank. Where pcrs are given only those are
// looked at.
func (l *Log) Replay(bank string, pcrs ...int) map[int][]byte {
	b, ok := bankNamed(bank)
	if !ok || !l.Has(bank) {
		return nil
	}
	wanted := uint32(1<<PCRs - 1)
	if len(pcrs) > 0 {
		wanted = 0
	}
	for _, p := range pcrs {
		wanted |= 1 << p
	}
	size := b.hash.Size()
	all := make([]byte, PCRs*size)
	value := func(pcr int) []byte { return all[pcr*size : (pcr+1)*size : (pcr+1)*size] }
	all[size-1] = l.Locality
	var extended, unknown [PCRs]bool
	extended[0] = l.Locality != 0
	for i := range l.Events {
		e := &l.Events[i]
		if !e.Extends() || wanted>>e.PCR&1 == 0 {
			continue
		}
		extended[e.PCR] = true
		d := e.digest(b.id)
		if d == nil {
			unknown[e.PCR] = true
			continue
		}
		v := value(e.PCR)
		b.extend(v[:0], v, d)
	}
	out := make(map[int][]byte, PCRs)
	for pcr := range PCRs {
		if extended[pcr] && !unknown[pcr] && wanted>>pcr&1 == 1 {
			out[pcr] = value(pcr)
		}
	}
	return out
}

// ReplayPCR returns the value of one PCR after the first upTo events of the
// log, and how many of those extended it. The value is nil if it cannot be
// known, because the bank is missing from the log or from an event.
func (l *Log) ReplayPCR(bank string, pcr, upTo int) (value []byte, extended int) {
	b, ok := bankNamed(bank)
	if !ok || !l.Has(bank) {
		return nil, 0
	}
	value = make([]byte, b.hash.Size())
	if pcr == 0 {
		value[len(value)-1] = l.Locality
	}
	for i := range l.Events[:upTo] {
		e := &l.Events[i]
		if e.PCR != pcr || !e.Extends() {
			continue
		}
		extended++
		d := e.digest(b.id)
		if d == nil {
			return nil, extended
		}
		b.extend(value[:0], value, d)
	}
	return value, extended
}

// Extend returns the value of a PCR after it was extended with a digest. It
// panics on a bank that Replay does not know.
func Extend(bank string, value, digest []byte) []byte {
	b, ok := bankNamed(bank)
	if !ok {
		panic("eventlog: no bank " + bank)
	}
	return b.extend(nil, value, digest)
}

// Hash returns the digest of data in a bank. It panics on a bank that Replay
// does not know.
func Hash(bank string, data []byte) []byte {
	b, ok := bankNamed(bank)
	if !ok {
		panic("eventlog: no bank " + bank)
	}
	return b.sum(nil, data)
}

// Size returns the number of bytes of a digest in a bank, 0 for one that
// Replay does not know.
func Size(bank string) int {
	b, ok := bankNamed(bank)
	if !ok {
		return 0
	}
	return b.hash.Size()
}

// Extends reports whether the event changed its PCR.
func (e *Event) Extends() bool { return e.Type != NoAction && e.PCR < PCRs }

// String names the event for people: type and Describe.
func (e Event) String() string {
	if d := e.Describe(); d != "" {
		return strings.TrimSpace(e.Type.String() + " " + d)
	}
	return e.Type.String()
}
