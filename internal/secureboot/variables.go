package secureboot

import (
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"time"
	"unicode/utf16"
)

// guid is an EFI_GUID as it lies in memory.
type guid [16]byte

func parseGUID(s string) (g guid) {
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(b) != 16 {
		panic("secureboot: GUID " + s)
	}
	for i, j := range []int{3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15} {
		g[i] = b[j]
	}
	return g
}

// GUIDs of UEFI 2.10 and, the last ones, of edk2.
var (
	guidGlobal   = parseGUID("8be4df61-93ca-11d2-aa0d-00e098032b8c")
	guidDatabase = parseGUID("d719b2cb-3d3a-4596-a3bc-dad00e67656f")
	guidX509     = parseGUID("a5c059a1-94e4-4aa7-87b5-ab155c2bf072")
	guidPKCS7    = parseGUID("4aafd29d-68df-49ee-8aa9-347d375665a7")
	guidEnable   = parseGUID("f0a30bc7-af08-4556-99c4-001009c93a44") // SecureBootEnable

	// owner marks entries of signature lists as ours.
	owner = parseGUID("74726e6f-7574-4b65-8079-73652d626f6f")
)

// Attributes of variables: non-volatile, boot services, run time, and
// time-based authenticated.
const (
	attrNV, attrBS, attrRT, attrAuth = 1, 2, 4, 0x20
	attrKey                          = attrNV | attrBS | attrRT | attrAuth
)

// Variable is one of PK, KEK and db.
type Variable struct {
	Name string
	GUID string // "8be4df61-…", as in the names of efivarfs
	List []byte // EFI_SIGNATURE_LIST: the value
	Auth []byte // what is written to set it: EFI_VARIABLE_AUTHENTICATION_2 and List

	guid guid
}

// stamp is the time of all our authenticated variables. A later write must
// bear a later one, as updates by hand do.
var stamp = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

// Variables returns what makes a machine in setup mode ours, in the order in
// which it must be written: with PK, setup mode ends.
func (k *Keys) Variables() ([]Variable, error) {
	vars := []Variable{
		{Name: "db", List: signatureList(k.DB), guid: guidDatabase, GUID: "d719b2cb-3d3a-4596-a3bc-dad00e67656f"},
		{Name: "KEK", List: signatureList(k.KEK), guid: guidGlobal, GUID: "8be4df61-93ca-11d2-aa0d-00e098032b8c"},
		{Name: "PK", List: signatureList(k.PK), guid: guidGlobal, GUID: "8be4df61-93ca-11d2-aa0d-00e098032b8c"},
	}
	for i, by := range []*Signer{k.KEK, k.PK, k.PK} {
		v := &vars[i]
		var err error
		if v.Auth, err = authenticated(v, by); err != nil {
			return nil, fmt.Errorf("variable %s: %w", v.Name, err)
		}
	}
	return vars, nil
}

// signatureList is an EFI_SIGNATURE_LIST of one certificate (UEFI 2.10,
// section 32.4.1).
func signatureList(s *Signer) []byte {
	le := binary.LittleEndian
	size := uint32(16 + len(s.Cert.Raw))
	b := append([]byte(nil), guidX509[:]...)
	b = le.AppendUint32(b, 28+size)
	b = le.AppendUint32(b, 0)
	b = le.AppendUint32(b, size)
	b = append(b, owner[:]...)
	return append(b, s.Cert.Raw...)
}

// authenticated signs a variable's new value (UEFI 2.10, section 8.2.2).
func authenticated(v *Variable, by *Signer) ([]byte, error) {
	le := binary.LittleEndian
	at := efiTime(stamp)
	var signed []byte
	for _, c := range utf16.Encode([]rune(v.Name)) {
		signed = le.AppendUint16(signed, c)
	}
	signed = append(signed, v.guid[:]...)
	signed = le.AppendUint32(signed, attrKey)
	signed = append(signed, at...)
	signed = append(signed, v.List...)
	sig, err := by.signDetached(signed)
	if err != nil {
		return nil, err
	}
	b := append([]byte(nil), at...)
	b = le.AppendUint32(b, uint32(24+len(sig)))
	b = le.AppendUint16(b, 0x0200)
	b = le.AppendUint16(b, 0x0ef1) // WIN_CERT_TYPE_EFI_GUID
	b = append(b, guidPKCS7[:]...)
	b = append(b, sig...)
	return append(b, v.List...), nil
}

// efiTime is an EFI_TIME with what authenticated variables do not use zero.
func efiTime(t time.Time) []byte {
	b := binary.LittleEndian.AppendUint16(nil, uint16(t.Year()))
	b = append(b, byte(t.Month()), byte(t.Day()), byte(t.Hour()), byte(t.Minute()), byte(t.Second()))
	return append(b, make([]byte, 9)...)
}
