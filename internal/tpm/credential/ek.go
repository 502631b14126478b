package credential

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"encoding/hex"
	"errors"
	"fmt"
	"math/big"
	"slices"
	"time"

	"github.com/google/go-tpm/tpm2"
)

// ErrCertificate is wrapped by the errors of EK certificates that prove
// nothing.
var ErrCertificate = errors.New("EK certificate is not acceptable")

// Object identifiers of EK certificates (TCG EK Credential Profile 2.5,
// sections 3.1 and 3.2).
var (
	oidEKCertificate = asn1.ObjectIdentifier{2, 23, 133, 8, 1}
	oidSAN           = asn1.ObjectIdentifier{2, 5, 29, 17}
	oidRSAESOAEP     = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 7}
)

// EKHash returns the identity of a TPM: SHA-256, in hex, of the public area
// of its endorsement key (TPM2B_PUBLIC without its length).
func EKHash(ekPub []byte) (string, error) {
	pub, err := parseEK(ekPub)
	if err != nil {
		return "", err
	}
	sum := sha256.Sum256(tpm2.Marshal(pub))
	return hex.EncodeToString(sum[:]), nil
}

// parseEK reads the public area of an endorsement key and refuses one that
// could not be that of a TPM.
func parseEK(b []byte) (*tpm2.TPMTPublic, error) {
	pub, err := parsePublic(b)
	if err != nil {
		return nil, fmt.Errorf("endorsement key: %w", err)
	}
	a := pub.ObjectAttributes
	if !a.Restricted || !a.Decrypt || a.SignEncrypt || !a.FixedTPM || !a.FixedParent {
		return nil, fmt.Errorf("endorsement key is not a restricted decryption key fixed to its TPM: %w", ErrKey)
	}
	return pub, nil
}

// VerifyEKCertificate checks that a certificate (DER; padding after it is
// tolerated) was issued for this endorsement key by one of the roots, by way
// of the intermediates given, and holds at the time now.
func VerifyEKCertificate(der []byte, roots, intermediates *x509.CertPool, ekPub []byte, now time.Time) error {
	pub, err := parseEK(ekPub)
	if err != nil {
		return err
	}
	cert, err := ParseEKCertificate(der)
	if err != nil {
		return err
	}
	if err := certifies(cert, pub); err != nil {
		return err
	}
	if roots == nil {
		return fmt.Errorf("no TPM vendor roots are configured: %w", ErrCertificate)
	}
	_, err = cert.Verify(x509.VerifyOptions{
		Roots:         roots,
		Intermediates: intermediates,
		CurrentTime:   now,
		KeyUsages:     []x509.ExtKeyUsage{x509.ExtKeyUsageAny}, // the TCG usage was checked above
	})
	if err != nil {
		return fmt.Errorf("chain to the TPM vendor's root: %w: %w", err, ErrCertificate)
	}
	return nil
}

// ParseEKCertificate reads an EK certificate as it lies in a TPM's NV memory:
// DER, perhaps followed by padding. The critical subject alternative name,
// which holds TPM attributes that Go's parser does not know, is accepted; a
// certificate for something else is not.
func ParseEKCertificate(der []byte) (*x509.Certificate, error) {
	var first asn1.RawValue
	if _, err := asn1.Unmarshal(der, &first); err != nil {
		return nil, fmt.Errorf("not DER (%w): %w", err, ErrCertificate)
	}
	cert, err := x509.ParseCertificate(first.FullBytes)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", err, ErrCertificate)
	}
	if cert.IsCA {
		return nil, fmt.Errorf("it is a certificate of an authority: %w", ErrCertificate)
	}
	named := len(cert.ExtKeyUsage)+len(cert.UnknownExtKeyUsage) > 0
	if named && !slices.ContainsFunc(cert.UnknownExtKeyUsage, oidEKCertificate.Equal) {
		return nil, fmt.Errorf("its extended key usage is not that of an endorsement key: %w", ErrCertificate)
	}
	cert.UnhandledCriticalExtensions = slices.DeleteFunc(cert.UnhandledCriticalExtensions, oidSAN.Equal)
	return cert, nil
}

// MaxChain is the largest chain of certificates that ParseChain reads, in
// bytes: the NV memory that TPMs have for it is smaller.
const MaxChain = 32 << 10

// ParseChain reads the certificates of authorities that a TPM keeps beside its
// EK certificate, one after the other in DER, perhaps with padding behind.
// They are anybody's word: a chain counts that ends in a root of one's own.
func ParseChain(der []byte) ([]*x509.Certificate, error) {
	if len(der) > MaxChain {
		return nil, fmt.Errorf("EK certificate chain of %d bytes: %w", len(der), ErrCertificate)
	}
	var out []*x509.Certificate
	for len(der) > 0 && der[0] != 0x00 && der[0] != 0xff {
		var one asn1.RawValue
		rest, err := asn1.Unmarshal(der, &one)
		if err != nil {
			return nil, fmt.Errorf("EK certificate chain, certificate %d: not DER (%w): %w", len(out), err, ErrCertificate)
		}
		c, err := x509.ParseCertificate(one.FullBytes)
		if err != nil {
			return nil, fmt.Errorf("EK certificate chain, certificate %d: %w: %w", len(out), err, ErrCertificate)
		}
		out, der = append(out, c), rest
	}
	return out, nil
}

// certifies checks that the certificate is for the key of a public area.
func certifies(cert *x509.Certificate, pub *tpm2.TPMTPublic) error {
	key, err := tpm2.Pub(*pub)
	if err != nil {
		return fmt.Errorf("endorsement key: %w: %w", err, ErrKey)
	}
	certKey := cert.PublicKey
	if certKey == nil {
		certKey = oaepKey(cert.RawSubjectPublicKeyInfo)
	}
	if k, ok := key.(interface{ Equal(crypto.PublicKey) bool }); ok && k.Equal(certKey) {
		return nil
	}
	return fmt.Errorf("it is for another key than this TPM's endorsement key: %w", ErrCertificate)
}

// oaepKey reads an RSA key that is marked for OAEP only, as in certificates
// of older TPMs; crypto/x509 leaves it out. The result is nil for others.
func oaepKey(spki []byte) crypto.PublicKey {
	var info struct {
		Algorithm pkix.AlgorithmIdentifier
		Key       asn1.BitString
	}
	if rest, err := asn1.Unmarshal(spki, &info); err != nil || len(rest) != 0 || !info.Algorithm.Algorithm.Equal(oidRSAESOAEP) {
		return nil
	}
	var k struct {
		N *big.Int
		E int
	}
	if rest, err := asn1.Unmarshal(info.Key.Bytes, &k); err != nil || len(rest) != 0 {
		return nil
	}
	return &rsa.PublicKey{N: k.N, E: k.E}
}

// SameKey reports whether an EK certificate is for an endorsement key.
func SameKey(der, ekPub []byte) bool {
	cert, err := ParseEKCertificate(der)
	if err != nil {
		return false
	}
	pub, err := parseEK(ekPub)
	return err == nil && certifies(cert, pub) == nil
}

// strong refuses endorsement keys that are too weak to encrypt a secret to.
func strong(pub *tpm2.TPMTPublic) error {
	key, err := tpm2.Pub(*pub)
	if err != nil {
		return fmt.Errorf("endorsement key: %w: %w", err, ErrKey)
	}
	switch k := key.(type) {
	case *rsa.PublicKey:
		if k.N.BitLen() >= 2048 && k.E > 2 {
			return nil
		}
	case *ecdsa.PublicKey:
		if _, err := k.ECDH(); err == nil {
			return nil
		}
	}
	return fmt.Errorf("endorsement key is too weak: %w", ErrKey)
}
