package device

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/rand"
	"crypto/sha256"
	"crypto/x509"
	"crypto/x509/pkix"
	"errors"
	"math/big"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-tpm/tpm2"

	"github.com/turnout-project/turnout/internal/tpm/credential"
	"github.com/turnout-project/turnout/internal/tpm/eventlog"
	"github.com/turnout-project/turnout/internal/tpm/quote"
	"github.com/turnout-project/turnout/internal/tpm/swtpm"
)

func open(t *testing.T, s *swtpm.TPM) *Device {
	t.Helper()
	d, err := OpenPath(t.Context(), s.Socket)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		noLeftovers(t, d)
		d.Close() //nolint:errcheck // the end of a test
	})
	return d
}

// noLeftovers checks that nothing stays loaded in the TPM.
func noLeftovers(t *testing.T, d *Device) {
	t.Helper()
	for _, first := range []uint32{0x80000000, 0x02000000, 0x03000000} { // transient objects, sessions
		rsp, err := tpm2.GetCapability{Capability: tpm2.TPMCapHandles, Property: first, PropertyCount: 8}.Execute(d.t)
		if err != nil {
			t.Fatal(err)
		}
		h, err := rsp.CapabilityData.Data.Handles()
		if err != nil {
			t.Fatal(err)
		}
		for _, x := range h.Handle {
			if uint32(x)>>24 == first>>24 {
				t.Errorf("handle %#x was left in the TPM", uint32(x))
			}
		}
	}
}

func nonce(t *testing.T) []byte {
	t.Helper()
	b := make([]byte, 32)
	rand.Read(b) //nolint:errcheck // never fails
	return b
}

// Enrolment and attestation from end to end, twice, with a reboot between.
func TestEnrolAndAttest(t *testing.T) {
	s := swtpm.Start(t)
	pcrs := []int{0, 1, 2, 3, 4, 5, 6, 7, 11, 12, 13, 23}
	d := open(t, s)
	ek, err := d.EK()
	if err != nil {
		t.Fatal(err)
	}
	ak, err := d.AK()
	if err != nil {
		t.Fatal(err)
	}
	hash, err := credential.EKHash(ek.Public)
	if err != nil || len(hash) != 64 {
		t.Fatalf("EKHash = %q, %v", hash, err)
	}
	blob, enc, secret, err := credential.MakeCredential(ek.Public, ak)
	if err != nil {
		t.Fatal(err)
	}
	got, err := d.Activate(blob, enc)
	if err != nil || !bytes.Equal(got, secret) {
		t.Fatalf("Activate = %x, %v; want %x", got, err, secret)
	}
	blob[len(blob)-1] ^= 1
	if _, err := d.Activate(blob, enc); err == nil || !strings.Contains(err.Error(), "not made for this TPM") {
		t.Errorf("Activate of a damaged challenge: %v", err)
	}

	attest := func(d *Device) quote.Attested {
		t.Helper()
		n := nonce(t)
		e, err := d.Quote(n, "sha256", pcrs)
		if err != nil {
			t.Fatal(err)
		}
		a, err := quote.Verify(quote.Expect{AK: ak, Nonce: n, Bank: "sha256", PCRs: pcrs}, e.Quote, e.Signature, e.PCRs)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	if err := d.Extend(11, []byte("enter-initrd")); err != nil {
		t.Fatal(err)
	}
	first := attest(d)
	want := eventlog.Extend("sha256", make([]byte, 32), eventlog.Hash("sha256", []byte("enter-initrd")))
	if !bytes.Equal(first.PCRs[11], want) {
		t.Errorf("PCR 11 = %x; want %x", first.PCRs[11], want)
	}
	second := attest(d)
	for second.Clock == first.Clock { // it counts milliseconds
		second = attest(d)
	}
	if boot, err := second.Follows(first); boot || err != nil {
		t.Errorf("second quote of a boot: new boot %v, %v", boot, err)
	}
	if _, err := first.Follows(second); quote.AsError(err) == nil || quote.AsError(err).Kind != quote.KindClock {
		t.Errorf("older quote after a newer one: %v; want kind clock", err)
	}

	s.Reset(t)
	d = open(t, s)
	again, err := d.EK()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(ek, again); diff != "" {
		t.Errorf("EK changed with a reboot:\n%s", diff)
	}
	if ak2, err := d.AK(); err != nil || !bytes.Equal(ak2, ak) {
		t.Errorf("AK changed with a reboot (%v)", err)
	}
	third := attest(d)
	if boot, err := third.Follows(second); !boot || err != nil {
		t.Errorf("quote after a reset: new boot %v, %v", boot, err)
	}
	if third.ResetCount != second.ResetCount+1 {
		t.Errorf("reset count went from %d to %d", second.ResetCount, third.ResetCount)
	}
	if !bytes.Equal(third.PCRs[11], make([]byte, 32)) {
		t.Errorf("PCR 11 after a reset = %x", third.PCRs[11])
	}
}

// A challenge for one TPM cannot be opened by another (attack 14, 18).
func TestOtherTPM(t *testing.T) {
	a, b := open(t, swtpm.Start(t)), open(t, swtpm.Start(t))
	ekA, err := a.EK()
	if err != nil {
		t.Fatal(err)
	}
	akA, errA := a.AK()
	akB, errB := b.AK()
	if errA != nil || errB != nil || bytes.Equal(akA, akB) {
		t.Fatalf("attestation keys of two TPMs: %v, %v, equal %v", errA, errB, bytes.Equal(akA, akB))
	}
	for name, ak := range map[string][]byte{"other EK": akA, "other AK": akB} {
		blob, enc, _, err := credential.MakeCredential(ekA.Public, ak)
		if err != nil {
			t.Fatal(err)
		}
		d := b
		if name == "other AK" {
			d = a
		}
		if got, err := d.Activate(blob, enc); err == nil {
			t.Errorf("%s: Activate gave %x", name, got)
		}
	}
	n := nonce(t)
	e, err := b.Quote(n, "sha256", []int{0})
	if err != nil {
		t.Fatal(err)
	}
	_, err = quote.Verify(quote.Expect{AK: akA, Nonce: n, Bank: "sha256", PCRs: []int{0}}, e.Quote, e.Signature, e.PCRs)
	if q := quote.AsError(err); q == nil || q.Kind != quote.KindSignature {
		t.Errorf("quote of another TPM: %v; want kind signature", err)
	}
}

// A TPM from the factory: EK certificate, two banks only.
func TestProvisioned(t *testing.T) {
	s := swtpm.Provision(t, "sha256", "sha384")
	d := open(t, s)
	banks, err := d.Banks()
	if err != nil || !slices.Equal(banks, []string{"sha256", "sha384"}) {
		t.Fatalf("Banks = %v, %v; want sha256 and sha384", banks, err)
	}
	if _, err := d.Quote(nonce(t), "sha1", []int{0}); err == nil || !strings.Contains(err.Error(), "no active sha1 bank") {
		t.Errorf("quote of a bank that is not active: %v", err)
	}
	ek, err := d.EK()
	if err != nil || ek.Kind != "RSA 2048" || ek.Certificate == nil {
		t.Fatalf("EK = %s with a certificate of %d bytes, %v; want the RSA key, which has one", ek.Kind, len(ek.Certificate), err)
	}
	ak, err := d.AK()
	if err != nil {
		t.Fatal(err)
	}
	blob, enc, secret, err := credential.MakeCredential(ek.Public, ak)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := d.Activate(blob, enc); err != nil || !bytes.Equal(got, secret) {
		t.Errorf("Activate with an RSA key = %x, %v", got, err)
	}
	pool := func(name string) *x509.CertPool {
		b, err := os.ReadFile(filepath.Join(s.CA, name))
		if err != nil {
			t.Fatal(err)
		}
		p := x509.NewCertPool()
		if !p.AppendCertsFromPEM(b) {
			t.Fatalf("%s holds no certificate", name)
		}
		return p
	}
	roots, issuer := pool("swtpm-localca-rootca-cert.pem"), pool("issuercert.pem")
	now := time.Now()
	if err := credential.VerifyEKCertificate(ek.Certificate, roots, issuer, ek.Public, now); err != nil {
		t.Errorf("EK certificate: %v", err)
	}
	if err := credential.VerifyEKCertificate(ek.Certificate, x509.NewCertPool(), issuer, ek.Public, now); !errors.Is(err, credential.ErrCertificate) {
		t.Errorf("EK certificate without its root: %v; want ErrCertificate", err)
	}
	if err := credential.VerifyEKCertificate(ek.Certificate, roots, nil, ek.Public, now); !errors.Is(err, credential.ErrCertificate) {
		t.Errorf("EK certificate without its issuer: %v; want ErrCertificate", err)
	}
	other, err := open(t, swtpm.Start(t)).EK()
	if err != nil {
		t.Fatal(err)
	}
	if err := credential.VerifyEKCertificate(ek.Certificate, roots, issuer, other.Public, now); !errors.Is(err, credential.ErrCertificate) {
		t.Errorf("EK certificate for another TPM: %v; want ErrCertificate", err)
	}
}

// A TPM that keeps the certificates between its EK and its maker's root, in
// two pieces; and one whose pieces are damaged.
func TestChainOnDie(t *testing.T) {
	d := open(t, swtpm.Start(t))
	bare, err := d.EK()
	if err != nil || bare.Certificate != nil || bare.Chain != nil {
		t.Fatalf("EK of a TPM without certificates: %+v, %v", bare, err)
	}
	root, mid, ekCert := issue(t, bare.Public)
	store(t, d, 0x01c0000a, ekCert)
	store(t, d, chainFirst, mid[:200])
	store(t, d, chainFirst+1, mid[200:])
	store(t, d, chainLast+1, []byte("something else"))
	ek, err := d.EK()
	if err != nil || !bytes.Equal(ek.Certificate, ekCert) || !bytes.Equal(ek.Chain, mid) {
		t.Fatalf("EK = certificate of %d bytes, chain of %d, %v; want %d and %d", len(ek.Certificate), len(ek.Chain), err, len(ekCert), len(mid))
	}
	roots, between := x509.NewCertPool(), x509.NewCertPool()
	roots.AddCert(root)
	if err := credential.VerifyEKCertificate(ek.Certificate, roots, between, ek.Public, time.Now()); !errors.Is(err, credential.ErrCertificate) {
		t.Errorf("without the chain: %v; want ErrCertificate", err)
	}
	chain, err := credential.ParseChain(ek.Chain)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range chain {
		between.AddCert(c)
	}
	if err := credential.VerifyEKCertificate(ek.Certificate, roots, between, ek.Public, time.Now()); err != nil {
		t.Errorf("with the chain: %v", err)
	}
}

// issue makes a root, an authority below it, and its certificate for an EK.
func issue(t *testing.T, ekPublic []byte) (root *x509.Certificate, mid, cert []byte) {
	t.Helper()
	make1 := func(tmpl, parent *x509.Certificate, pub, key any) []byte {
		tmpl.NotBefore, tmpl.NotAfter, tmpl.BasicConstraintsValid = time.Now().Add(-time.Hour), time.Now().Add(time.Hour), true
		if parent == nil {
			parent = tmpl
		}
		der, err := x509.CreateCertificate(rand.Reader, tmpl, parent, pub, key)
		if err != nil {
			t.Fatal(err)
		}
		return der
	}
	parse := func(der []byte) *x509.Certificate {
		c, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return c
	}
	rootPub, rootKey, err1 := ed25519.GenerateKey(nil)
	midPub, midKey, err2 := ed25519.GenerateKey(nil)
	if err := errors.Join(err1, err2); err != nil {
		t.Fatal(err)
	}
	ca := func(n int64, name string) *x509.Certificate {
		return &x509.Certificate{SerialNumber: big.NewInt(n), Subject: pkix.Name{CommonName: name}, IsCA: true, KeyUsage: x509.KeyUsageCertSign}
	}
	root = parse(make1(ca(1, "maker"), nil, rootPub, rootKey))
	mid = make1(ca(2, "on die"), root, midPub, rootKey)
	boxed, err := tpm2.Unmarshal[tpm2.TPM2BPublic](ekPublic)
	if err != nil {
		t.Fatal(err)
	}
	pub, err := boxed.Contents()
	if err != nil {
		t.Fatal(err)
	}
	key, err := tpm2.Pub(*pub)
	if err != nil {
		t.Fatal(err)
	}
	leaf := &x509.Certificate{SerialNumber: big.NewInt(3), KeyUsage: x509.KeyUsageKeyAgreement}
	return root, mid, make1(leaf, parse(mid), key, midKey)
}

// store puts data into an NV index that anybody may read.
func store(t *testing.T, d *Device, index uint32, data []byte) {
	t.Helper()
	owner := tpm2.AuthHandle{Handle: tpm2.TPMRHOwner, Auth: tpm2.PasswordAuth(nil)}
	pub := tpm2.New2B(tpm2.TPMSNVPublic{NVIndex: tpm2.TPMHandle(index), NameAlg: tpm2.TPMAlgSHA256, DataSize: uint16(len(data)),
		Attributes: tpm2.TPMANV{OwnerWrite: true, OwnerRead: true, AuthRead: true, NoDA: true}})
	if _, err := (tpm2.NVDefineSpace{AuthHandle: owner, PublicInfo: pub}).Execute(d.t); err != nil {
		t.Fatal(err)
	}
	info, err := tpm2.NVReadPublic{NVIndex: tpm2.TPMHandle(index)}.Execute(d.t)
	if err != nil {
		t.Fatal(err)
	}
	self := tpm2.NamedHandle{Handle: tpm2.TPMHandle(index), Name: info.NVName}
	for at := 0; at < len(data); at += 512 {
		_, err := tpm2.NVWrite{AuthHandle: owner, NVIndex: self, Offset: uint16(at),
			Data: tpm2.TPM2BMaxNVBuffer{Buffer: data[at:min(at+512, len(data))]}}.Execute(d.t)
		if err != nil {
			t.Fatal(err)
		}
	}
}

func TestExtendEveryBank(t *testing.T) {
	d := open(t, swtpm.Start(t))
	banks, err := d.Banks()
	if err != nil || len(banks) < 3 {
		t.Fatalf("Banks = %v, %v; want at least three", banks, err)
	}
	if err := d.Extend(11, []byte("word")); err != nil {
		t.Fatal(err)
	}
	for _, b := range banks {
		got, err := d.ReadPCRs(b, []int{11, 10})
		if err != nil {
			t.Fatal(err)
		}
		want := eventlog.Extend(b, make([]byte, eventlog.Size(b)), eventlog.Hash(b, []byte("word")))
		if !bytes.Equal(got[11], want) || !bytes.Equal(got[10], make([]byte, eventlog.Size(b))) {
			t.Errorf("%s: PCR 11 = %x, PCR 10 = %x; want %x and zero", b, got[11], got[10], want)
		}
	}
	for _, bad := range []struct {
		pcr  int
		data []byte
	}{{-1, []byte("x")}, {24, []byte("x")}, {11, nil}, {11, make([]byte, 1025)}} {
		if err := d.Extend(bad.pcr, bad.data); err == nil {
			t.Errorf("Extend(%d, %d bytes) worked", bad.pcr, len(bad.data))
		}
	}
	all := make([]int, 24)
	for i := range all {
		all[i] = i
	}
	if got, err := d.ReadPCRs("sha512", all); err != nil || len(got) != 24 {
		t.Errorf("ReadPCRs of all = %d values, %v", len(got), err)
	}
}

// Many operations in a row must not fill the TPM's three slots.
func TestNoLeak(t *testing.T) {
	d := open(t, swtpm.Start(t))
	for range 5 {
		if _, err := d.EK(); err != nil {
			t.Fatal(err)
		}
		if _, err := d.AK(); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Quote(nonce(t), "sha256", []int{0}); err != nil {
			t.Fatal(err)
		}
		if _, err := d.Activate([]byte("rubbish"), []byte("rubbish")); err == nil {
			t.Fatal("Activate of rubbish worked")
		}
	}
	info, err := d.Info()
	if err != nil || info.Manufacturer == "" || !strings.Contains(info.Firmware, ".") {
		t.Errorf("Info = %+v, %v", info, err)
	}
}

func TestNoTPM(t *testing.T) {
	if _, err := OpenPath(t.Context(), filepath.Join(t.TempDir(), "none")); !errors.Is(err, ErrNoTPM) {
		t.Errorf("OpenPath of nothing: %v; want ErrNoTPM", err)
	}
	if _, err := OpenPath(t.Context(), "/dev/null"); err == nil {
		t.Error("OpenPath took /dev/null for a TPM")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := OpenPath(ctx, "/dev/null"); !errors.Is(err, context.Canceled) {
		t.Errorf("OpenPath with a context that is done: %v", err)
	}
	root := t.TempDir()
	if err := absent(root); !errors.Is(err, ErrNoTPM) || !strings.Contains(err.Error(), "enable the TPM") {
		t.Errorf("no trace of a TPM: %v", err)
	}
	for _, tt := range []struct{ path, want string }{ // what is there adds up
		{"sys/firmware/acpi/tables/TPM2", "driver"},
		{"sys/class/tpm/tpm0/tpm_version_major", "TPM 1.2"},
	} {
		path, want := tt.path, tt.want
		p := filepath.Join(root, path)
		if err := os.MkdirAll(filepath.Dir(p), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(p, []byte("1\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if err := absent(root); !errors.Is(err, ErrNoTPM) || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v; want one with %q", path, err, want)
		}
	}
}

func TestReadEventLog(t *testing.T) {
	p := filepath.Join(t.TempDir(), "log")
	if _, err := readEventLog(p); err == nil || !strings.Contains(err.Error(), "securityfs") {
		t.Errorf("no event log: %v", err)
	}
	want := bytes.Repeat([]byte("log"), 50000)
	if err := os.WriteFile(p, want, 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := readEventLog(p)
	if err != nil || sha256.Sum256(got) != sha256.Sum256(want) {
		t.Errorf("read %d bytes, %v; want %d", len(got), err, len(want))
	}
	if err := os.Truncate(p, eventlog.MaxSize+1); err != nil {
		t.Fatal(err)
	}
	if _, err := readEventLog(p); err == nil {
		t.Error("an event log above the limit was read")
	}
}
