package server_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/server"
	"github.com/turnout-project/turnout/internal/tpm/device"
	"github.com/turnout-project/turnout/internal/tpm/judge"
	"github.com/turnout-project/turnout/internal/tpm/swtpm"
)

// TestRealTPM runs enrolment and attestation with software TPMs from a
// "maker" whose CA the server is told. That good evidence is accepted is
// proven with real firmware, in package judge and on the virtual rack: here
// it gets as far as a machine without firmware can.
func TestRealTPM(t *testing.T) {
	maker := swtpm.Provision(t, "sha256")
	trust, err := server.NewTrust(makerCAs(t, maker), time.Now)
	if err != nil {
		t.Fatal(err)
	}
	l := newLab(t, func(o *server.Options) { o.TPM = trust })
	image := l.publish("1")
	_, err = l.op.AddNode(ctx, api.NodeRequest{Name: "n1", Pool: "rack", MACs: []string{"52:54:00:00:00:01"}})
	l.must(err)

	d, err := device.OpenPath(ctx, maker.Socket)
	l.must(err)
	defer d.Close()
	m := l.machine(1)
	if n, err := m.joinWith(d); err != nil || n != "n1" {
		t.Fatalf("joined as %q, %v; want n1", n, err)
	}
	e, err := l.store.Enrolment(ctx, "n1")
	if err != nil || !strings.HasPrefix(e.EKTrust, "certified by ") {
		t.Errorf("enrolment = %+v, %v; want it certified by the maker", e, err)
	}

	kinds := func(req *api.AttestRequest) string {
		t.Helper()
		v, err := m.c.Attest(ctx, req)
		l.must(err)
		var ks []string
		for _, f := range v.Findings {
			ks = append(ks, f.Kind)
		}
		if v.Accepted {
			t.Errorf("accepted: %+v", v)
		}
		return strings.Join(ks, " ")
	}
	good := m.quote(d, image)
	if k := kinds(good); !strings.HasPrefix(k, judge.KindEmptyBank) {
		t.Errorf("genuine quote of an unmeasured boot: %s; want it to get past the quote", k)
	}
	if k := kinds(good); k != "nonce" {
		t.Errorf("the same again: %s; want nonce", k)
	}
	swapped := m.quote(d, image)
	swapped.Quote = good.Quote
	if k := kinds(swapped); k == "" || strings.HasPrefix(k, judge.KindEmptyBank) {
		t.Errorf("old quote for a new nonce: %s; want the quote refused", k)
	}
	relabelled := m.quote(d, image)
	relabelled.PCRs[4] = make([]byte, 32)
	relabelled.PCRs[4][0] = 1
	if k := kinds(relabelled); k != "pcr-value" {
		t.Errorf("another value for PCR 4: %s; want pcr-value", k)
	}

	// A TPM without a certificate by the maker cannot even ask.
	pirate, err := device.OpenPath(ctx, swtpm.Start(t).Socket)
	l.must(err)
	defer pirate.Close()
	_, err = l.machine(2).joinWith(pirate)
	wantStatus(t, "TPM without a certificate", err, 403)
	// Relay: another TPM answers the nonce that n1 was given.
	relayed := m.quote(pirate, image)
	if k := kinds(relayed); k != "signature" {
		t.Errorf("quote of another TPM: %s; want signature", k)
	}
	if n := l.node("n1"); n.EKHash != e.EKHash {
		t.Errorf("n1's TPM is %s; want it unchanged", n.EKHash)
	}

	// Nor does another TPM's certificate help.
	own, err := d.EK()
	l.must(err)
	other, err := pirate.EK()
	l.must(err)
	if _, _, err := trust.CheckEK(other.Public, own.Certificate, nil); err == nil || !strings.Contains(err.Error(), "another key") {
		t.Errorf("n1's certificate beside another EK: %v; want it refused", err)
	}

	// Nor one that is not the maker's word for word.
	ek, err := d.EK()
	l.must(err)
	ek.Certificate[len(ek.Certificate)/2] ^= 1
	if _, _, err := trust.CheckEK(ek.Public, ek.Certificate, nil); err == nil {
		t.Error("a damaged EK certificate was accepted")
	}
	if _, _, err := trust.CheckEK(ek.Public, nil, nil); err == nil {
		t.Error("no EK certificate was accepted, although makers are configured")
	}
}

// makerCAs reads the certificates of the authority that swtpm made.
func makerCAs(t *testing.T, s *swtpm.TPM) (pems [][]byte) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(s.CA, "*cert.pem"))
	if err != nil || len(files) == 0 {
		t.Fatalf("certificates in %s: %v, %v", s.CA, files, err)
	}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		pems = append(pems, b)
	}
	return pems
}

// joinWith is join with a real TPM.
func (m *machine) joinWith(d *device.Device) (string, error) {
	ek, err := d.EK()
	m.l.must(err)
	ak, err := d.AK()
	m.l.must(err)
	key, csr, err := api.NewNodeKey()
	m.l.must(err)
	r, err := m.c.Enrol(ctx, &api.EnrolRequest{EKPublic: ek.Public, EKCertificate: ek.Certificate, AKPublic: ak, CSR: csr, MACs: []fleet.MAC{m.mac}})
	if err != nil {
		return "", err
	}
	secret, err := d.Activate(r.CredentialBlob, r.EncryptedSecret)
	m.l.must(err)
	a, err := m.c.Activate(ctx, &api.ActivateRequest{Session: r.Session, Secret: secret})
	if err != nil {
		return "", err
	}
	return a.Node, m.c.UseCertificate(a.Certificate, key)
}

// quote answers a fresh nonce with a real TPM.
func (m *machine) quote(d *device.Device, image string) *api.AttestRequest {
	n, err := m.c.Nonce(ctx)
	m.l.must(err)
	e, err := d.Quote(n.Nonce, n.Bank, n.PCRs)
	m.l.must(err)
	return &api.AttestRequest{Nonce: n.Nonce, Image: image, Stage: fleet.StageSystem, Path: "disk", Quote: e.Quote, Signature: e.Signature, PCRs: e.PCRs}
}
