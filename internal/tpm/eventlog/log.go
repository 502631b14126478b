// Package eventlog reads the event log that firmware keeps of what it
// measured into the TPM, in both binary forms: crypto-agile and the older
// one with SHA-1 only (TCG PC Client Platform Firmware Profile section 10).
//
// The log is untrusted until it was replayed to PCR values that a TPM
// signed, and even then only the digests are proven: event types, event data
// and Describe's strings are what somebody wrote. The parser is bounded, keeps
// event types and algorithms it does not know, and never takes a log that
// ends inside an event for a whole one.
package eventlog

import (
	"bytes"
	"crypto"
	"crypto/sha1" // the bank exists, whatever it is worth
	"crypto/sha256"
	"crypto/sha512"
	"errors"
	"fmt"
)

// MaxSize is the largest log that Parse accepts, in bytes. Real ones have 15
// to 300 KiB.
const MaxSize = 16 << 20

// PCRs is the number of PCRs of a PC Client TPM.
const PCRs = 24

// ErrEmpty is returned for a log of no bytes: the firmware measured nothing,
// or the kernel did not get its log.
var ErrEmpty = errors.New("the event log is empty")

// MalformedError says where a log stopped making sense.
type MalformedError struct {
	Event  int    // index of the event that could not be read
	Offset int    // where it starts in the log
	Reason string // what is wrong with it
	Prefix *Log   // the events before it; to explain with, never to accept
}

func (e *MalformedError) Error() string {
	return fmt.Sprintf("event log is damaged or cut at event %d, offset %d: %s", e.Event, e.Offset, e.Reason)
}

// Log is a parsed event log.
type Log struct {
	Agile      bool        // crypto-agile form; false: SHA-1 digests only
	Algorithms []Algorithm // as declared in the header, in its order
	Events     []Event     // with the header itself at index 0 if there is one
	Locality   byte        // from which the TPM was started; PCR 0 started with it as last byte
	Padding    int         // bytes of 0x00 or 0xFF after the last event
	Warnings   []string    // odd but harmless things
}

// Algorithm is a TPM hash algorithm of a log.
type Algorithm struct {
	ID   uint16 // TPM_ALG_ID
	Size int    // bytes of a digest
}

// Event is one record of a log.
type Event struct {
	Index   int // from 0
	Offset  int // in the log
	PCR     int
	Type    Type
	Digests []Digest
	Data    []byte // aliases the log; untrusted
}

// Digest is a digest of an event in one algorithm.
type Digest struct {
	ID    uint16 // TPM_ALG_ID
	Value []byte // aliases the log
}

// bank is a hash algorithm that can be replayed.
type bank struct {
	name string
	id   uint16
	hash crypto.Hash
}

var banks = []bank{
	{"sha1", 0x0004, crypto.SHA1},
	{"sha256", 0x000b, crypto.SHA256},
	{"sha384", 0x000c, crypto.SHA384},
	{"sha512", 0x000d, crypto.SHA512},
}

// maxHash is the size of the largest digest of a bank.
const maxHash = sha512.Size

// sum appends the digest of data to dst.
func (b bank) sum(dst, data []byte) []byte {
	switch b.hash {
	case crypto.SHA256:
		s := sha256.Sum256(data)
		return append(dst, s[:]...)
	case crypto.SHA384:
		s := sha512.Sum384(data)
		return append(dst, s[:]...)
	case crypto.SHA512:
		s := sha512.Sum512(data)
		return append(dst, s[:]...)
	}
	s := sha1.Sum(data)
	return append(dst, s[:]...)
}

// extend appends to dst what value becomes when it is extended with digest.
// dst may lie where value does.
func (b bank) extend(dst, value, digest []byte) []byte {
	var in [2 * maxHash]byte
	return b.sum(dst, append(append(in[:0], value...), digest...))
}

func bankNamed(name string) (bank, bool) {
	for _, b := range banks {
		if b.name == name {
			return b, true
		}
	}
	return bank{}, false
}

// Bank returns the name of the algorithm ("sha256"), or its number for one
// that this package does not know.
func (a Algorithm) Bank() string {
	for _, b := range banks {
		if b.id == a.ID {
			return b.name
		}
	}
	return fmt.Sprintf("algorithm %#04x", a.ID)
}

// Digest returns the event's digest in a bank, or nil.
func (e Event) Digest(bank string) []byte {
	b, ok := bankNamed(bank)
	if !ok {
		return nil
	}
	return e.digest(b.id)
}

func (e *Event) digest(id uint16) []byte {
	for i := range e.Digests {
		if e.Digests[i].ID == id {
			return e.Digests[i].Value
		}
	}
	return nil
}

// HashesData reports whether the event's digest in a bank is that of its own
// data, so that a proven digest proves the data too.
func (e Event) HashesData(bank string) bool {
	b, ok := bankNamed(bank)
	if !ok {
		return false
	}
	var sum [maxHash]byte
	return bytes.Equal(b.sum(sum[:0], e.Data), e.digest(b.id))
}

// Has reports whether the log declares a bank.
func (l *Log) Has(bank string) bool {
	for _, a := range l.Algorithms {
		if a.Bank() == bank {
			return true
		}
	}
	return false
}
