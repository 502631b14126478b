// Package credential answers whether a TPM is the one it says it is: it
// checks attestation keys and endorsement keys, and makes the challenge that
// only the TPM with both can open.
//
//	TPM vendor --X.509--> endorsement key (EK) of one chip
//	server --MakeCredential: secret for EK and the name of AK--> node
//	node's TPM --ActivateCredential: only if it holds EK and that very AK--> secret
//
// After that a signature of the AK speaks for the chip. The package is pure;
// opening a TPM is the business of package device.
package credential

import (
	"bytes"
	"crypto/ecdsa"
	"crypto/elliptic"
	"errors"
	"fmt"
	"sync"

	"github.com/google/go-tpm/tpm2"
)

// maxPublic is the largest public area accepted. Real ones have up to 400
// bytes.
const maxPublic = 2048

// ErrKey is wrapped by the errors of keys that must not be trusted, whatever
// they sign.
var ErrKey = errors.New("key is not acceptable")

// AK is a checked attestation key.
type AK struct {
	Name   []byte           // TPM name: two bytes of algorithm, then the digest of the public area
	Public *ecdsa.PublicKey // P-256
}

// ParseAK reads the public area of an attestation key (TPM2B_PUBLIC) and
// requires what makes its signatures worth something: an ECDSA P-256 key with
// SHA-256 that is restricted (it signs only what the TPM made itself), was
// born in the TPM and cannot leave it.
//
// A key that was acceptable is remembered, since the same nodes attest again
// and again: the result is shared and must not be changed.
func ParseAK(b []byte) (*AK, error) {
	known.Lock()
	ak := known.aks[string(b)]
	known.Unlock()
	if ak != nil {
		return ak, nil
	}
	ak, err := parseAK(b)
	if err != nil {
		return nil, err
	}
	known.Lock()
	defer known.Unlock()
	if len(known.aks) >= maxKnown {
		clear(known.aks)
	}
	known.aks[string(b)] = ak
	return ak, nil
}

// maxKnown bounds how many keys are remembered, about a kilobyte each.
const maxKnown = 16384

var known = struct {
	sync.Mutex
	aks map[string]*AK // by TPM2B_PUBLIC
}{aks: map[string]*AK{}}

func parseAK(b []byte) (*AK, error) {
	pub, err := parsePublic(b)
	if err != nil {
		return nil, fmt.Errorf("attestation key: %w", err)
	}
	a := pub.ObjectAttributes
	for _, want := range []struct {
		ok   bool
		what string
	}{
		{a.Restricted, "is not restricted: it would sign anything"},
		{a.FixedTPM, "is not fixed to its TPM"},
		{a.FixedParent, "is not fixed to its parent"},
		{a.SensitiveDataOrigin, "was not made by the TPM"},
		{a.SignEncrypt, "is no signing key"},
		{!a.Decrypt, "is a decryption key too"},
		{pub.NameAlg == tpm2.TPMAlgSHA256, "has a name algorithm other than SHA-256"},
	} {
		if !want.ok {
			return nil, fmt.Errorf("attestation key %s: %w", want.what, ErrKey)
		}
	}
	key, err := ecdsaKey(pub)
	if err != nil {
		return nil, fmt.Errorf("attestation key %w", err)
	}
	name, err := tpm2.ObjectName(pub)
	if err != nil {
		return nil, fmt.Errorf("attestation key: %w", err)
	}
	return &AK{Name: name.Buffer, Public: key}, nil
}

// parsePublic reads a TPM2B_PUBLIC that is nothing but that.
func parsePublic(b []byte) (*tpm2.TPMTPublic, error) {
	if len(b) > maxPublic {
		return nil, fmt.Errorf("public area of %d bytes: %w", len(b), ErrKey)
	}
	boxed, err := tpm2.Unmarshal[tpm2.TPM2BPublic](b)
	if err != nil {
		return nil, fmt.Errorf("public area cannot be read (%w): %w", err, ErrKey)
	}
	pub, err := boxed.Contents()
	if err != nil {
		return nil, fmt.Errorf("public area cannot be read (%w): %w", err, ErrKey)
	}
	if !bytes.Equal(tpm2.Marshal(tpm2.New2B(*pub)), b) {
		return nil, fmt.Errorf("public area is followed by other bytes: %w", ErrKey)
	}
	return pub, nil
}

// ecdsaKey returns the key of a public area if it is ECDSA with SHA-256 on
// P-256.
func ecdsaKey(pub *tpm2.TPMTPublic) (*ecdsa.PublicKey, error) {
	if pub.Type != tpm2.TPMAlgECC {
		return nil, fmt.Errorf("is not an elliptic-curve key: %w", ErrKey)
	}
	parms, err := pub.Parameters.ECCDetail()
	if err != nil {
		return nil, fmt.Errorf("has no parameters: %w", ErrKey)
	}
	if parms.CurveID != tpm2.TPMECCNistP256 || parms.Scheme.Scheme != tpm2.TPMAlgECDSA {
		return nil, fmt.Errorf("is not ECDSA on P-256: %w", ErrKey)
	}
	scheme, err := parms.Scheme.Details.ECDSA()
	if err != nil || scheme.HashAlg != tpm2.TPMAlgSHA256 {
		return nil, fmt.Errorf("does not sign with SHA-256: %w", ErrKey)
	}
	point, err := pub.Unique.ECC()
	if err != nil {
		return nil, fmt.Errorf("has no point: %w", ErrKey)
	}
	return pointP256(point.X.Buffer, point.Y.Buffer)
}

// pointP256 checks that a point lies on P-256.
func pointP256(x, y []byte) (*ecdsa.PublicKey, error) {
	if len(x) > 32 || len(y) > 32 {
		return nil, fmt.Errorf("has a point larger than the curve: %w", ErrKey)
	}
	raw := make([]byte, 65)
	raw[0] = 4
	copy(raw[33-len(x):33], x)
	copy(raw[65-len(y):], y)
	key, err := ecdsa.ParseUncompressedPublicKey(elliptic.P256(), raw)
	if err != nil {
		return nil, fmt.Errorf("has a point that is not on P-256: %w", ErrKey)
	}
	return key, nil
}
