package server

import (
	"crypto"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"errors"
	"fmt"
	"math/big"
	"net"
	"time"

	"github.com/turnout-project/turnout/internal/api"
)

// epoch is when certificates of this CA begin to be valid. Nodes without a
// working clock start in 1970 and must still believe the server; what limits
// a certificate here is its end and the fleet state.
var epoch = time.Unix(0, 0).UTC()

// nodeUnit marks node certificates, as organizational unit.
const nodeUnit = "turnout-node"

// CA is the server's certificate authority: it signs the server's
// certificate and those of nodes, and nothing else believes in it.
type CA struct {
	Cert *x509.Certificate
	key  crypto.Signer
	good certs
}

// NewCA makes a CA that lasts 20 years. The private key is returned as PEM.
func NewCA(now time.Time) (ca *CA, certPEM, keyPEM []byte, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("making the CA: %w", err)
	}
	t := &x509.Certificate{
		Subject:   pkix.Name{CommonName: "Turnout server CA", SerialNumber: serial().Text(16)[:8]},
		NotBefore: epoch, NotAfter: now.AddDate(20, 0, 0),
		IsCA: true, BasicConstraintsValid: true, MaxPathLenZero: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := sign(t, t, key.Public(), key)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("making the CA: %w", err)
	}
	pk, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, nil, nil, fmt.Errorf("making the CA: %w", err)
	}
	certPEM = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM = pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pk})
	ca, err = ParseCA(certPEM, keyPEM)
	return ca, certPEM, keyPEM, err
}

// ParseCA reads a CA from PEM.
func ParseCA(certPEM, keyPEM []byte) (*CA, error) {
	pair, err := tls.X509KeyPair(certPEM, keyPEM)
	if err != nil {
		return nil, fmt.Errorf("server CA: %w", err)
	}
	c, err := x509.ParseCertificate(pair.Certificate[0])
	if err != nil {
		return nil, fmt.Errorf("server CA: %w", err)
	}
	key, ok := pair.PrivateKey.(crypto.Signer)
	if !ok || !c.IsCA {
		return nil, errors.New("server CA: the certificate is not a CA's")
	}
	return &CA{Cert: c, key: key}, nil
}

// ServerCertificate makes a certificate for api.ServerName and the names and
// addresses given. It is made anew at each start of the server, so its key
// is in memory only.
func (ca *CA) ServerCertificate(names []string, now time.Time) (*tls.Certificate, error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("making the server's certificate: %w", err)
	}
	t := &x509.Certificate{
		Subject:   pkix.Name{CommonName: api.ServerName},
		NotBefore: epoch, NotAfter: now.AddDate(10, 0, 0), // longer than any process lives
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth},
		DNSNames:    []string{api.ServerName},
	}
	for _, n := range names {
		if ip := net.ParseIP(n); ip != nil {
			t.IPAddresses = append(t.IPAddresses, ip)
		} else if n != "" {
			t.DNSNames = append(t.DNSNames, n)
		}
	}
	der, err := sign(t, ca.Cert, key.Public(), ca.key)
	if err != nil {
		return nil, fmt.Errorf("making the server's certificate: %w", err)
	}
	return &tls.Certificate{Certificate: [][]byte{der, ca.Cert.Raw}, PrivateKey: key}, nil
}

// nodeCertificate signs the public key of a CSR (DER) for a node with a TPM.
// Names in the CSR are ignored. The serial number is returned in hex.
func (ca *CA) nodeCertificate(csr []byte, node, ekHash string, now time.Time, life time.Duration) (cert, serial string, err error) {
	r, err := parseCSR(csr)
	if err != nil {
		return "", "", err
	}
	t := &x509.Certificate{
		Subject:   pkix.Name{CommonName: node, OrganizationalUnit: []string{nodeUnit}, SerialNumber: ekHash},
		NotBefore: epoch, NotAfter: now.Add(life),
		KeyUsage:    x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := sign(t, ca.Cert, r.PublicKey, ca.key)
	if err != nil {
		return "", "", fmt.Errorf("making the certificate of node %q: %w", node, err)
	}
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})), serialOf(t), nil
}

// serialOf returns the serial number of a certificate in hex.
func serialOf(c *x509.Certificate) string { return c.SerialNumber.Text(16) }

func parseCSR(der []byte) (*x509.CertificateRequest, error) {
	r, err := x509.ParseCertificateRequest(der)
	if err != nil {
		return nil, fmt.Errorf("certificate request: %w", err)
	}
	if k, ok := r.PublicKey.(*ecdsa.PublicKey); !ok || k.Curve != elliptic.P256() {
		return nil, errors.New("certificate request: want an ECDSA P-256 key")
	}
	return r, r.CheckSignature()
}

// check returns whom a client certificate was made for, if it is this CA's
// and still valid at now.
func (ca *CA) check(c *x509.Certificate, now time.Time) (node, ekHash string, err error) {
	pool := x509.NewCertPool()
	pool.AddCert(ca.Cert)
	_, err = c.Verify(x509.VerifyOptions{Roots: pool, CurrentTime: now, KeyUsages: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth}})
	if err != nil {
		return "", "", err
	}
	if ou := c.Subject.OrganizationalUnit; len(ou) != 1 || ou[0] != nodeUnit {
		return "", "", errors.New("not a node's certificate")
	}
	return c.Subject.CommonName, c.Subject.SerialNumber, nil
}

func sign(t, parent *x509.Certificate, pub crypto.PublicKey, key crypto.Signer) ([]byte, error) {
	t.SerialNumber = serial()
	return x509.CreateCertificate(rand.Reader, t, parent, pub, key)
}

func serial() *big.Int {
	b := make([]byte, 16)
	rand.Read(b) //nolint:errcheck // never fails since Go 1.24
	b[0] = b[0]&0x3f | 0x40
	return new(big.Int).SetBytes(b)
}
