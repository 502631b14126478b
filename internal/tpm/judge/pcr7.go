package judge

import (
	"encoding/binary"
	"fmt"
	"unicode/utf16"

	"github.com/turnout-project/turnout/internal/tpm/eventlog"
)

// settings are the Secure Boot variables that the firmware measures into
// PCR 7 before its separator, once each (TCG PC Client Platform Firmware
// Profile 1.06, section 3.3.4.8).
var settings = map[string]bool{"SecureBoot": true, "PK": true, "KEK": true, "dbx": true}

// judgePCR7 refuses logs in which Secure Boot settings are told twice or after
// the separator: what an operator reads from such a log is not what the
// firmware went by. The value itself is compared with a baseline only.
//
// An event counts as a setting if its digest is that of its data, whatever
// type it claims: digests are proven, types are not.
func (c *court) judgePCR7() {
	if !c.proven[7] {
		return
	}
	known := known[c.in.Bank]
	told := map[string]eventlog.Event{}
	separated := false
	for _, e := range c.eventsOf(7) {
		if known.isSeparator(e.Digest(c.in.Bank)) {
			if separated {
				c.verdict.Findings = append(c.verdict.Findings, c.unexpected(e, "a second separator in PCR 7"))
			}
			separated = true
			continue
		}
		name := variableName(e.Data)
		if !settings[name] {
			continue
		}
		// Hashing the data, a dbx above all, costs more than all the rest:
		// only that of an event that would be refused is looked at.
		before, isTold := told[name]
		switch {
		case separated && e.HashesData(c.in.Bank):
			c.verdict.Findings = append(c.verdict.Findings, c.unexpected(e, fmt.Sprintf("Secure Boot variable %s is measured after the separator", name)))
		case isTold && e.HashesData(c.in.Bank) && before.HashesData(c.in.Bank):
			c.verdict.Findings = append(c.verdict.Findings, c.unexpected(e, fmt.Sprintf("Secure Boot variable %s is measured twice", name)))
		case isTold && before.HashesData(c.in.Bank):
			continue // this one does not count, and must not hide that one
		}
		told[name] = e
	}
}

// variableName returns the name in a UEFI_VARIABLE_DATA: GUID, length of the
// name in characters, length of the data, name in UTF-16LE, data. It is ""
// for anything else.
func variableName(b []byte) string {
	const head = 32
	if len(b) < head {
		return ""
	}
	chars, size := binary.LittleEndian.Uint64(b[16:]), binary.LittleEndian.Uint64(b[24:])
	if chars > 64 || size > uint64(len(b)) || head+2*chars+size != uint64(len(b)) {
		return ""
	}
	name := make([]uint16, chars)
	for i := range name {
		name[i] = binary.LittleEndian.Uint16(b[head+2*i:])
	}
	return string(utf16.Decode(name))
}
