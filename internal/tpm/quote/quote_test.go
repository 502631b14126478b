package quote

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
	"strings"
	"testing"

	"github.com/google/go-tpm/tpm2"
)

// signer is a TPM that signs what it is told to.
type signer struct {
	key *ecdsa.PrivateKey
	ak  []byte // TPM2B_PUBLIC
}

func newSigner(t testing.TB) *signer {
	t.Helper()
	k, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := k.PublicKey.Bytes()
	if err != nil {
		t.Fatal(err)
	}
	pub := tpm2.TPMTPublic{
		Type: tpm2.TPMAlgECC, NameAlg: tpm2.TPMAlgSHA256,
		ObjectAttributes: tpm2.TPMAObject{FixedTPM: true, FixedParent: true, SensitiveDataOrigin: true, UserWithAuth: true, Restricted: true, SignEncrypt: true},
		Parameters: tpm2.NewTPMUPublicParms(tpm2.TPMAlgECC, &tpm2.TPMSECCParms{
			Scheme:  tpm2.TPMTECCScheme{Scheme: tpm2.TPMAlgECDSA, Details: tpm2.NewTPMUAsymScheme(tpm2.TPMAlgECDSA, &tpm2.TPMSSigSchemeECDSA{HashAlg: tpm2.TPMAlgSHA256})},
			CurveID: tpm2.TPMECCNistP256,
		}),
		Unique: tpm2.NewTPMUPublicID(tpm2.TPMAlgECC, &tpm2.TPMSECCPoint{X: tpm2.TPM2BECCParameter{Buffer: raw[1:33]}, Y: tpm2.TPM2BECCParameter{Buffer: raw[33:]}}),
	}
	return &signer{key: k, ak: tpm2.Marshal(tpm2.New2B(pub))}
}

var be = binary.BigEndian

func sized(b []byte) []byte { return append(be.AppendUint16(nil, uint16(len(b))), b...) }

// sign makes a TPMT_SIGNATURE.
func (s *signer) sign(t testing.TB, quote []byte) []byte {
	t.Helper()
	sum := sha256.Sum256(quote)
	r, x, err := ecdsa.Sign(rand.Reader, s.key, sum[:])
	if err != nil {
		t.Fatal(err)
	}
	b := be.AppendUint16(nil, 0x0018)
	b = be.AppendUint16(b, 0x000b)
	b = append(b, sized(r.Bytes())...)
	return append(b, sized(x.Bytes())...)
}

// claim is what a TPMS_ATTEST says.
type claim struct {
	magic      uint32
	typ        uint16
	extra      []byte
	clock      uint64
	reset      uint32
	selections []selection
	digest     []byte
	tail       string
}

func (c claim) bytes() []byte {
	b := be.AppendUint32(nil, c.magic)
	b = be.AppendUint16(b, c.typ)
	b = append(b, sized([]byte("signer"))...)
	b = append(b, sized(c.extra)...)
	b = be.AppendUint64(b, c.clock)
	b = be.AppendUint32(b, c.reset)
	b = append(be.AppendUint32(b, 0), 1)
	b = be.AppendUint64(b, 0x20191023)
	b = be.AppendUint32(b, uint32(len(c.selections)))
	for _, s := range c.selections {
		b = append(be.AppendUint16(b, s.alg), 3)
		bits := make([]byte, 3)
		for _, p := range s.pcrs {
			bits[p/8] |= 1 << (p % 8)
		}
		b = append(b, bits...)
	}
	b = append(b, sized(c.digest)...)
	return append(b, c.tail...)
}

// answer is a whole, honest answer of a TPM; tests break it.
type answer struct {
	expect Expect
	claim  claim
	quote  []byte // nil: made from claim
	sig    []byte // nil: made from quote
	pcrs   map[int][]byte
}

func value(seed byte, size int) []byte {
	b := make([]byte, size)
	for i := range b {
		b[i] = seed
	}
	return b
}

func honest(s *signer) *answer {
	nonce := value(0x4e, 32)
	pcrs := map[int][]byte{0: value(1, 32), 4: value(2, 32), 7: value(3, 32), 11: value(4, 32)}
	h := sha256.New()
	for _, p := range []int{0, 4, 7, 11} {
		h.Write(pcrs[p])
	}
	return &answer{
		expect: Expect{AK: s.ak, Nonce: nonce, Bank: "sha256", PCRs: []int{11, 0, 7, 4}},
		claim: claim{magic: magicTPM, typ: typeQuote, extra: nonce, clock: 1000, reset: 5,
			selections: []selection{{0x000b, []int{0, 4, 7, 11}}}, digest: h.Sum(nil)},
		pcrs: pcrs,
	}
}

func (a *answer) verify(t testing.TB, s *signer) (Attested, error) {
	t.Helper()
	q, sig := a.quote, a.sig
	if q == nil {
		q = a.claim.bytes()
	}
	if sig == nil {
		sig = s.sign(t, q)
	}
	return Verify(a.expect, q, sig, a.pcrs)
}

func TestVerify(t *testing.T) {
	s := newSigner(t)
	a := honest(s)
	got, err := a.verify(t, s)
	if err != nil {
		t.Fatal(err)
	}
	if got.Bank != "sha256" || len(got.PCRs) != 4 || got.Clock != 1000 || got.ResetCount != 5 || !got.Safe || got.Firmware != 0x20191023 {
		t.Errorf("Verify = %+v", got)
	}
	a.pcrs[4][0] ^= 1
	if got.PCRs[4][0] != 2 {
		t.Error("the values of Attested are not a copy")
	}
	a = honest(s)
	a.claim.selections = append(a.claim.selections, selection{alg: 0x0004}) // some TPMs list banks of which nothing is selected
	if _, err := a.verify(t, s); err != nil {
		t.Errorf("with an empty selection of another bank: %v", err)
	}
}

// Cases C62, C63 and C64, and the attacks on quotes.
func TestVerifyRefuses(t *testing.T) {
	s, other := newSigner(t), newSigner(t)
	for name, tt := range map[string]struct {
		change func(*answer)
		want   Kind
	}{
		"bank SHA-1":      {func(a *answer) { a.expect.Bank = "sha1" }, KindRequest},
		"no nonce asked":  {func(a *answer) { a.expect.Nonce, a.claim.extra = nil, nil }, KindRequest},
		"short nonce":     {func(a *answer) { a.expect.Nonce, a.claim.extra = []byte("1234"), []byte("1234") }, KindRequest},
		"nothing asked":   {func(a *answer) { a.expect.PCRs, a.claim.selections, a.pcrs = nil, nil, nil }, KindRequest},
		"PCR asked twice": {func(a *answer) { a.expect.PCRs = []int{0, 4, 4} }, KindRequest},
		"PCR 24 asked":    {func(a *answer) { a.expect.PCRs = []int{24} }, KindRequest},

		"no key":           {func(a *answer) { a.expect.AK = nil }, KindKey},
		"key and more":     {func(a *answer) { a.expect.AK = append(a.expect.AK[:len(a.expect.AK):len(a.expect.AK)], 0) }, KindKey},
		"unrestricted key": {func(a *answer) { a.expect.AK = unrestricted(t, a.expect.AK) }, KindKey},

		"no signature":          {func(a *answer) { a.sig = []byte{} }, KindSignature},
		"signature of another":  {func(a *answer) { a.sig = other.sign(t, a.claim.bytes()) }, KindSignature},
		"signature bit flipped": {func(a *answer) { a.sig = s.sign(t, a.claim.bytes()); a.sig[20] ^= 1 }, KindSignature},
		"signature of zeros": {func(a *answer) {
			a.sig = append([]byte{0, 0x18, 0, 0x0b}, append(sized(make([]byte, 32)), sized(make([]byte, 32))...)...)
		}, KindSignature},
		"signature and more": {func(a *answer) { a.sig = append(s.sign(t, a.claim.bytes()), 0) }, KindMalformed},
		"signature cut":      {func(a *answer) { a.sig = s.sign(t, a.claim.bytes())[:30] }, KindMalformed},
		"RSA signature":      {func(a *answer) { a.sig = s.sign(t, a.claim.bytes()); a.sig[1] = 0x14 }, KindSignature},
		"quote changed after": {func(a *answer) {
			a.sig = s.sign(t, a.claim.bytes())
			a.claim.reset = 6
		}, KindSignature},

		"not made by a TPM": {func(a *answer) { a.claim.magic = 0xff544348 }, KindMagic},
		"certify":           {func(a *answer) { a.claim.typ = 0x8017 }, KindType},
		"time":              {func(a *answer) { a.claim.typ = 0x8019 }, KindType},
		"creation":          {func(a *answer) { a.claim.typ = 0x801a }, KindType},

		"nonce of another challenge": {func(a *answer) { a.expect.Nonce = value(0x4f, 32) }, KindNonce},
		"no extra data":              {func(a *answer) { a.claim.extra = nil }, KindNonce},
		"nonce cut":                  {func(a *answer) { a.claim.extra = a.claim.extra[:31] }, KindNonce},
		"nonce longer":               {func(a *answer) { a.claim.extra = append(value(0x4e, 32), 0) }, KindNonce},

		"quote of PCR 16 for PCR 4": {func(a *answer) { a.claim.selections[0].pcrs = []int{0, 7, 11, 16} }, KindSelection},
		"value beside the selection": {func(a *answer) {
			a.claim.selections[0].pcrs = []int{0, 4, 7}
			a.expect.PCRs = []int{0, 4, 7}
		}, KindSelection},
		"fewer than asked": {func(a *answer) { a.claim.selections[0].pcrs = []int{0, 4, 7} }, KindSelection},
		"more than asked":  {func(a *answer) { a.claim.selections[0].pcrs = []int{0, 4, 7, 11, 12} }, KindSelection},
		"other bank":       {func(a *answer) { a.claim.selections[0].alg = 0x0004 }, KindSelection},
		"two banks":        {func(a *answer) { a.claim.selections = append(a.claim.selections, selection{0x000c, []int{0}}) }, KindSelection},
		"nothing quoted":   {func(a *answer) { a.claim.selections = nil }, KindSelection},
		"value not sent":   {func(a *answer) { delete(a.pcrs, 7) }, KindSelection},
		"no values sent":   {func(a *answer) { a.pcrs = nil }, KindSelection},
		"value of PCR 12":  {func(a *answer) { a.pcrs[12] = value(9, 32) }, KindSelection},
		"value changed":    {func(a *answer) { a.pcrs[4] = value(9, 32) }, KindPCRValue},
		"value too short":  {func(a *answer) { a.pcrs[4] = a.pcrs[4][:31] }, KindPCRValue},
		"values regrouped": {func(a *answer) { a.pcrs[4], a.pcrs[7] = append(a.pcrs[4], 3), a.pcrs[7][1:] }, KindPCRValue},
		"values exchanged": {func(a *answer) { a.pcrs[4], a.pcrs[7] = a.pcrs[7], a.pcrs[4] }, KindPCRValue},
		"SHA-384 for SHA-256": {func(a *answer) {
			a.claim.selections[0].alg = 0x000c
			a.expect.Bank = "sha384"
		}, KindPCRValue},

		"cut":               {func(a *answer) { b := a.claim.bytes(); a.quote = b[:len(b)-1] }, KindMalformed},
		"with more behind":  {func(a *answer) { a.claim.tail = "x" }, KindMalformed},
		"empty":             {func(a *answer) { a.quote = []byte{} }, KindMalformed},
		"five bytes":        {func(a *answer) { a.quote = a.claim.bytes()[:5] }, KindMalformed},
		"many selections":   {func(a *answer) { a.claim.selections = make([]selection, 9) }, KindMalformed},
		"absurdly large":    {func(a *answer) { a.claim.tail = strings.Repeat("x", maxAttest) }, KindMalformed},
		"bitmap of 9 bytes": {func(a *answer) { a.quote = wideBitmap(a.claim) }, KindMalformed},
	} {
		t.Run(name, func(t *testing.T) {
			a := honest(s)
			tt.change(a)
			got, err := a.verify(t, s)
			e := AsError(err)
			if e == nil || e.Kind != tt.want {
				t.Fatalf("Verify = %v; want kind %s", err, tt.want)
			}
			if got.PCRs != nil || got.Clock != 0 {
				t.Errorf("Verify gave %+v with an error", got)
			}
			if f := e.Finding(); f.Kind != string(tt.want) || f.PCR != -1 || f.Event != -1 || f.Detail == "" {
				t.Errorf("finding = %+v", f)
			}
		})
	}
}

func unrestricted(t *testing.T, ak []byte) []byte {
	t.Helper()
	boxed, err := tpm2.Unmarshal[tpm2.TPM2BPublic](ak)
	if err != nil {
		t.Fatal(err)
	}
	pub, err := boxed.Contents()
	if err != nil {
		t.Fatal(err)
	}
	pub.ObjectAttributes.Restricted = false
	return tpm2.Marshal(tpm2.New2B(*pub))
}

func wideBitmap(c claim) []byte {
	c.selections, c.digest = nil, nil
	b := c.bytes()
	b = be.AppendUint32(b[:len(b)-6], 1)
	b = append(be.AppendUint16(b, 0x000b), 9)
	return append(b, make([]byte, 9+2)...)
}

func TestFollows(t *testing.T) {
	base := Attested{Clock: 1000, ResetCount: 5, RestartCount: 1}
	for name, tt := range map[string]struct {
		now     Attested
		newBoot bool
		bad     bool
	}{
		"later":               {Attested{Clock: 1001, ResetCount: 5, RestartCount: 1}, false, false},
		"the same again":      {base, false, true},
		"clock back":          {Attested{Clock: 999, ResetCount: 5, RestartCount: 1}, false, true},
		"new boot":            {Attested{Clock: 10, ResetCount: 6}, true, false},
		"older boot":          {Attested{Clock: 2000, ResetCount: 4, RestartCount: 1}, false, true},
		"resumed":             {Attested{Clock: 1001, ResetCount: 5, RestartCount: 2}, false, false},
		"restart counts back": {Attested{Clock: 1001, ResetCount: 5}, false, true},
	} {
		newBoot, err := tt.now.Follows(base)
		if newBoot != tt.newBoot || (err != nil) != tt.bad {
			t.Errorf("%s: new boot %v, %v", name, newBoot, err)
		}
	}
}

// No panic, and never an answer beside an error. The signature is made to
// fit, so that the parser behind it is reached.
func FuzzVerify(f *testing.F) {
	s := newSigner(f)
	a := honest(s)
	f.Add(a.claim.bytes(), s.sign(f, a.claim.bytes()))
	f.Add([]byte{}, []byte{})
	f.Fuzz(func(t *testing.T, quote, sig []byte) {
		if _, err := Verify(a.expect, quote, sig, a.pcrs); err != nil && AsError(err) == nil {
			t.Fatalf("%v is not an *Error", err)
		}
		got, err := Verify(a.expect, quote, s.sign(t, quote), a.pcrs)
		if err != nil && (AsError(err) == nil || got.PCRs != nil) {
			t.Fatalf("%+v with %v", got, err)
		}
	})
}
