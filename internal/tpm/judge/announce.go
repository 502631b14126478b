package judge

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"unicode/utf16"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/tpm/eventlog"
)

// GUIDs of variables and signature lists as they lie in memory (UEFI
// Specification 2.10, sections 3.3, 32.4 and 32.6).
var (
	guidGlobal   = []byte{0x61, 0xdf, 0xe4, 0x8b, 0xca, 0x93, 0xd2, 0x11, 0xaa, 0x0d, 0x00, 0xe0, 0x98, 0x03, 0x2b, 0x8c}
	guidDatabase = []byte{0xcb, 0xb2, 0x19, 0xd7, 0x3a, 0x3d, 0x96, 0x45, 0xa3, 0xbc, 0xda, 0xd0, 0x0e, 0x67, 0x65, 0x6f}

	guidListSHA256 = []byte{0x26, 0x16, 0xc4, 0xc1, 0x4c, 0x50, 0x92, 0x40, 0xac, 0xa9, 0x41, 0xf9, 0x36, 0x93, 0x43, 0x28}
	guidListX509   = []byte{0xa1, 0x59, 0xc0, 0xa5, 0xe4, 0x94, 0xa7, 0x4a, 0x87, 0xb5, 0xab, 0x15, 0x5c, 0x2b, 0xf0, 0x72}
)

// BaselineFromLog returns the baseline of a machine that booted as a log
// tells. The log is taken at its word: it comes from an operator.
func BaselineFromLog(model fleet.Model, bank string, rawLog []byte) (*fleet.Baseline, error) {
	log, err := eventlog.ParseBank(rawLog, bank)
	if err != nil {
		return nil, err
	}
	if !log.Has(bank) {
		return nil, fmt.Errorf("the event log has no %s digests", bank)
	}
	pcrs := map[int]string{}
	replayed := log.Replay(bank, BaselinePCRs...)
	for _, p := range BaselinePCRs {
		if replayed[p] == nil {
			return nil, fmt.Errorf("the event log has no event of PCR %d: it is not that of a whole boot", p)
		}
		pcrs[p] = hexOf(replayed[p])
	}
	return Learn(model, bank, pcrs, rawLog)
}

// WithDBX returns what a machine of baseline b will measure into PCR 7 once
// its dbx holds the given signature lists and nothing else. dbx may begin
// with the four bytes of attributes that efivarfs shows.
func WithDBX(b *fleet.Baseline, dbx []byte) (*fleet.Baseline, error) {
	if len(dbx) > 4 && isSignatureList(dbx[4:]) && !isSignatureList(dbx) {
		dbx = dbx[4:]
	}
	if !isSignatureList(dbx) {
		return nil, errors.New("this is not the contents of dbx, which are EFI signature lists; an update file (.auth, DBXUpdate.bin) is not what the variable holds after it")
	}
	at, err := dbxEvent(b)
	if err != nil {
		return nil, err
	}
	out := *b
	out.PCRs, out.Events = maps.Clone(b.PCRs), maps.Clone(b.Events)
	events := slices.Clone(b.Events[7])
	events[at] = hexOf(eventlog.Hash(b.Bank, variableData(guidDatabase, "dbx", dbx)))
	out.Events[7] = events
	if out.PCRs[7], err = replayHex(b.Bank, events); err != nil {
		return nil, err
	}
	out.ID = BaselineID(out.Model, out.Bank, out.PCRs)
	return &out, nil
}

// dbxEvent finds the event of dbx among those of PCR 7: the firmware measures
// SecureBoot, PK, KEK, db and dbx in this order, and of SecureBoot all three
// contents are known.
func dbxEvent(b *fleet.Baseline) (int, error) {
	var secureBoot []string
	for _, value := range [][]byte{{1}, {0}, {}} {
		secureBoot = append(secureBoot, hexOf(eventlog.Hash(b.Bank, variableData(guidGlobal, "SecureBoot", value))))
	}
	events := b.Events[7]
	if v, err := replayHex(b.Bank, events); err != nil || v != b.PCRs[7] {
		return 0, fmt.Errorf("baseline %s does not tell the events of PCR 7 one by one, so that none can be exchanged", b.ID)
	}
	first := slices.IndexFunc(events, func(d string) bool { return slices.Contains(secureBoot, d) })
	separator := slices.IndexFunc(events, func(d string) bool {
		raw, err := hex.DecodeString(d)
		return err == nil && known[b.Bank].isSeparator(raw)
	})
	const place = 4 // after SecureBoot
	if first < 0 || separator < first+place+1 {
		return 0, fmt.Errorf("the firmware of baseline %s does not measure SecureBoot, PK, KEK, db and dbx in this order: approve what one updated machine shows instead", b.ID)
	}
	return first + place, nil
}

// replayHex returns what events lead a PCR to.
func replayHex(bank string, events []string) (string, error) {
	v := make([]byte, eventlog.Size(bank))
	for _, e := range events {
		d, err := hex.DecodeString(e)
		if err != nil || len(d) != len(v) {
			return "", fmt.Errorf("%q is not a %s digest", e, bank)
		}
		v = eventlog.Extend(bank, v, d)
	}
	return hexOf(v), nil
}

// variableData is a UEFI_VARIABLE_DATA (TCG PC Client Platform Firmware
// Profile 1.06, section 10.2.6).
func variableData(guid []byte, name string, data []byte) []byte {
	chars := utf16.Encode([]rune(name))
	b := bytes.Clone(guid)
	b = binary.LittleEndian.AppendUint64(b, uint64(len(chars)))
	b = binary.LittleEndian.AppendUint64(b, uint64(len(data)))
	for _, c := range chars {
		b = binary.LittleEndian.AppendUint16(b, c)
	}
	return append(b, data...)
}

// isSignatureList reports whether b is nothing but EFI_SIGNATURE_LISTs of
// hashes and certificates (UEFI Specification 2.10, section 32.4.1).
func isSignatureList(b []byte) bool {
	const head = 28
	for n := 0; len(b) > 0; n++ {
		if len(b) < head || n > 1000 || !bytes.HasPrefix(b, guidListSHA256) && !bytes.HasPrefix(b, guidListX509) {
			return false
		}
		size := binary.LittleEndian.Uint32(b[16:])
		if size < head || uint64(size) > uint64(len(b)) {
			return false
		}
		b = b[size:]
	}
	return true
}
