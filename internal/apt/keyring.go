package apt

import (
	"bytes"
	"encoding/base64"
	"fmt"
	"os"
	"strings"
)

// binaryKeyring returns the path of a keyring that gpgv can read: keyring
// itself, or a copy without the ASCII armour (RFC 4880, section 6.2).
func binaryKeyring(keyring string) (path string, cleanup func(), err error) {
	b, err := os.ReadFile(keyring)
	if err != nil {
		return "", nil, fmt.Errorf("keyring: %w", err)
	}
	if !bytes.HasPrefix(bytes.TrimSpace(b), []byte("-----BEGIN PGP")) {
		return keyring, func() {}, nil
	}
	raw, err := dearmour(string(b))
	if err != nil {
		return "", nil, fmt.Errorf("keyring %s: %w", keyring, err)
	}
	f, err := os.CreateTemp("", "keyring-*.gpg")
	if err != nil {
		return "", nil, err
	}
	defer f.Close()
	cleanup = func() { os.Remove(f.Name()) }
	if _, err := f.Write(raw); err != nil {
		cleanup()
		return "", nil, err
	}
	return f.Name(), cleanup, nil
}

// dearmour joins the bytes of all armoured blocks. gpgv checks what is in them.
func dearmour(text string) ([]byte, error) {
	var out []byte
	var body strings.Builder
	state := "outside"
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		switch {
		case strings.HasPrefix(line, "-----BEGIN PGP"):
			state = "header"
			body.Reset()
		case strings.HasPrefix(line, "-----END PGP"):
			b, err := base64.StdEncoding.DecodeString(body.String())
			if err != nil {
				return nil, err
			}
			out = append(out, b...)
			state = "outside"
		case state == "header" && line == "":
			state = "body"
		case state == "body" && !strings.HasPrefix(line, "="):
			body.WriteString(line)
		}
	}
	if len(out) == 0 {
		return nil, fmt.Errorf("no armoured key in it")
	}
	return out, nil
}
