package credential

import (
	"bytes"
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/asn1"
	"errors"
	"math/big"
	"strings"
	"testing"
	"time"

	"github.com/google/go-tpm/tpm2"
)

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}

func point(k *ecdsa.PublicKey) *tpm2.TPMSECCPoint {
	raw := must(k.Bytes())
	return &tpm2.TPMSECCPoint{X: tpm2.TPM2BECCParameter{Buffer: raw[1:33]}, Y: tpm2.TPM2BECCParameter{Buffer: raw[33:65]}}
}

// akPublic makes a good attestation key, changed by each of changes.
func akPublic(changes ...func(*tpm2.TPMTPublic)) []byte {
	k := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	pub := tpm2.TPMTPublic{
		Type: tpm2.TPMAlgECC, NameAlg: tpm2.TPMAlgSHA256,
		ObjectAttributes: tpm2.TPMAObject{FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true, Restricted: true, SignEncrypt: true},
		Parameters:       ecc(tpm2.TPMECCNistP256, tpm2.TPMAlgECDSA, tpm2.TPMAlgSHA256),
		Unique:           tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, point(&k.PublicKey)),
	}
	for _, c := range changes {
		c(&pub)
	}
	return tpm2.Marshal(tpm2.New2B(pub))
}

func ecc(curve tpm2.TPMECCCurve, scheme, hash tpm2.TPMAlgID) tpm2.TPMUPublicParms {
	p := &tpm2.TPMSECCParms{CurveID: curve, Scheme: tpm2.TPMTECCScheme{Scheme: scheme}}
	if scheme == tpm2.TPMAlgECDSA {
		p.Scheme.Details = tpm2.NewTPMUAsymScheme(tpm2.TPMAlgECDSA, &tpm2.TPMSSigSchemeECDSA{HashAlg: hash})
	}
	return tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, p)
}

func TestParseAK(t *testing.T) {
	good := akPublic()
	ak, err := ParseAK(good)
	if err != nil {
		t.Fatal(err)
	}
	if len(ak.Name) != 34 || !bytes.HasPrefix(ak.Name, []byte{0, 0x0b}) || ak.Public.Curve != elliptic.P256() {
		t.Errorf("ParseAK = %+v", ak)
	}
	for name, tt := range map[string]struct {
		key  []byte
		want string
	}{
		"not restricted":     {akPublic(func(p *tpm2.TPMTPublic) { p.ObjectAttributes.Restricted = false }), "not restricted"},
		"may be duplicated":  {akPublic(func(p *tpm2.TPMTPublic) { p.ObjectAttributes.FixedTPM = false }), "fixed to its TPM"},
		"may change parent":  {akPublic(func(p *tpm2.TPMTPublic) { p.ObjectAttributes.FixedParent = false }), "fixed to its parent"},
		"imported":           {akPublic(func(p *tpm2.TPMTPublic) { p.ObjectAttributes.SensitiveDataOrigin = false }), "not made by the TPM"},
		"does not sign":      {akPublic(func(p *tpm2.TPMTPublic) { p.ObjectAttributes.SignEncrypt = false }), "no signing key"},
		"decrypts too":       {akPublic(func(p *tpm2.TPMTPublic) { p.ObjectAttributes.Decrypt = true }), "decryption key"},
		"SHA-1 name":         {akPublic(func(p *tpm2.TPMTPublic) { p.NameAlg = tpm2.TPMAlgSHA1 }), "name algorithm"},
		"SHA-1 signatures":   {akPublic(func(p *tpm2.TPMTPublic) { p.Parameters = ecc(tpm2.TPMECCNistP256, tpm2.TPMAlgECDSA, tpm2.TPMAlgSHA1) }), "SHA-256"},
		"no scheme":          {akPublic(func(p *tpm2.TPMTPublic) { p.Parameters = ecc(tpm2.TPMECCNistP256, tpm2.TPMAlgNull, 0) }), "ECDSA on P-256"},
		"weak curve":         {akPublic(func(p *tpm2.TPMTPublic) { p.Parameters = ecc(tpm2.TPMECCNistP192, tpm2.TPMAlgECDSA, tpm2.TPMAlgSHA256) }), "ECDSA on P-256"},
		"point not on curve": {akPublic(func(p *tpm2.TPMTPublic) { must(p.Unique.ECC()).X.Buffer[5] ^= 1 }), "not on P-256"},
		"point larger":       {akPublic(func(p *tpm2.TPMTPublic) { x := must(p.Unique.ECC()); x.X.Buffer = append([]byte{0}, x.X.Buffer...) }), "larger than the curve"},
		"an EK":              {rsaEK(must(rsa.GenerateKey(rand.Reader, 2048)).PublicKey), "no signing key"},
		"nothing":            {nil, "cannot be read"},
		"cut":                {good[:len(good)-1], "cannot be read"},
		"other bytes behind": {append(bytes.Clone(good), 0), "followed by other bytes"},
		"absurdly large":     {make([]byte, 1<<20), "1048576 bytes"},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := ParseAK(tt.key)
			if got != nil || !errors.Is(err, ErrKey) || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("ParseAK = %v, %v; want ErrKey with %q", got, err, tt.want)
			}
		})
	}
}

func rsaEK(k rsa.PublicKey) []byte {
	pub := tpm2.RSAEKTemplate
	pub.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: k.N.Bytes()})
	return tpm2.Marshal(tpm2.New2B(pub))
}

func eccEK(k *ecdsa.PublicKey) []byte {
	pub := tpm2.ECCEKTemplate
	pub.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, point(k))
	return tpm2.Marshal(tpm2.New2B(pub))
}

func TestMakeCredential(t *testing.T) {
	weak := tpm2.RSAEKTemplate
	weak.Unique = tpm2.NewTPMUPublicID(tpm2.TPMAlgRSA, &tpm2.TPM2BPublicKeyRSA{Buffer: bytes.Repeat([]byte{0xff}, 128)})
	open := tpm2.ECCEKTemplate
	open.ObjectAttributes.Restricted = false
	k := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	off := eccEK(&k.PublicKey)
	off[len(off)-1] ^= 1
	for name, tt := range map[string]struct{ ek, ak []byte }{
		"weak RSA":       {tpm2.Marshal(tpm2.New2B(weak)), akPublic()},
		"not restricted": {tpm2.Marshal(tpm2.New2B(open)), akPublic()},
		"off the curve":  {off, akPublic()},
		"an AK as EK":    {akPublic(), akPublic()},
		"bad AK":         {eccEK(&k.PublicKey), akPublic(func(p *tpm2.TPMTPublic) { p.ObjectAttributes.Restricted = false })},
	} {
		if blob, enc, secret, err := MakeCredential(tt.ek, tt.ak); !errors.Is(err, ErrKey) || blob != nil || enc != nil || secret != nil {
			t.Errorf("%s: MakeCredential = %x, %v; want ErrKey", name, secret, err)
		}
	}
	// That the challenge can be opened is shown with a TPM, in package device.
	_, _, one, err1 := MakeCredential(eccEK(&k.PublicKey), akPublic())
	_, _, two, err2 := MakeCredential(eccEK(&k.PublicKey), akPublic())
	if err1 != nil || err2 != nil || len(one) != SecretSize || bytes.Equal(one, two) {
		t.Errorf("secrets %x and %x, %v, %v", one, two, err1, err2)
	}
}

// authority issues EK certificates.
type authority struct {
	key  *ecdsa.PrivateKey
	cert *x509.Certificate
}

func newAuthority(parent *authority, name string) *authority {
	a := &authority{key: must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))}
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: name}, IsCA: true, BasicConstraintsValid: true,
		NotBefore: time.Unix(1e9, 0), NotAfter: time.Unix(4e9, 0), KeyUsage: x509.KeyUsageCertSign,
	}
	signer, issuer := a.key, tmpl
	if parent != nil {
		signer, issuer = parent.key, parent.cert
	}
	a.cert = must(x509.ParseCertificate(must(x509.CreateCertificate(rand.Reader, tmpl, issuer, &a.key.PublicKey, signer))))
	return a
}

// issue makes an EK certificate with a critical SAN of TPM attributes, as
// vendors do.
func (a *authority) issue(key crypto.PublicKey, change func(*x509.Certificate)) []byte {
	attributes := must(asn1.Marshal(pkix.Name{ExtraNames: []pkix.AttributeTypeAndValue{
		{Type: asn1.ObjectIdentifier{2, 23, 133, 2, 1}, Value: "id:49465800"},
	}}.ToRDNSequence()))
	san := must(asn1.Marshal([]asn1.RawValue{{Class: asn1.ClassContextSpecific, Tag: 4, IsCompound: true, Bytes: attributes}}))
	tmpl := &x509.Certificate{
		SerialNumber: big.NewInt(2), NotBefore: time.Unix(1e9, 0), NotAfter: time.Unix(4e9, 0),
		KeyUsage: x509.KeyUsageKeyEncipherment, UnknownExtKeyUsage: []asn1.ObjectIdentifier{oidEKCertificate},
		ExtraExtensions: []pkix.Extension{{Id: oidSAN, Critical: true, Value: san}}, BasicConstraintsValid: true,
	}
	if change != nil {
		change(tmpl)
	}
	return must(x509.CreateCertificate(rand.Reader, tmpl, a.cert, key, a.key))
}

func TestVerifyEKCertificate(t *testing.T) {
	root := newAuthority(nil, "TPM vendor root")
	mid := newAuthority(root, "TPM vendor issuer")
	stranger := newAuthority(nil, "TPM vendor root")
	ecKey := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	rsaKey := must(rsa.GenerateKey(rand.Reader, 2048))
	ek := eccEK(&ecKey.PublicKey)
	pool := func(as ...*authority) *x509.CertPool {
		p := x509.NewCertPool()
		for _, a := range as {
			p.AddCert(a.cert)
		}
		return p
	}
	now := time.Unix(2e9, 0)
	for name, tt := range map[string]struct {
		der   []byte
		roots *x509.CertPool
		ek    []byte
		now   time.Time
		want  string // "" means accepted
	}{
		"good":           {mid.issue(&ecKey.PublicKey, nil), pool(root), ek, now, ""},
		"good RSA":       {mid.issue(&rsaKey.PublicKey, nil), pool(root), rsaEK(rsaKey.PublicKey), now, ""},
		"padding behind": {append(mid.issue(&ecKey.PublicKey, nil), make([]byte, 300)...), pool(root), ek, now, ""},
		"no usage named": {mid.issue(&ecKey.PublicKey, func(c *x509.Certificate) { c.UnknownExtKeyUsage = nil }), pool(root), ek, now, ""},
		"other usage": {mid.issue(&ecKey.PublicKey, func(c *x509.Certificate) {
			c.UnknownExtKeyUsage, c.ExtKeyUsage = nil, []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		}), pool(root), ek, now, "usage"},
		"an authority":      {mid.issue(&ecKey.PublicKey, func(c *x509.Certificate) { c.IsCA = true }), pool(root), ek, now, "authority"},
		"for another key":   {mid.issue(&rsaKey.PublicKey, nil), pool(root), ek, now, "another key"},
		"unknown root":      {mid.issue(&ecKey.PublicKey, nil), pool(stranger), ek, now, "chain"},
		"root by name only": {stranger.issue(&ecKey.PublicKey, nil), pool(root), ek, now, "chain"},
		"no roots":          {mid.issue(&ecKey.PublicKey, nil), nil, ek, now, "no TPM vendor roots"},
		"expired":           {mid.issue(&ecKey.PublicKey, nil), pool(root), ek, time.Unix(5e9, 0), "chain"},
		"unknown critical extension": {mid.issue(&ecKey.PublicKey, func(c *x509.Certificate) {
			c.ExtraExtensions = append(c.ExtraExtensions, pkix.Extension{Id: asn1.ObjectIdentifier{1, 2, 3}, Critical: true, Value: []byte{5, 0}})
		}), pool(root), ek, now, "chain"},
		"rubbish": {[]byte("rubbish"), pool(root), ek, now, "not DER"},
		"nothing": {nil, pool(root), ek, now, "not DER"},
	} {
		t.Run(name, func(t *testing.T) {
			err := VerifyEKCertificate(tt.der, tt.roots, pool(mid), tt.ek, tt.now)
			switch {
			case tt.want == "" && err != nil:
				t.Errorf("refused: %v", err)
			case tt.want != "" && (!errors.Is(err, ErrCertificate) || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("error = %v; want ErrCertificate with %q", err, tt.want)
			}
			if tt.want == "" && !SameKey(tt.der, tt.ek) || tt.want == "another key" && SameKey(tt.der, tt.ek) {
				t.Error("SameKey does not agree")
			}
		})
	}
}

// The chain that a TPM keeps: certificates one after the other, and padding.
func TestParseChain(t *testing.T) {
	root := newAuthority(nil, "root")
	one, two := newAuthority(root, "one"), newAuthority(root, "two")
	both := append(bytes.Clone(one.cert.Raw), two.cert.Raw...)
	for name, tt := range map[string]struct {
		der  []byte
		want int
		err  string
	}{
		"none":              {nil, 0, ""},
		"two":               {both, 2, ""},
		"padding of zeros":  {append(bytes.Clone(both), make([]byte, 100)...), 2, ""},
		"padding of ones":   {append(bytes.Clone(both), bytes.Repeat([]byte{0xff}, 9)...), 2, ""},
		"cut":               {both[:len(both)-1], 0, "certificate 1"},
		"no certificate":    {[]byte{0x30, 0x03, 2, 1, 5}, 0, "certificate 0"},
		"more than a TPM's": {make([]byte, MaxChain+1), 0, "bytes"},
	} {
		got, err := ParseChain(tt.der)
		if tt.err == "" && (err != nil || len(got) != tt.want) || tt.err != "" && (!errors.Is(err, ErrCertificate) || !strings.Contains(err.Error(), tt.err)) {
			t.Errorf("%s: %d certificates, %v; want %d, %q", name, len(got), err, tt.want, tt.err)
		}
	}
}

// Certificates of older TPMs mark the key for OAEP, which crypto/x509 does
// not know.
func TestOAEPKey(t *testing.T) {
	k := must(rsa.GenerateKey(rand.Reader, 2048))
	spki := must(asn1.Marshal(struct {
		Algorithm pkix.AlgorithmIdentifier
		Key       asn1.BitString
	}{
		pkix.AlgorithmIdentifier{Algorithm: oidRSAESOAEP, Parameters: asn1.NullRawValue},
		asn1.BitString{Bytes: x509.MarshalPKCS1PublicKey(&k.PublicKey), BitLength: 8 * len(x509.MarshalPKCS1PublicKey(&k.PublicKey))},
	}))
	if got := oaepKey(spki); !k.PublicKey.Equal(got) {
		t.Errorf("oaepKey = %v", got)
	}
	if got := oaepKey(must(x509.MarshalPKIXPublicKey(&k.PublicKey))); got != nil {
		t.Errorf("oaepKey of a plain RSA key = %v", got)
	}
	if got := oaepKey([]byte("rubbish")); got != nil {
		t.Errorf("oaepKey of rubbish = %v", got)
	}
}

func TestEKHash(t *testing.T) {
	k := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	one, err1 := EKHash(eccEK(&k.PublicKey))
	two, err2 := EKHash(eccEK(&k.PublicKey))
	if err1 != nil || err2 != nil || one != two || len(one) != 64 {
		t.Errorf("EKHash = %q, %q, %v, %v", one, two, err1, err2)
	}
	if h, err := EKHash(akPublic()); err == nil {
		t.Errorf("EKHash of an attestation key = %q", h)
	}
}

func FuzzPublic(f *testing.F) {
	f.Add(akPublic())
	f.Add(eccEK(&must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader)).PublicKey))
	f.Fuzz(func(t *testing.T, b []byte) {
		if ak, err := ParseAK(b); (ak == nil) != (err != nil) {
			t.Fatalf("ParseAK = %v, %v", ak, err)
		}
		if h, err := EKHash(b); (h == "") != (err != nil) {
			t.Fatalf("EKHash = %q, %v", h, err)
		}
		MakeCredential(b, b) //nolint:errcheck // only panics matter
	})
}

func FuzzEKCertificate(f *testing.F) {
	root := newAuthority(nil, "root")
	k := must(ecdsa.GenerateKey(elliptic.P256(), rand.Reader))
	f.Add(root.issue(&k.PublicKey, nil))
	ek := eccEK(&k.PublicKey)
	f.Fuzz(func(t *testing.T, b []byte) {
		if cert, err := ParseEKCertificate(b); (cert == nil) != (err != nil) {
			t.Fatalf("ParseEKCertificate = %v, %v", cert, err)
		}
		SameKey(b, ek)
	})
}
