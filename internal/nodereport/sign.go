package nodereport

import (
	"bytes"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"crypto/x509"

	"github.com/google/renameio/v2"
)

// Signed is a report as it is handed over. The signature is over the report's
// JSON without spaces between its parts, so that a file may be indented.
type Signed struct {
	Report    json.RawMessage `json:"report"`
	Key       string          `json:"key"`       // first 16 hex digits of the SHA-256 of the public key
	Signature []byte          `json:"signature"` // ed25519
}

// domain keeps a signature of a report from being one of anything else.
const domain = "turnout node report v1\n"

// Sign puts a server's signature to a report.
func Sign(key ed25519.PrivateKey, r *Report) (*Signed, error) {
	b, err := json.Marshal(r)
	if err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	return &Signed{Report: b, Key: KeyID(key.Public().(ed25519.PublicKey)), Signature: ed25519.Sign(key, append([]byte(domain), b...))}, nil
}

// ErrSignature says that a report is not what a server signed.
var ErrSignature = errors.New("signature does not hold")

// Verify checks the signature by one of the keys and reads the report.
func (s *Signed) Verify(keys []ed25519.PublicKey) (*Report, error) {
	var b bytes.Buffer
	b.WriteString(domain)
	if err := json.Compact(&b, s.Report); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	for _, k := range keys {
		if KeyID(k) == s.Key && ed25519.Verify(k, b.Bytes(), s.Signature) {
			return s.Read()
		}
	}
	for _, k := range keys {
		if KeyID(k) == s.Key {
			return nil, fmt.Errorf("%w: it was changed", ErrSignature)
		}
	}
	return nil, fmt.Errorf("%w: it is by key %s, which was not given", ErrSignature, s.Key)
}

// Read reads the report, unverified.
func (s *Signed) Read() (*Report, error) {
	r := &Report{}
	if err := json.Unmarshal(s.Report, r); err != nil {
		return nil, fmt.Errorf("report: %w", err)
	}
	return r, nil
}

// KeyID names a public key.
func KeyID(k ed25519.PublicKey) string {
	h := sha256.Sum256(k)
	return hex.EncodeToString(h[:8])
}

// LoadKey reads the server's key for reports (PKCS #8, PEM), or makes one that
// only its owner can read.
func LoadKey(path string) (ed25519.PrivateKey, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newKey(path)
	}
	if err != nil {
		return nil, fmt.Errorf("key of reports: %w", err)
	}
	block, _ := pem.Decode(b)
	if block == nil {
		return nil, fmt.Errorf("key of reports %q: no PEM", path)
	}
	k, err := x509.ParsePKCS8PrivateKey(block.Bytes)
	if err != nil {
		return nil, fmt.Errorf("key of reports %q: %w", path, err)
	}
	key, ok := k.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("key of reports %q: want ed25519, it is %T", path, k)
	}
	return key, nil
}

func newKey(path string) (ed25519.PrivateKey, error) {
	_, key, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return nil, err
	}
	der, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, err
	}
	if err := renameio.WriteFile(path, pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), 0o600); err != nil {
		return nil, fmt.Errorf("key of reports: %w", err)
	}
	return key, nil
}
