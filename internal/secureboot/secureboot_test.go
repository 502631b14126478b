package secureboot

import (
	"bytes"
	"crypto/rand"
	"crypto/rsa"
	"encoding/binary"
	"encoding/pem"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/tpm/measure"
)

// ours are keys made once for all tests; others are a stranger's.
var ours, others = sync.OnceValue(func() *Keys { return generate("Turnout test") }), sync.OnceValue(func() *Keys { return generate("stranger") })

func generate(owner string) *Keys {
	k, err := Generate(owner)
	if err != nil {
		panic(err)
	}
	return k
}

// need skips the test, or fails it where CI is set, if a tool is missing.
func need(t *testing.T, tools ...string) {
	t.Helper()
	for _, tool := range tools {
		if _, err := exec.LookPath(tool); err != nil {
			if os.Getenv("CI") != "" {
				t.Fatal(err)
			}
			t.Skip(err)
		}
	}
}

func run(t *testing.T, args ...string) (string, error) {
	t.Helper()
	out, err := exec.CommandContext(t.Context(), args[0], args[1:]...).CombinedOutput()
	return string(out), err
}

func write(t *testing.T, name string, b []byte) string {
	t.Helper()
	p := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(p, b, 0o600); err != nil {
		t.Fatal(err)
	}
	return p
}

func certFile(t *testing.T, s *Signer) string {
	t.Helper()
	_, cert, err := s.PEM()
	if err != nil {
		t.Fatal(err)
	}
	return write(t, "cert.pem", cert)
}

// The signature is one that sbverify believes, over the file as it is shipped.
func TestSign(t *testing.T) {
	for name, pe := range map[string][]byte{
		"program":               program("hello"),
		"length not times 8":    append(program("hello"), 1, 2, 3),
		"with bytes at its end": append(program("hello"), make([]byte, 4096)...),
	} {
		t.Run(name, func(t *testing.T) {
			signed, err := ours().DB.Sign(pe)
			if err != nil {
				t.Fatal(err)
			}
			again, err := ours().DB.Sign(pe)
			if err != nil || !bytes.Equal(signed, again) {
				t.Errorf("signed twice: %v; want the same bytes", err)
			}
			padded := append(bytes.Clone(pe), make([]byte, (8-len(pe)%8)%8)...)
			before, err1 := measure.Authenticode(padded)
			after, err2 := measure.Authenticode(signed)
			if d := cmp.Diff(before, after); d != "" || err1 != nil || err2 != nil {
				t.Errorf("digest before and after signing: %v, %v\n%s", err1, err2, d)
			}
			if len(signed)%8 != 0 {
				t.Errorf("signed file has %d bytes", len(signed))
			}
			if _, err := ours().DB.Sign(signed); !errors.Is(err, ErrSigned) {
				t.Errorf("signing it again: %v; want ErrSigned", err)
			}
			need(t, "sbverify")
			file := write(t, "p.efi", signed)
			if out, err := run(t, "sbverify", "--cert", certFile(t, ours().DB), file); err != nil {
				t.Errorf("sbverify: %v\n%s", err, out)
			}
			if out, err := run(t, "sbverify", "--cert", certFile(t, others().DB), file); err == nil {
				t.Errorf("sbverify with another certificate succeeded: %s", out)
			}
			signed[0x210] ^= 1
			if out, err := run(t, "sbverify", "--cert", certFile(t, ours().DB), write(t, "q.efi", signed)); err == nil {
				t.Errorf("sbverify of a changed file succeeded: %s", out)
			}
		})
	}
}

func TestSignRefuses(t *testing.T) {
	good := program("x")
	noRoom := bytes.Clone(good)
	binary.LittleEndian.PutUint32(noRoom[0x40+24+108:], 4)
	for name, pe := range map[string][]byte{"nothing": nil, "text": []byte(strings.Repeat("MZ", 100)), "cut": good[:0x80], "no place": noRoom} {
		if out, err := ours().DB.Sign(pe); err == nil || out != nil {
			t.Errorf("%s: %d bytes, %v", name, len(out), err)
		}
	}
}

func TestKeys(t *testing.T) {
	key, cert, err := ours().DB.PEM()
	if err != nil {
		t.Fatal(err)
	}
	_, foreign, err := others().DB.PEM()
	if err != nil {
		t.Fatal(err)
	}
	s, err := ParseSigner(key, cert)
	if err != nil || s.ID() != ours().DB.ID() {
		t.Fatalf("ParseSigner = %+v, %v", s, err)
	}
	weak, err := rsa.GenerateKey(rand.Reader, 1024)
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		key, cert []byte
		want      string
	}{
		"no key":          {nil, cert, "PEM"},
		"no certificate":  {key, nil, "PEM"},
		"another's":       {key, foreign, "another key"},
		"swapped":         {cert, key, "certificate"},
		"weak key":        {pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: pkcs1(weak)}), cert, "2048 bits"},
		"rubbish in PEM":  {pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}), cert, "2048 bits"},
		"not certificate": {key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}), "certificate"},
	} {
		if _, err := ParseSigner(tt.key, tt.cert); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %q", name, err, tt.want)
		}
	}
}

// The authenticated variables are signed by the key above, over what the
// specification says: openssl agrees.
func TestVariables(t *testing.T) {
	need(t, "openssl")
	vars, err := ours().Variables()
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for i, by := range []*Signer{ours().KEK, ours().PK, ours().PK} {
		v := vars[i]
		names = append(names, v.Name)
		size := binary.LittleEndian.Uint32(v.Auth[16:])
		sig, list := v.Auth[16+24:16+size], v.Auth[16+size:]
		if !bytes.Equal(list, v.List) || !bytes.Contains(list, []*Signer{ours().DB, ours().KEK, ours().PK}[i].Cert.Raw) {
			t.Errorf("%s: the list is not what follows the signature", v.Name)
		}
		var signed []byte
		for _, c := range []byte(v.Name) {
			signed = append(signed, c, 0)
		}
		signed = append(signed, v.guid[:]...)
		signed = append(signed, 0x27, 0, 0, 0)
		signed = append(signed, v.Auth[:16]...)
		signed = append(signed, list...)
		boxed, err := marshalContentInfo(sig)
		if err != nil {
			t.Fatal(err)
		}
		out, err := run(t, "openssl", "smime", "-verify", "-inform", "DER", "-binary", "-in", write(t, "sig", boxed), "-content", write(t, "data", signed),
			"-CAfile", certFile(t, by), "-purpose", "any", "-out", os.DevNull)
		if err != nil {
			t.Errorf("%s: %v\n%s", v.Name, err, out)
		}
	}
	if d := cmp.Diff([]string{"db", "KEK", "PK"}, names); d != "" {
		t.Errorf("order: %s", d)
	}
}

func TestEnrolOVMF(t *testing.T) {
	const empty, full = "/usr/share/OVMF/OVMF_VARS_4M.fd", "/usr/share/OVMF/OVMF_VARS_4M.snakeoil.fd"
	b, err := os.ReadFile(empty)
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	out, err := ours().EnrolOVMF(b)
	if err != nil || len(out) != len(b) {
		t.Fatalf("%d bytes, %v", len(out), err)
	}
	at, end, err := variables(out)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for binary.LittleEndian.Uint16(out[at:]) == varStart {
		name, next, err := variable(out[:end], at)
		if err != nil {
			t.Fatal(err)
		}
		names, at = append(names, name), next
	}
	if d := cmp.Diff([]string{"db", "KEK", "PK", "SecureBootEnable"}, names); d != "" {
		t.Errorf("variables (-want +got):\n%s", d)
	}
	if _, err := ours().EnrolOVMF(out); err == nil || !strings.Contains(err.Error(), "set already") {
		t.Errorf("enrolled twice: %v", err)
	}
	other, err := os.ReadFile(full)
	if err != nil {
		t.Fatal(err)
	}
	for name, bad := range map[string][]byte{"keys of somebody": other, "nothing": nil, "cut": b[:100], "no store": bytes.Replace(b, guidAuthStore[:4], []byte("none"), 1)} {
		if out, err := ours().EnrolOVMF(bad); err == nil || out != nil {
			t.Errorf("%s: %d bytes, %v", name, len(out), err)
		}
	}
}
