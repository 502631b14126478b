package manifest

import (
	"crypto/ed25519"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func key(t *testing.T, seed byte) ed25519.PrivateKey {
	t.Helper()
	return ed25519.NewKeyFromSeed([]byte(strings.Repeat(string(rune(seed)), ed25519.SeedSize)))
}

func TestVerify(t *testing.T) {
	digest, other := DigestOf([]byte("image")), DigestOf([]byte("another image"))
	builder, stranger := key(t, 'a'), key(t, 'b')
	good, err := Sign(builder, digest)
	if err != nil {
		t.Fatal(err)
	}
	public := func(ks ...ed25519.PrivateKey) (out []ed25519.PublicKey) {
		for _, k := range ks {
			out = append(out, k.Public().(ed25519.PublicKey))
		}
		return out
	}
	flipped := append([]byte(nil), good...)
	flipped[10] ^= 1
	tests := []struct {
		name   string
		keys   []ed25519.PublicKey
		digest string
		sig    []byte
		ok     bool
	}{
		{"right key", public(builder), digest, good, true},
		{"right key beside another", public(stranger, builder), digest, good, true},
		{"other key", public(stranger), digest, good, false},
		{"no key", nil, digest, good, false},
		{"other image", public(builder), other, good, false},
		{"flipped bit", public(builder), digest, flipped, false},
		{"cut", public(builder), digest, good[:63], false},
		{"none", public(builder), digest, nil, false},
		{"plain signature over the digest text", public(builder), digest, ed25519.Sign(builder, []byte(digest)), false},
		{"key of a wrong length", []ed25519.PublicKey{{1, 2, 3}}, digest, good, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			err := Verify(tt.keys, tt.digest, tt.sig)
			if (err == nil) != tt.ok {
				t.Errorf("Verify = %v; want ok %v", err, tt.ok)
			}
			if err != nil && !errors.Is(err, ErrSignature) {
				t.Errorf("error %v does not wrap ErrSignature", err)
			}
		})
	}
}

func TestCheckDigest(t *testing.T) {
	hex := strings.Repeat("0a", 32)
	for _, tt := range []struct {
		in string
		ok bool
	}{
		{"sha256:" + hex, true},
		{"sha256:" + strings.ToUpper(hex), false},
		{"sha256:" + hex[2:], false},
		{"sha256:" + hex + "00", false},
		{"sha256:" + strings.Repeat("zz", 32), false},
		{"sha512:" + hex, false},
		{hex, false},
		{"", false},
	} {
		if err := CheckDigest(tt.in); (err == nil) != tt.ok {
			t.Errorf("CheckDigest(%q) = %v; want ok %v", tt.in, err, tt.ok)
		}
		if got, want := Short(tt.in) != "", tt.ok; got != want {
			t.Errorf("Short(%q) = %q", tt.in, Short(tt.in))
		}
	}
	if _, err := Sign(key(t, 'a'), "latest"); err == nil {
		t.Error("Sign of something that is no digest succeeded")
	}
}

func TestKeysRoundTrip(t *testing.T) {
	private := key(t, 'k')
	pem, err := MarshalPrivateKey(private)
	if err != nil {
		t.Fatal(err)
	}
	back, err := ParsePrivateKey(pem)
	if err != nil || !back.Equal(private) {
		t.Errorf("ParsePrivateKey = %v, %v", back, err)
	}
	var file []byte
	for _, k := range []ed25519.PrivateKey{private, key(t, 'l')} {
		p, err := MarshalPublicKey(k.Public().(ed25519.PublicKey))
		if err != nil {
			t.Fatal(err)
		}
		file = append(file, p...)
	}
	keys, err := ParsePublicKeys(file)
	if err != nil || len(keys) != 2 || !keys[0].Equal(private.Public()) {
		t.Errorf("ParsePublicKeys = %d keys, %v", len(keys), err)
	}
	for _, bad := range [][]byte{nil, []byte("no PEM"), pem} {
		if keys, err := ParsePublicKeys(bad); err == nil || keys != nil {
			t.Errorf("ParsePublicKeys(%.20q) = %v, nil", bad, keys)
		}
	}
	if k, err := ParsePrivateKey(file); err == nil || k != nil {
		t.Errorf("ParsePrivateKey of a public key = %v, nil", k)
	}
}

func TestEncodeDecode(t *testing.T) {
	m := &Manifest{
		SchemaVersion: Version, Name: "rack-base", Version: "1",
		Measurements: Measurements{Paths: []BootPath{{Name: "disk", PCR4: Digests{"sha384": "b", "sha256": "a"}}}},
		Health:       Health{Soak: Duration(90 * time.Second), Checks: []Check{{Name: "kernel", Kernel: "pinned"}}},
	}
	b, err := m.Encode()
	if err != nil {
		t.Fatal(err)
	}
	back, err := Decode(b)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(m, back); d != "" {
		t.Errorf("Decode(Encode(m)) differs (-want +got):\n%s", d)
	}
	again, err := back.Encode()
	if err != nil || string(again) != string(b) {
		t.Errorf("encoding twice gives other bytes: %v", err)
	}
	if p, ok := back.Measurements.Path("disk"); !ok || p.PCR4["sha256"] != "a" {
		t.Errorf("Path(disk) = %v, %v", p, ok)
	}
	if _, ok := back.Measurements.Path("floppy"); ok {
		t.Error("Path(floppy) was found")
	}
	for _, bad := range []string{"", "{}", `{"schemaVersion":2}`, `{"schemaVersion":1,"health":{"soak":"soon"}}`} {
		if m, err := Decode([]byte(bad)); err == nil || m != nil {
			t.Errorf("Decode(%q) = %v, %v; want an error and nothing else", bad, m, err)
		}
	}
}

func TestDecodeTrust(t *testing.T) {
	pub, err := MarshalPublicKey(key(t, 'a').Public().(ed25519.PublicKey))
	if err != nil {
		t.Fatal(err)
	}
	good := `{"imageKeys":"` + strings.ReplaceAll(string(pub), "\n", `\n`) + `","serverCA":""}`
	if _, err := DecodeTrust([]byte(good)); err != nil {
		t.Errorf("DecodeTrust = %v", err)
	}
	for _, bad := range []string{"", "{}", `{"imageKeys":"nobody"}`} {
		if tr, err := DecodeTrust([]byte(bad)); err == nil || tr != nil {
			t.Errorf("DecodeTrust(%q) = %v, %v", bad, tr, err)
		}
	}
}
