package secureboot

import (
	"bytes"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
)

// OpenSSL verifies the signature that is cut off a signed module.
func TestSignModule(t *testing.T) {
	s, err := newSigner("modules")
	if err != nil {
		t.Fatal(err)
	}
	module := []byte("\x7fELF and so on, of an odd length")
	signed, err := s.SignModule(module)
	if err != nil {
		t.Fatal(err)
	}
	again, err := s.SignModule(module)
	if err != nil || !bytes.Equal(signed, again) {
		t.Errorf("signed twice, the bytes differ (%v)", err)
	}
	if _, err := s.SignModule(signed); err == nil {
		t.Error("a signed module was signed again")
	}
	rest, ok := bytes.CutSuffix(signed, []byte(moduleMagic))
	if !ok || !bytes.HasPrefix(rest, module) {
		t.Fatal("the module is not in front of its signature, or the magic is missing")
	}
	trailer, rest := rest[len(rest)-12:], rest[len(module):len(rest)-12]
	if n := binary.BigEndian.Uint32(trailer[8:]); int(n) != len(rest) || !bytes.Equal(trailer[:8], []byte{0, 0, modulePKCS7, 0, 0, 0, 0, 0}) {
		t.Fatalf("trailer % x of a signature of %d bytes", trailer, len(rest))
	}
	openssl, err := exec.LookPath("openssl")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	dir := t.TempDir()
	_, cert, err := s.PEM()
	if err != nil {
		t.Fatal(err)
	}
	for name, b := range map[string][]byte{"module": module, "sig": rest, "cert.pem": cert, "other": []byte("another module")} {
		if err := os.WriteFile(filepath.Join(dir, name), b, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	verify := func(content string) ([]byte, error) {
		cmd := exec.Command(openssl, "smime", "-verify", "-inform", "DER", "-in", "sig", "-content", content, "-binary", "-CAfile", "cert.pem", "-purpose", "any", "-out", "/dev/null")
		cmd.Dir = dir
		return cmd.CombinedOutput()
	}
	if out, err := verify("module"); err != nil {
		t.Errorf("openssl does not verify the signature: %v\n%s", err, out)
	}
	if _, err := verify("other"); err == nil {
		t.Error("openssl verifies it over another module, too")
	}
}
