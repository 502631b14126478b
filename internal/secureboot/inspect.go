package secureboot

import (
	"bytes"
	"crypto/sha256"
	"crypto/x509"
	"encoding/asn1"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"

	"github.com/turnout-project/turnout/internal/tpm/measure"
)

// Signature is one signature of an EFI program.
type Signature struct {
	Cert *x509.Certificate // of the signer, as the program brings it: nobody vouches for it; nil if it cannot be read
	Err  error             // why the signature does not hold for these bytes and that certificate; nil when it does
}

// Signatures reads the signatures at the end of an EFI program and holds each
// against the bytes and the certificate beside it. None is no error. Whether
// a certificate is one to believe is the caller's to say.
func Signatures(pe []byte) ([]Signature, error) {
	dir, err := certificateTable(pe)
	if err != nil {
		return nil, err
	}
	le := binary.LittleEndian
	at, size := uint64(le.Uint32(pe[dir:])), uint64(le.Uint32(pe[dir+4:]))
	if at == 0 && size == 0 {
		return nil, nil
	}
	if at+size > uint64(len(pe)) {
		return nil, errors.New("signatures reach beyond the end of the program")
	}
	digests, err := measure.Authenticode(pe)
	if err != nil {
		return nil, err
	}
	digest, err := hex.DecodeString(digests["sha256"])
	if err != nil {
		return nil, err
	}
	var all []Signature
	for table := pe[at : at+size]; len(table) > 0; {
		if len(table) < 8 || uint64(le.Uint32(table)) < 8 || uint64(le.Uint32(table)) > uint64(len(table)) {
			return nil, errors.New("table of signatures is damaged")
		}
		n := int(le.Uint32(table))
		if le.Uint16(table[6:]) == 0x0002 { // PKCS_SIGNED_DATA
			all = append(all, checkSignature(table[8:n], digest))
		}
		table = table[min((n+7)&^7, len(table)):]
	}
	return all, nil
}

// checkSignature holds one PKCS #7 message against the Authenticode digest.
func checkSignature(der, digest []byte) Signature {
	var outer contentInfo
	if _, err := asn1.Unmarshal(der, &outer); err != nil || !outer.Type.Equal(oidSignedData) {
		return Signature{Err: errors.New("not a PKCS #7 signature")}
	}
	var sd signedData
	if _, err := asn1.Unmarshal(outer.Content.Bytes, &sd); err != nil {
		return Signature{Err: fmt.Errorf("PKCS #7: %w", err)}
	}
	certs, err := x509.ParseCertificates(sd.Certificates.Bytes)
	if err != nil || len(sd.Signers) != 1 {
		return Signature{Err: errors.New("PKCS #7 without one signer and its certificate")}
	}
	signer := sd.Signers[0]
	var s Signature
	for _, c := range certs {
		if bytes.Equal(c.RawIssuer, signer.Issuer.Issuer.FullBytes) && signer.Issuer.Serial != nil && c.SerialNumber.Cmp(signer.Issuer.Serial) == 0 {
			s.Cert = c
		}
	}
	if s.Cert == nil {
		return Signature{Err: errors.New("the signer's certificate is missing")}
	}
	s.Err = checkSigner(s.Cert, sd.Content, signer, digest)
	return s
}

func checkSigner(cert *x509.Certificate, content contentInfo, signer signerInfo, digest []byte) error {
	var d indirectData
	if !content.Type.Equal(oidSPCIndirect) {
		return errors.New("not the signature of a program")
	}
	if _, err := asn1.Unmarshal(content.Content.Bytes, &d); err != nil {
		return fmt.Errorf("signed content: %w", err)
	}
	if !d.Digest.Algorithm.OID.Equal(oidSHA256) || !signer.Digest.OID.Equal(oidSHA256) {
		return errors.New("made with another hash than SHA-256")
	}
	if !bytes.Equal(d.Digest.Digest, digest) {
		return fmt.Errorf("it is of another program: digest %x, this one is %x", d.Digest.Digest, digest)
	}
	var inner asn1.RawValue
	if _, err := asn1.Unmarshal(content.Content.Bytes, &inner); err != nil {
		return fmt.Errorf("signed content: %w", err)
	}
	sum, found := sha256.Sum256(inner.Bytes), false
	for rest := signer.Attributes.Bytes; len(rest) > 0; {
		var a attribute
		var err error
		if rest, err = asn1.Unmarshal(rest, &a); err != nil {
			return fmt.Errorf("attributes: %w", err)
		}
		var v []byte
		if a.OID.Equal(oidMessageDigest) {
			if _, err := asn1.Unmarshal(a.Value.Bytes, &v); err != nil || !bytes.Equal(v, sum[:]) {
				return errors.New("its message digest is another")
			}
			found = true
		}
	}
	if !found {
		return errors.New("it has no message digest")
	}
	signed, err := asn1.Marshal(asn1.RawValue{Tag: asn1.TagSet, IsCompound: true, Bytes: signer.Attributes.Bytes})
	if err != nil {
		return err
	}
	return cert.CheckSignature(x509.SHA256WithRSA, signed, signer.Signature)
}
