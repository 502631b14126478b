package manifest

import (
	"bytes"
	"testing"
)

// FuzzDecode: what is read of a manifest comes back from its canonical bytes.
func FuzzDecode(f *testing.F) {
	b, err := (&Manifest{SchemaVersion: Version, Name: "demo", Version: "1", Kernel: Kernel{Release: "6.1.0-50-amd64"},
		Health: Health{Soak: 1, Checks: []Check{{Name: "a", File: "/a", Timeout: 30}}}}).Encode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Add([]byte(`{"schemaVersion":1}`))
	f.Add([]byte(`{"health":{"soak":"9999999h"}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		m, err := Decode(b)
		if err != nil {
			if m != nil {
				t.Error("a manifest beside an error")
			}
			return
		}
		_ = m.Label()
		first, err := m.Encode()
		if err != nil {
			t.Fatal(err)
		}
		again, err := Decode(first)
		if err != nil {
			t.Fatalf("its own encoding is refused: %v", err)
		}
		if second, err := again.Encode(); err != nil || !bytes.Equal(first, second) {
			t.Errorf("%s comes back as %s, %v", first, second, err)
		}
	})
}

// FuzzKeys: keys and trust files are a person's and a network's input.
func FuzzKeys(f *testing.F) {
	f.Add([]byte("-----BEGIN PUBLIC KEY-----\nAAAA\n-----END PUBLIC KEY-----\n"))
	f.Add([]byte(`{"imageKeys":""}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if ks, err := ParsePublicKeys(b); err == nil && len(ks) == 0 {
			t.Error("no keys and no error")
		}
		_, _ = ParsePrivateKey(b)
		if tr, err := DecodeTrust(b); err == nil && tr == nil {
			t.Error("no trust and no error")
		}
	})
}
