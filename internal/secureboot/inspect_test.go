package secureboot

import (
	"bytes"
	"encoding/binary"
	"testing"
)

// TestSignatures: a signature is read back with its signer, and does not hold
// once a byte of the program or of itself differs.
func TestSignatures(t *testing.T) {
	pe := program("hello")
	if got, err := Signatures(pe); err != nil || len(got) != 0 {
		t.Errorf("Signatures of an unsigned program = %v, %v", got, err)
	}
	keys := ours()
	signed, err := keys.DB.Sign(pe)
	if err != nil {
		t.Fatal(err)
	}
	got, err := Signatures(signed)
	if err != nil || len(got) != 1 || got[0].Err != nil || !got[0].Cert.Equal(keys.DB.Cert) {
		t.Fatalf("Signatures = %+v, %v", got, err)
	}
	dir, err := certificateTable(signed)
	if err != nil {
		t.Fatal(err)
	}
	start := int(binary.LittleEndian.Uint32(signed[dir:]))
	bad := bytes.Clone(signed)
	bad[start-1] ^= 1
	if got, err := Signatures(bad); err != nil || len(got) != 1 || got[0].Err == nil {
		t.Errorf("Signatures of a changed program = %+v, %v", got, err)
	}
	// Whatever byte of the signature changes, it is not taken for good, but for
	// what is behind the DER and for what is not signed: the certificate beside
	// a signature vouches for itself.
	for at := start; at < len(signed); at++ {
		bad := bytes.Clone(signed)
		bad[at] ^= 0x55
		got, err := Signatures(bad)
		if err == nil && len(got) == 1 && got[0].Err == nil && !bytes.Equal(got[0].Cert.RawSubjectPublicKeyInfo, keys.DB.Cert.RawSubjectPublicKeyInfo) {
			t.Fatalf("byte %d of the signature changed: signed by another key", at-start)
		}
	}
	for n := range signed {
		if n%97 == 0 {
			if got, err := Signatures(signed[:n]); err == nil && len(got) > 0 && got[0].Err == nil {
				t.Fatalf("Signatures of the first %d bytes = %+v", n, got)
			}
		}
	}
}
