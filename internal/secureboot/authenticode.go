package secureboot

import (
	"encoding/asn1"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/turnout-project/turnout/internal/tpm/measure"
)

// ErrSigned is wrapped when a program carries a signature already.
var ErrSigned = errors.New("program is signed already")

// peImageData is a SpcPeImageData that names no file: empty flags and an empty
// Unicode name, as signing tools write it.
var peImageData = []byte{0x30, 0x09, 0x03, 0x01, 0x00, 0xa0, 0x04, 0xa2, 0x02, 0x80, 0x00}

type indirectData struct {
	Data struct {
		Type  asn1.ObjectIdentifier
		Value asn1.RawValue
	}
	Digest struct {
		Algorithm algorithm
		Digest    []byte
	}
}

// Sign returns an EFI program with a signature at its end. The program is
// padded to a multiple of 8 bytes before, which changes its Authenticode
// digest if its length was another: measure the result, not the input.
func (s *Signer) Sign(pe []byte) ([]byte, error) {
	dir, err := certificateTable(pe)
	if err != nil {
		return nil, err
	}
	if binary.LittleEndian.Uint64(pe[dir:]) != 0 {
		return nil, fmt.Errorf("signing: %w; sign the one that was built", ErrSigned)
	}
	out := make([]byte, (len(pe)+7)&^7, len(pe)+4096)
	copy(out, pe)
	digests, err := measure.Authenticode(out)
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	var d indirectData
	d.Data.Type, d.Data.Value = oidSPCPEImage, asn1.RawValue{FullBytes: peImageData}
	d.Digest.Algorithm = sha256Algorithm
	if d.Digest.Digest, err = hex.DecodeString(digests["sha256"]); err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	content, err := asn1.Marshal(d)
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	signed, err := s.signContent(oidSPCIndirect, content)
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	der, err := asn1.Marshal(contentInfo{oidSignedData, context(0, signed)})
	if err != nil {
		return nil, fmt.Errorf("signing: %w", err)
	}
	return appendCertificate(out, dir, der), nil
}

// appendCertificate writes a WIN_CERTIFICATE of type PKCS_SIGNED_DATA behind
// the program, and where it is into the data directory.
func appendCertificate(pe []byte, dir int, der []byte) []byte {
	le := binary.LittleEndian
	at := len(pe)
	for len(der)%8 != 0 {
		der = append(der, 0)
	}
	le.PutUint32(pe[dir:], uint32(at))
	le.PutUint32(pe[dir+4:], uint32(8+len(der)))
	pe = le.AppendUint32(pe, uint32(8+len(der)))
	pe = le.AppendUint16(pe, 0x0200)
	pe = le.AppendUint16(pe, 0x0002)
	return append(pe, der...)
}

// certificateTable returns the offset of the data directory's entry for
// signatures ("PE Format", section Optional Header Data Directories).
func certificateTable(pe []byte) (int, error) {
	le := binary.LittleEndian
	bad := fmt.Errorf("signing: %w", errNotPE)
	if len(pe) < 0x40 || string(pe[:2]) != "MZ" {
		return 0, bad
	}
	head := int64(le.Uint32(pe[0x3c:]))
	const entry = 24 + 112 + 4*8 // COFF header, fields of a PE32+ optional header, four entries
	if head+entry+8 > int64(len(pe)) || string(pe[head:head+4]) != "PE\x00\x00" || le.Uint16(pe[head+24:]) != 0x20b {
		return 0, bad
	}
	if n := le.Uint32(pe[head+24+108:]); n < 5 {
		return 0, fmt.Errorf("signing: the program has %d data directories and no place for a signature: %w", n, errNotPE)
	}
	return int(head) + entry, nil
}

var errNotPE = errors.New("not a 64-bit EFI program")
