package bmc

import (
	"crypto/aes"
	"crypto/cipher"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"github.com/google/renameio/v2"
)

// Keys seals passwords with AES-256-GCM. What is sealed for one name opens
// for no other, so that records in a store cannot be swapped.
//
// Whoever has the store alone (a backup, a copy of the database) learns no
// password; whoever can read the key file too, learns all. nil seals nothing.
type Keys struct{ aead cipher.AEAD }

// NewKeys takes a key of 32 bytes.
func NewKeys(key []byte) (*Keys, error) {
	if len(key) != 32 {
		return nil, fmt.Errorf("key of BMC passwords: %d bytes; want 32", len(key))
	}
	b, err := aes.NewCipher(key)
	if err != nil {
		return nil, err
	}
	aead, err := cipher.NewGCM(b)
	return &Keys{aead}, err
}

// LoadKeys reads the key file (64 hex digits), or makes one that only its
// owner can read. A file that others can read is refused.
func LoadKeys(path string) (*Keys, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		key := make([]byte, 32)
		rand.Read(key) //nolint:errcheck // never fails since Go 1.24
		b = []byte(hex.EncodeToString(key) + "\n")
		if err := renameio.WriteFile(path, b, 0o600); err != nil {
			return nil, fmt.Errorf("key of BMC passwords: %w", err)
		}
	} else if err != nil {
		return nil, fmt.Errorf("key of BMC passwords: %w", err)
	}
	if st, err := os.Stat(path); err == nil && st.Mode().Perm()&0o077 != 0 {
		return nil, fmt.Errorf("key of BMC passwords %q can be read by others: chmod 600 it", path)
	}
	key, err := hex.DecodeString(strings.TrimSpace(string(b)))
	if err != nil {
		return nil, fmt.Errorf("key of BMC passwords %q: want 64 hex digits", path)
	}
	return NewKeys(key)
}

// Seal encrypts a secret under a name.
func (k *Keys) Seal(name, secret string) []byte {
	nonce := make([]byte, k.aead.NonceSize())
	rand.Read(nonce) //nolint:errcheck // never fails since Go 1.24
	return k.aead.Seal(nonce, nonce, []byte(secret), []byte("turnout bmc "+name))
}

// Open is the opposite of Seal.
func (k *Keys) Open(name string, sealed []byte) (string, error) {
	n := k.aead.NonceSize()
	if len(sealed) < n {
		return "", fmt.Errorf("BMC password of %s: too short", name)
	}
	b, err := k.aead.Open(nil, sealed[:n], sealed[n:], []byte("turnout bmc "+name))
	if err != nil {
		return "", fmt.Errorf("BMC password of %s does not open with this server's key (bmc.key): set it again with `pxeserver bmc set`", name)
	}
	return string(b), nil
}
