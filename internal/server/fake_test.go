package server_test

import (
	"bytes"
	"context"
	"crypto/ed25519"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/server"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/mem"
)

// fakeTPM stands for the server's knowledge of TPMs: keys are any bytes, a
// credential is opened by whoever has both, and a quote is the nonce. The
// real one is tested with a software TPM in TestRealTPM.
type fakeTPM struct {
	mu      sync.Mutex
	secrets map[string][]byte // by blob
	refuse  string            // summary of refused verdicts; "" accepts
	only    string            // the one image that is accepted; "" is any
}

func (f *fakeTPM) CheckEK(ek, cert, _ []byte) (hash, trust string, err error) {
	if string(cert) == "forged" {
		return "", "", errors.New("EK certificate is not by a known maker")
	}
	h := sha256.Sum256(ek)
	return hex.EncodeToString(h[:]), "pinned", nil
}

func (f *fakeTPM) AKName(ak []byte) (string, error) {
	if string(ak) == "unrestricted" {
		return "", errors.New("attestation key is not restricted")
	}
	return hex.EncodeToString(ak), nil
}

func (f *fakeTPM) MakeCredential(ek, ak []byte) (blob, enc, secret []byte, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	enc = append(append(bytes.Clone(ek), '|'), ak...)
	h := sha256.Sum256(append(enc, byte(len(f.secrets))))
	blob = h[:8]
	f.secrets[string(blob)] = h[:]
	return blob, enc, h[:], nil
}

// open is the node's TPM: it opens what was made for its keys.
func (f *fakeTPM) open(blob, enc, ek, ak []byte) []byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	if string(enc) != string(ek)+"|"+string(ak) {
		return []byte("cannot open")
	}
	return f.secrets[string(blob)]
}

func (f *fakeTPM) Wanted() (string, []int) { return "sha256", []int{4, 11} }

func (f *fakeTPM) Judge(e server.Evidence) (fleet.Verdict, *store.Clock) {
	switch {
	case string(e.Request.Quote) != string(e.Request.Nonce)+string(e.AKPublic):
		return fleet.Verdict{Summary: "the quote is not this node's", Findings: []fleet.Finding{{Kind: "signature", PCR: -1, Event: -1}}}, nil
	case f.only != "" && f.only != e.Image.Digest:
		return fleet.Verdict{Summary: "another image", Image: e.Image.Digest}, &store.Clock{}
	case f.refuse != "":
		return fleet.Verdict{Summary: f.refuse, Image: e.Image.Digest, Findings: []fleet.Finding{{Kind: "event", PCR: 4, Event: 7}}}, nil
	}
	return fleet.Verdict{Accepted: true, Summary: "runs what was built", Image: e.Image.Digest}, nil
}

// clock is the server's clock, set by the test.
type clock struct {
	mu sync.Mutex
	t  time.Time
}

func (c *clock) now() time.Time { c.mu.Lock(); defer c.mu.Unlock(); return c.t }
func (c *clock) add(d time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.t = c.t.Add(d)
}

// lab is a server under test, over real TLS.
type lab struct {
	t     *testing.T
	srv   *server.Server
	tpm   *fakeTPM
	clock *clock
	store store.Store
	url   string
	caPEM []byte
	key   ed25519.PrivateKey
	op    *api.Client
	admin *api.Client
	view  *api.Client

	measurements manifest.Measurements // of images that are made from now on

	secret map[string]string // tokens by role
}

// reload changes what may change while the server runs.
func (l *lab) reload(change func(*server.Options)) {
	o := l.srv.Options
	change(&o)
	l.srv.Reload(o)
}

func newLab(t *testing.T, change ...func(*server.Options)) *lab {
	t.Helper()
	l := &lab{t: t, tpm: &fakeTPM{secrets: map[string][]byte{}}, clock: &clock{t: time.Now()}, store: mem.New()}
	ca, caPEM, _, err := server.NewCA(l.clock.now())
	l.must(err)
	pub, key, err := ed25519.GenerateKey(nil)
	l.must(err)
	images, err := oci.Create(t.TempDir())
	l.must(err)
	secret := map[string]string{}
	l.key, l.caPEM, l.secret = key, caPEM, secret
	var lines []byte
	for _, role := range []string{"viewer", "operator", "admin"} {
		tok, line := server.NewToken("test-"+role, role)
		secret[role], lines = tok, append(lines, line...)
	}
	tokens, err := server.ParseTokens(lines)
	l.must(err)
	o := server.Options{Store: l.store, Images: images, CA: ca, TPM: l.tpm, Tokens: tokens, ImageKeys: []ed25519.PublicKey{pub},
		Discovery: "default", Heartbeat: 10 * time.Second, NodeCert: time.Hour, Version: "test", Now: l.clock.now}
	for _, c := range change {
		c(&o)
	}
	l.srv = server.New(o)
	cert, err := o.CA.ServerCertificate([]string{"127.0.0.1"}, l.clock.now())
	l.must(err)
	ts := httptest.NewUnstartedServer(l.srv.Handler())
	ts.TLS = l.srv.TLS(cert)
	ts.StartTLS()
	t.Cleanup(ts.Close)
	l.url = ts.URL
	mk := func(role string) *api.Client {
		c, err := api.NewClient(l.url, caPEM, secret[role]+"\n")
		l.must(err)
		return c
	}
	l.view, l.op, l.admin = mk("viewer"), mk("operator"), mk("admin")
	return l
}

func (l *lab) must(err error) {
	l.t.Helper()
	if err != nil {
		l.t.Fatal(err)
	}
}

// publish makes and publishes an image, as `pxeserver image publish` does.
func (l *lab) publish(version string) string {
	l.t.Helper()
	d := l.upload(version)
	l.clock.add(time.Second) // images are listed by age
	_, err := l.op.Publish(ctx, api.PublishRequest{Manifest: d.raw, Signature: d.sig})
	l.must(err)
	return d.digest
}

type built struct {
	digest   string
	raw, sig []byte
	root     []byte
}

// upload makes an image and puts its blobs.
func (l *lab) upload(version string) built {
	l.t.Helper()
	blob := func(text string) (manifest.Blob, []byte) {
		b := []byte(text + " of " + version)
		return manifest.Blob{Digest: manifest.DigestOf(b), SizeBytes: int64(len(b))}, b
	}
	var layers []oci.Descriptor
	put := func(text, media string) manifest.Blob {
		m, b := blob(text)
		l.must(l.op.PutBlob(ctx, m.Digest, bytes.NewReader(b)))
		layers = append(layers, oci.Descriptor{MediaType: media, Digest: m.Digest, Size: m.SizeBytes})
		return m
	}
	m := manifest.Manifest{SchemaVersion: manifest.Version, Name: "rack", Version: version, Architecture: "amd64",
		Root: put("root", manifest.MediaRoot), Verity: manifest.Verity{Blob: put("verity", manifest.MediaVerity)},
		Measurements: l.measurements,
		UKI:          put("uki", manifest.MediaUKI), Installer: put("installer", manifest.MediaInstaller), Loader: put("loader", manifest.MediaLoader)}
	config, err := m.Encode()
	l.must(err)
	l.must(l.op.PutBlob(ctx, manifest.DigestOf(config), bytes.NewReader(config)))
	o := oci.Manifest{SchemaVersion: 2, MediaType: oci.MediaManifest, ArtifactType: manifest.ArtifactType, Layers: layers,
		Config: oci.Descriptor{MediaType: manifest.MediaConfig, Digest: manifest.DigestOf(config), Size: int64(len(config))}}
	raw, err := json.Marshal(o)
	l.must(err)
	sig, err := manifest.Sign(l.key, manifest.DigestOf(raw))
	l.must(err)
	return built{manifest.DigestOf(raw), raw, sig, []byte("root of " + version)}
}

var ctx = context.Background()

// machine is a node's side of the conversation.
type machine struct {
	l      *lab
	ek, ak []byte
	mac    fleet.MAC
	c      *api.NodeClient
	name   string
	boot   int
	report fleet.Report
}

func (l *lab) machine(n int) *machine {
	c, err := api.NewNodeClient(l.url, l.caPEM)
	l.must(err)
	return &machine{l: l, ek: fmt.Appendf(nil, "ek%d", n), ak: fmt.Appendf(nil, "ak%d", n), mac: fleet.MAC(fmt.Sprintf("52:54:00:00:00:%02x", n)), c: c,
		report: fleet.Report{Stage: fleet.StageInstaller, BootID: "boot0", Time: l.clock.now()}}
}

// enrol asks once.
func (m *machine) enrol() (*api.EnrolResponse, *api.EnrolRequest, error) {
	_, csr, err := api.NewNodeKey()
	m.l.must(err)
	req := &api.EnrolRequest{EKPublic: m.ek, AKPublic: m.ak, CSR: csr, MACs: []fleet.MAC{m.mac}, Stage: fleet.StageInstaller, BootID: "boot0"}
	r, err := m.c.Enrol(ctx, req)
	return r, req, err
}

// join enrols and activates an approved machine.
func (m *machine) join() error {
	key, csr, err := api.NewNodeKey()
	m.l.must(err)
	r, err := m.c.Enrol(ctx, &api.EnrolRequest{EKPublic: m.ek, AKPublic: m.ak, CSR: csr, MACs: []fleet.MAC{m.mac}, Stage: fleet.StageInstaller, BootID: "boot0"})
	if err != nil {
		return err
	}
	if r.Status != api.EnrolChallenge {
		return fmt.Errorf("enrolment %s: %s", r.Status, r.Reason)
	}
	a, err := m.c.Activate(ctx, &api.ActivateRequest{Session: r.Session, Secret: m.l.tpm.open(r.CredentialBlob, r.EncryptedSecret, m.ek, m.ak)})
	if err != nil {
		return err
	}
	m.name = a.Node
	return m.c.UseCertificate(a.Certificate, key)
}

// ready adds a node by name, joins it and leaves it running image from slot A.
func (l *lab) ready(n int, pool, image string) *machine {
	l.t.Helper()
	m := l.machine(n)
	_, err := l.op.AddNode(ctx, api.NodeRequest{Name: fmt.Sprintf("n%d", n), Pool: pool, MACs: []string{string(m.mac)}})
	l.must(err)
	l.must(m.join())
	m.report = fleet.Report{Stage: fleet.StageSystem, BootID: "boot1", Booted: fleet.SlotA, BootPath: "disk", Healthy: true, Acted: 1,
		Slots: []fleet.SlotReport{{Slot: fleet.SlotA, State: fleet.SlotGood, Image: image, Generation: 1}, {Slot: fleet.SlotB, State: fleet.SlotEmpty}}}
	m.beat()
	return m
}

// beat sends a heartbeat and returns what is wanted.
func (m *machine) beat() fleet.Desired {
	m.l.t.Helper()
	m.report.Time = m.l.clock.now()
	r, err := m.c.Heartbeat(ctx, &m.report)
	m.l.must(err)
	return r.Desired
}

// attest answers a nonce.
func (m *machine) attest(image string) (*fleet.Verdict, []byte) {
	m.l.t.Helper()
	n, err := m.c.Nonce(ctx)
	m.l.must(err)
	v, err := m.c.Attest(ctx, m.evidence(n.Nonce, image))
	m.l.must(err)
	return v, n.Nonce
}

func (m *machine) evidence(nonce []byte, image string) *api.AttestRequest {
	return &api.AttestRequest{Nonce: nonce, Quote: append(bytes.Clone(nonce), m.ak...), Image: image, Stage: m.report.Stage, BootID: m.report.BootID, Path: "disk"}
}

func (l *lab) node(name string) *fleet.Node {
	l.t.Helper()
	n, err := l.store.Node(ctx, name)
	l.must(err)
	return n
}

func (l *lab) events(kind string) (out []string) {
	l.t.Helper()
	ev, err := l.view.Events(ctx, api.EventQuery{Kind: kind})
	l.must(err)
	for _, e := range ev {
		out = append(out, e.Kind+" "+e.Node+": "+e.Message)
	}
	return out
}

func wantStatus(t *testing.T, what string, err error, status int) {
	t.Helper()
	if got := api.StatusOf(err); got != status {
		t.Errorf("%s: %v (status %d); want status %d", what, err, got, status)
	}
}
