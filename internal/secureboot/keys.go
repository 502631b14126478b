package secureboot

import (
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"time"
)

// keyBits is the size that all firmware takes.
const keyBits = 2048

// Keys are those of one owner of machines.
type Keys struct{ PK, KEK, DB *Signer }

// Generate makes keys for an owner. Firmware looks at no dates; the
// certificates say 1 January 2000 to 2099 so that nobody else minds them.
func Generate(owner string) (*Keys, error) {
	var k Keys
	for _, x := range []struct {
		name string
		to   **Signer
	}{{"platform key", &k.PK}, {"key exchange key", &k.KEK}, {"signature database", &k.DB}} {
		s, err := newSigner(owner + " " + x.name)
		if err != nil {
			return nil, fmt.Errorf("making the %s: %w", x.name, err)
		}
		*x.to = s
	}
	return &k, nil
}

func newSigner(name string) (*Signer, error) {
	key, err := rsa.GenerateKey(rand.Reader, keyBits)
	if err != nil {
		return nil, err
	}
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 126))
	if err != nil {
		return nil, err
	}
	t := &x509.Certificate{
		Subject: pkix.Name{CommonName: name}, SerialNumber: serial,
		NotBefore: time.Date(2000, 1, 1, 0, 0, 0, 0, time.UTC), NotAfter: time.Date(2099, 12, 31, 23, 59, 59, 0, time.UTC),
		KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign, BasicConstraintsValid: true, IsCA: true,
		SignatureAlgorithm: x509.SHA256WithRSA,
	}
	der, err := x509.CreateCertificate(rand.Reader, t, t, &key.PublicKey, key)
	if err != nil {
		return nil, err
	}
	cert, err := x509.ParseCertificate(der)
	return &Signer{cert, key}, err
}

// PEM returns key (PKCS #8) and certificate.
func (s *Signer) PEM() (key, cert []byte, err error) {
	der, err := x509.MarshalPKCS8PrivateKey(s.key)
	if err != nil {
		return nil, nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}),
		pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: s.Cert.Raw}), nil
}

// ID is the SHA-256 of the certificate, in hex.
func (s *Signer) ID() string {
	sum := sha256.Sum256(s.Cert.Raw)
	return hex.EncodeToString(sum[:])
}

// ParseSigner reads an RSA key (PKCS #8 or PKCS #1) and its certificate from
// PEM.
func ParseSigner(keyPEM, certPEM []byte) (*Signer, error) {
	k, _ := pem.Decode(keyPEM)
	c, _ := pem.Decode(certPEM)
	if k == nil || c == nil {
		return nil, errors.New("key of Secure Boot: want a key and a certificate in PEM form")
	}
	cert, err := x509.ParseCertificate(c.Bytes)
	if err != nil {
		return nil, fmt.Errorf("certificate of Secure Boot: %w", err)
	}
	var key *rsa.PrivateKey
	if any, err := x509.ParsePKCS8PrivateKey(k.Bytes); err == nil {
		key, _ = any.(*rsa.PrivateKey)
	} else {
		key, _ = x509.ParsePKCS1PrivateKey(k.Bytes)
	}
	if key == nil || key.N.BitLen() < keyBits {
		return nil, fmt.Errorf("key of Secure Boot: want RSA with at least %d bits, which is what firmware takes", keyBits)
	}
	if !key.PublicKey.Equal(cert.PublicKey) {
		return nil, errors.New("key of Secure Boot: the certificate is for another key")
	}
	return &Signer{cert, key}, nil
}
