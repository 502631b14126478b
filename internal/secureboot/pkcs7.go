package secureboot

import (
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"fmt"
	"math/big"
)

// Object identifiers.
var (
	oidSHA256        = asn1.ObjectIdentifier{2, 16, 840, 1, 101, 3, 4, 2, 1}
	oidRSA           = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 1, 1}
	oidData          = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 1}
	oidSignedData    = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 7, 2}
	oidContentType   = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 3}
	oidMessageDigest = asn1.ObjectIdentifier{1, 2, 840, 113549, 1, 9, 4}
	oidSPCIndirect   = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 311, 2, 1, 4}
	oidSPCPEImage    = asn1.ObjectIdentifier{1, 3, 6, 1, 4, 1, 311, 2, 1, 15}
)

type algorithm struct {
	OID    asn1.ObjectIdentifier
	Params asn1.RawValue
}

var (
	null            = asn1.RawValue{Tag: asn1.TagNull}
	sha256Algorithm = algorithm{oidSHA256, null}
)

// contentInfo is a ContentInfo (RFC 2315 section 7). Content is the whole [0].
type contentInfo struct {
	Type    asn1.ObjectIdentifier
	Content asn1.RawValue `asn1:"optional"`
}

// signedData is a SignedData (RFC 2315 section 9.1).
type signedData struct {
	Version      int
	Digests      []algorithm `asn1:"set"`
	Content      contentInfo
	Certificates asn1.RawValue
	Signers      []signerInfo `asn1:"set"`
}

type signerInfo struct {
	Version    int
	Issuer     issuerAndSerial
	Digest     algorithm
	Attributes asn1.RawValue `asn1:"optional"`
	Encryption algorithm
	Signature  []byte
}

type issuerAndSerial struct {
	Issuer asn1.RawValue
	Serial *big.Int
}

type attribute struct {
	OID   asn1.ObjectIdentifier
	Value asn1.RawValue // a SET of one
}

// context wraps DER in a constructed, explicit tag.
func context(tag int, der []byte) asn1.RawValue {
	return asn1.RawValue{Class: asn1.ClassContextSpecific, Tag: tag, IsCompound: true, Bytes: der}
}

// signContent makes a SignedData over content, a DER value of the given type
// that is kept inside, with authenticated attributes.
func (s *Signer) signContent(typ asn1.ObjectIdentifier, content []byte) ([]byte, error) {
	var inner asn1.RawValue
	if _, err := asn1.Unmarshal(content, &inner); err != nil {
		return nil, err
	}
	sum := sha256.Sum256(inner.Bytes) // without tag and length (RFC 2315 section 9.3)
	var list []byte
	for _, a := range []struct {
		oid   asn1.ObjectIdentifier
		value any
	}{{oidContentType, typ}, {oidMessageDigest, sum[:]}} { // in the order of their DER
		v, err := asn1.Marshal(a.value)
		if err != nil {
			return nil, err
		}
		der, err := asn1.Marshal(attribute{a.oid, asn1.RawValue{Tag: asn1.TagSet, IsCompound: true, Bytes: v}})
		if err != nil {
			return nil, err
		}
		list = append(list, der...)
	}
	signed, err := asn1.Marshal(asn1.RawValue{Tag: asn1.TagSet, IsCompound: true, Bytes: list})
	if err != nil {
		return nil, err
	}
	sig, err := s.sign(signed)
	if err != nil {
		return nil, err
	}
	return s.wrap(contentInfo{typ, context(0, content)}, context(0, list), sig)
}

// signDetached makes a SignedData over data that is kept elsewhere, without
// attributes, as authenticated variables want it.
func (s *Signer) signDetached(data []byte) ([]byte, error) {
	sig, err := s.sign(data)
	if err != nil {
		return nil, err
	}
	return s.wrap(contentInfo{Type: oidData}, asn1.RawValue{}, sig)
}

func (s *Signer) sign(data []byte) ([]byte, error) {
	sum := sha256.Sum256(data)
	return rsa.SignPKCS1v15(nil, s.key, crypto.SHA256, sum[:])
}

func (s *Signer) wrap(content contentInfo, attributes asn1.RawValue, sig []byte) ([]byte, error) {
	der, err := asn1.Marshal(signedData{
		Version: 1, Digests: []algorithm{sha256Algorithm}, Content: content, Certificates: context(0, s.Cert.Raw),
		Signers: []signerInfo{{
			Version: 1, Issuer: issuerAndSerial{asn1.RawValue{FullBytes: s.Cert.RawIssuer}, s.Cert.SerialNumber},
			Digest: sha256Algorithm, Attributes: attributes, Encryption: algorithm{oidRSA, null}, Signature: sig,
		}},
	})
	if err != nil {
		return nil, fmt.Errorf("signature: %w", err)
	}
	return der, nil
}

// Signer signs with one key. Make one with ParseSigner or from Keys.
type Signer struct {
	Cert *x509.Certificate
	key  *rsa.PrivateKey
}
