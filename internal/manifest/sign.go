package manifest

import (
	"crypto/ed25519"
	"crypto/sha256"
	"crypto/x509"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"
)

// Trust chain of an image:
//
//	builder's key --ed25519--> image digest = SHA-256 of the OCI manifest
//	OCI manifest --digests--> config (Manifest) and every layer
//	Manifest --root hash--> dm-verity tree --> every block of the root
//
// A node carries the builder's public keys inside its (measured) initrd.

// signContext keeps an image signature from being taken for any other.
const signContext = "turnout image signature v1\n"

// ErrSignature is wrapped by every error of a signature that does not hold.
var ErrSignature = errors.New("image signature is not valid")

// SignedMessage returns what is signed of an image: for signers that have the
// key where no program gets it.
func SignedMessage(digest string) ([]byte, error) {
	if err := CheckDigest(digest); err != nil {
		return nil, err
	}
	return []byte(signContext + digest), nil
}

// Sign returns the 64-byte ed25519 signature of an image digest
// ("sha256:" + 64 hex digits).
func Sign(key ed25519.PrivateKey, digest string) ([]byte, error) {
	if err := CheckDigest(digest); err != nil {
		return nil, err
	}
	return ed25519.Sign(key, []byte(signContext+digest)), nil
}

// Verify checks sig against any of keys. No keys is an error.
func Verify(keys []ed25519.PublicKey, digest string, sig []byte) error {
	if err := CheckDigest(digest); err != nil {
		return err
	}
	if len(keys) == 0 {
		return fmt.Errorf("%w: no trusted image key is configured", ErrSignature)
	}
	for _, k := range keys {
		if len(k) == ed25519.PublicKeySize && ed25519.Verify(k, []byte(signContext+digest), sig) {
			return nil
		}
	}
	return fmt.Errorf("%w: %s was not signed by any of the %d trusted keys", ErrSignature, digest, len(keys))
}

// CheckDigest accepts "sha256:" followed by 64 lower-case hex digits.
func CheckDigest(d string) error {
	h, ok := strings.CutPrefix(d, "sha256:")
	if ok && len(h) == 64 && strings.ToLower(h) == h {
		if _, err := hex.DecodeString(h); err == nil {
			return nil
		}
	}
	return fmt.Errorf("digest %q: want sha256: and 64 hexadecimal digits", d)
}

// DigestOf returns the digest of b in the form "sha256:…".
func DigestOf(b []byte) string {
	s := sha256.Sum256(b)
	return "sha256:" + hex.EncodeToString(s[:])
}

// ShortLen is the number of hex digits of an image digest that appear in the
// file name of a UKI on a node's ESP.
const ShortLen = 12

// Short returns the first ShortLen hex digits of a digest, or "" for one that
// is not well formed.
func Short(digest string) string {
	if CheckDigest(digest) != nil {
		return ""
	}
	return strings.TrimPrefix(digest, "sha256:")[:ShortLen]
}

// MarshalPrivateKey and MarshalPublicKey write keys as PEM (PKCS #8, PKIX).
func MarshalPrivateKey(k ed25519.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalPKCS8PrivateKey(k)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: der}), nil
}

// MarshalPublicKey writes a public key as PEM (PKIX).
func MarshalPublicKey(k ed25519.PublicKey) ([]byte, error) {
	der, err := x509.MarshalPKIXPublicKey(k)
	if err != nil {
		return nil, err
	}
	return pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der}), nil
}

// ParsePrivateKey reads the first PEM block of b as an ed25519 private key.
func ParsePrivateKey(b []byte) (ed25519.PrivateKey, error) {
	p, _ := pem.Decode(b)
	if p == nil {
		return nil, errors.New("image key: no PEM block; make one with `imgbuild keygen`")
	}
	k, err := x509.ParsePKCS8PrivateKey(p.Bytes)
	if err != nil {
		return nil, fmt.Errorf("image key: %w", err)
	}
	ed, ok := k.(ed25519.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("image key is a %T; only ed25519 is supported", k)
	}
	return ed, nil
}

// ParsePublicKeys reads every PEM block of b as an ed25519 public key.
func ParsePublicKeys(b []byte) ([]ed25519.PublicKey, error) {
	var keys []ed25519.PublicKey
	for {
		p, rest := pem.Decode(b)
		if p == nil {
			break
		}
		b = rest
		k, err := x509.ParsePKIXPublicKey(p.Bytes)
		if err != nil {
			return nil, fmt.Errorf("image public key: %w", err)
		}
		ed, ok := k.(ed25519.PublicKey)
		if !ok {
			return nil, fmt.Errorf("image public key is a %T; only ed25519 is supported", k)
		}
		keys = append(keys, ed)
	}
	if len(keys) == 0 {
		return nil, errors.New("image public key: no PEM block")
	}
	return keys, nil
}
