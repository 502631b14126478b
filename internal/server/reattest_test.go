package server_test

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/server"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/tpm/device"
	"github.com/turnout-project/turnout/internal/tpm/eventlog"
	"github.com/turnout-project/turnout/internal/tpm/judge"
	"github.com/turnout-project/turnout/internal/tpm/swtpm"
)

// booted is a node whose software TPM shows a real boot of a real image.
type booted struct {
	*machine
	tpm   *swtpm.TPM
	dev   *device.Device
	log   *eventlog.Log
	raw   []byte
	image string
	model fleet.Model
}

// boot brings up a server with change, and a node that has booted the image
// of the fixture.
func boot(t *testing.T, change ...func(*server.Options)) (*lab, *booted) {
	t.Helper()
	dir := filepath.Join("..", "tpm", "judge", "testdata", "ovmf-stub252-disk")
	b := &booted{tpm: swtpm.Start(t), model: fleet.Model{Vendor: "ACME", Product: "R1", BIOSVersion: "2.1"}}
	var err error
	if b.raw, err = os.ReadFile(filepath.Join(dir, "eventlog.bin")); err != nil {
		t.Fatal(err)
	}
	if b.log, err = eventlog.Parse(b.raw); err != nil {
		t.Fatal(err)
	}
	doc, err := os.ReadFile(filepath.Join(dir, "evidence.json"))
	if err != nil {
		t.Fatal(err)
	}
	var f struct{ Measurements manifest.Measurements }
	if err := json.Unmarshal(doc, &f); err != nil {
		t.Fatal(err)
	}
	trust, err := server.NewTrust(nil, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	l := newLab(t, append([]func(*server.Options){func(o *server.Options) { o.TPM = trust }}, change...)...)
	l.measurements = f.Measurements
	b.image = l.publish("1")
	b.machine = l.machine(1)
	b.report.Stage, b.report.BootID = fleet.StageSystem, "boot1"
	_, err = l.op.AddNode(ctx, api.NodeRequest{Name: "n1", Pool: "rack", MACs: []string{string(b.mac)}})
	l.must(err)
	b.start(t)
	return l, b
}

// start is what firmware, stub and initrd do; then the agent enrols.
func (b *booted) start(t *testing.T) {
	t.Helper()
	b.tpm.Play(t, b.log, "enter-initrd", "leave-initrd")
	var err error
	b.dev, err = device.OpenPath(ctx, b.tpm.Socket)
	b.l.must(err)
	t.Cleanup(func() { b.dev.Close() }) //nolint:errcheck // a test's end
	_, err = b.joinWith(b.dev)
	b.l.must(err)
}

func (b *booted) evidence() *api.AttestRequest {
	req := b.quote(b.dev, b.image)
	req.BootID, req.EventLog, req.Model = b.report.BootID, b.raw, &b.model
	return req
}

// again is evidence with the log's hash for the log.
func (b *booted) again() *api.AttestRequest {
	req := b.evidence()
	req.EventLog, req.LogHash = nil, api.LogHash(b.raw)
	return req
}

func (b *booted) attest(req *api.AttestRequest) *fleet.Verdict {
	b.l.t.Helper()
	v, err := b.c.Attest(ctx, req)
	b.l.must(err)
	return v
}

func refusedFor(t *testing.T, what string, v *fleet.Verdict, kind string) {
	t.Helper()
	if v.Accepted || len(v.Findings) == 0 || v.Findings[0].Kind != kind {
		t.Errorf("%s: %+v; want refused for %s", what, v, kind)
	}
}

// A node attests again at little cost while nothing has changed, and only
// then; between two quotes of a boot nothing may have changed.
func TestAttestAgain(t *testing.T) {
	l, b := boot(t, func(o *server.Options) { o.AttestEvery = 7 * time.Minute })
	n, err := b.c.Nonce(ctx)
	if err != nil || n.Every != 420 {
		t.Errorf("nonce = %+v, %v; want the pace of 420 s", n, err)
	}
	refusedFor(t, "hash of a log that was never sent", b.attest(b.again()), judge.KindNoLog)
	first := b.attest(b.evidence())
	if !first.Accepted {
		t.Fatalf("a good boot: %+v", first)
	}
	l.clock.add(7 * time.Minute)
	v := b.attest(b.again())
	if !v.Accepted || v.Path != "disk" || v.Summary != first.Summary || !v.At.Equal(l.clock.now()) {
		t.Errorf("again: %+v; want the verdict as before, of now", v)
	}
	if at := l.node("n1").Verified; !at.Equal(l.clock.now()) {
		t.Errorf("verified at %s; want %s", at, l.clock.now())
	}
	if ev := l.events("attest.acc"); len(ev) != 1 {
		t.Errorf("events = %q; want one", ev)
	}

	for what, change := range map[string]func(*api.AttestRequest){
		"another log":   func(r *api.AttestRequest) { r.LogHash = api.LogHash([]byte("x")) },
		"another boot":  func(r *api.AttestRequest) { r.BootID = "boot2" },
		"another stage": func(r *api.AttestRequest) { r.Stage = fleet.StageInstaller },
		"another path":  func(r *api.AttestRequest) { r.Path = "network" },
	} {
		req := b.again()
		change(req)
		refusedFor(t, what, b.attest(req), judge.KindNoLog)
		if v := b.attest(b.evidence()); !v.Accepted {
			t.Fatalf("whole log after %q: %+v", what, v)
		}
	}

	old := b.again()
	if v := b.attest(b.again()); !v.Accepted {
		t.Fatalf("newer quote: %+v", v)
	}
	refusedFor(t, "quote made before the newest one", b.attest(old), "clock")

	l.must(b.dev.Extend(12, []byte("slipped in")))
	v = b.attest(b.again())
	refusedFor(t, "PCR 12 extended", v, judge.KindSameBoot)
	if v.Findings[0].PCR != 12 {
		t.Errorf("finding = %+v; want PCR 12", v.Findings[0])
	}
	refusedFor(t, "PCR 12 extended, whole log", b.attest(b.evidence()), judge.KindSameBoot)
}

// An operator asks for an attestation now.
func TestAskAttest(t *testing.T) {
	l, b := boot(t)
	n, err := l.op.NodeAct(ctx, "n1", "attest", api.NodeRequest{})
	l.must(err)
	if n.Ask == nil || n.Ask.Act != fleet.AskAttest {
		t.Fatalf("asked: %+v", n.Ask)
	}
	resp, err := b.c.Heartbeat(ctx, &b.report)
	l.must(err)
	if resp.Ask == nil || *resp.Ask != *n.Ask {
		t.Errorf("answer to the heartbeat: %+v; want the favour", resp.Ask)
	}
	_, err = l.view.NodeAct(ctx, "n1", "attest", api.NodeRequest{})
	wantStatus(t, "a viewer asks", err, 403)
	_, err = l.op.AddNode(ctx, api.NodeRequest{Name: "n2", Pool: "rack", MACs: []string{"52:54:00:00:00:99"}})
	l.must(err)
	if _, err := l.op.NodeAct(ctx, "n2", "attest", api.NodeRequest{}); err == nil || !strings.Contains(err.Error(), "not proven a TPM") {
		t.Errorf("a node without TPM: %v", err)
	}
}

// The TPM's counters against what the node says of its boots.
func TestResets(t *testing.T) {
	l, b := boot(t)
	if v := b.attest(b.evidence()); !v.Accepted {
		t.Fatalf("a good boot: %+v", v)
	}
	b.tpm.Reset(t)
	b.start(t)
	refusedFor(t, "TPM reset, machine not", b.attest(b.evidence()), "clock")
	b.report.BootID = "boot2"
	refusedFor(t, "hash of the log, in the next boot", b.attest(b.again()), judge.KindNoLog)
	if v := b.attest(b.evidence()); !v.Accepted {
		t.Errorf("the next boot: %+v", v)
	}
	e, err := l.store.Enrolment(ctx, "n1")
	l.must(err)
	e.Clock.Firmware++ // as if the firmware of the TPM had been another in this boot
	l.must(l.store.Update(ctx, func(tx store.Tx) error { return tx.PutEnrolment(ctx, e) }))
	if v := b.attest(b.evidence()); v.Accepted || !strings.Contains(v.Summary, "firmware") {
		t.Errorf("another TPM firmware in the same boot: %+v; want refused", v)
	}
	e, err = l.store.Enrolment(ctx, "n1")
	l.must(err)
	e.Clock.Firmware--
	e.Clock.Reset += 2 // as if it had been seen further on
	l.must(l.store.Update(ctx, func(tx store.Tx) error { return tx.PutEnrolment(ctx, e) }))
	v := b.attest(b.evidence())
	refusedFor(t, "reset count fell", v, "clock")
	if !strings.Contains(v.Summary, "clear-tpm") {
		t.Errorf("summary %q; want the way out", v.Summary)
	}
}

// Firmware that was announced is accepted from the first node on.
func TestAnnouncedBaseline(t *testing.T) {
	l, b := boot(t, func(o *server.Options) { o.Baseline = server.BaselineEnforce })
	refusedFor(t, "nothing approved", b.attest(b.evidence()), judge.KindBaseline)
	announce := func(r api.AnnounceRequest) (*fleet.Baseline, error) { return l.op.AnnounceBaseline(ctx, r) }
	_, err := l.view.AnnounceBaseline(ctx, api.AnnounceRequest{EventLog: b.raw, Model: b.model})
	wantStatus(t, "a viewer announces", err, 403)
	next := b.model
	next.BIOSVersion = "2.2"
	got, err := announce(api.AnnounceRequest{EventLog: b.raw, Model: next, Reason: "planned"})
	l.must(err)
	if got.State != fleet.BaselineApproved || got.Node != "" || got.By != "operator:test-operator" {
		t.Errorf("announced: %+v", got)
	}
	b.model = next
	if v := b.attest(b.evidence()); !v.Accepted || len(v.Findings) > 0 {
		t.Errorf("a node with what was announced: %+v", v)
	}
	for what, r := range map[string]api.AnnounceRequest{
		"no model":          {EventLog: b.raw},
		"half a log":        {EventLog: b.raw[:len(b.raw)/2], Model: next},
		"some PCRs only":    {Model: next, PCRs: map[int]string{0: strings.Repeat("ab", 32)}},
		"PCR 4":             {Like: got.ID, PCRs: map[int]string{4: strings.Repeat("ab", 32)}},
		"value of 3 digits": {Like: got.ID, PCRs: map[int]string{0: "abc"}},
		"dbx of noise":      {Like: got.ID, DBX: []byte("noise")},
	} {
		_, err := announce(r)
		wantStatus(t, what, err, 400)
	}
	_, err = announce(api.AnnounceRequest{Like: "ffffffffffff"})
	wantStatus(t, "like nothing", err, 404)
	_, err = announce(api.AnnounceRequest{EventLog: b.raw, Model: next})
	wantStatus(t, "twice", err, 409)
	vendor, err := announce(api.AnnounceRequest{Like: got.ID, Model: fleet.Model{BIOSVersion: "2.3"}, PCRs: map[int]string{0: strings.Repeat("AB", 32)}})
	if err != nil || vendor.PCRs[0] != strings.Repeat("ab", 32) || vendor.PCRs[7] != got.PCRs[7] || vendor.Model.Vendor != next.Vendor || vendor.Model.BIOSVersion != "2.3" {
		t.Errorf("values of the maker: %+v, %v", vendor, err)
	}
	if ev := l.events("baseline.announced"); len(ev) != 2 || !strings.Contains(ev[0], "planned") {
		t.Errorf("events = %q", ev)
	}
}

// Firmware that is not as approved: told, or refused, as configured.
func TestBaselines(t *testing.T) {
	l, b := boot(t, func(o *server.Options) { o.Baseline = server.BaselineWarn })
	if v := b.attest(b.evidence()); !v.Accepted || len(v.Findings) > 0 {
		t.Fatalf("nothing approved: %+v", v)
	}
	b.attest(b.evidence())
	bs, err := l.view.Baselines(ctx)
	l.must(err)
	if len(bs) != 1 || bs[0].State != fleet.BaselineLearned || bs[0].Model != b.model || bs[0].Node != "n1" || len(bs[0].Events[7]) < 5 {
		t.Fatalf("baselines = %+v; want one, learned", bs)
	}
	wantStatus(t, "a viewer approves", func() error { _, err := l.view.ApproveBaseline(ctx, bs[0].ID); return err }(), 403)
	got, err := l.op.ApproveBaseline(ctx, bs[0].ID[:6])
	if err != nil || got.State != fleet.BaselineApproved || got.By != "operator:test-operator" {
		t.Errorf("approved: %+v, %v", got, err)
	}
	if v := b.attest(b.evidence()); !v.Accepted || len(v.Findings) > 0 {
		t.Errorf("as approved: %+v", v)
	}

	// The same model with other firmware.
	changed := *got
	changed.PCRs = map[int]string{0: strings.Repeat("ab", 32), 2: got.PCRs[2], 3: got.PCRs[3], 7: got.PCRs[7]}
	changed.Events = nil
	put := func(x *fleet.Baseline) {
		l.must(l.store.Update(ctx, func(tx store.Tx) error { return tx.PutBaseline(ctx, x) }))
	}
	put(&changed)
	v := b.attest(b.again())
	refusedFor(t, "hash of the log, other baseline", v, judge.KindNoLog)
	v = b.attest(b.evidence())
	if !v.Accepted || len(v.Findings) != 1 || v.Findings[0].Kind != judge.KindBaseline || v.Findings[0].PCR != 0 || !strings.Contains(v.Summary, "warning") {
		t.Errorf("drift, warn: %+v", v)
	}
	l.reload(func(o *server.Options) { o.Baseline = server.BaselineEnforce })
	refusedFor(t, "drift, enforce", b.attest(b.evidence()), judge.KindBaseline)
	b.model.BIOSVersion = "2.2"
	v = b.attest(b.evidence())
	refusedFor(t, "new firmware, enforce", v, judge.KindBaseline)
	if bs, err = l.view.Baselines(ctx); err != nil || len(bs) != 2 {
		t.Fatalf("baselines = %+v, %v; want the new one learned although it is refused", bs, err)
	}
	for _, x := range bs {
		if x.Model.BIOSVersion == "2.2" {
			_, err := l.op.ApproveBaseline(ctx, x.ID)
			l.must(err)
		}
	}
	if v := b.attest(b.evidence()); !v.Accepted {
		t.Errorf("new firmware, approved: %+v", v)
	}
	l.must(l.op.ForgetBaseline(ctx, changed.ID))
	wantStatus(t, "forget twice", l.op.ForgetBaseline(ctx, changed.ID), 404)
	if ev := l.events("baseline."); len(ev) != 5 { // learned, approved, learned, approved, forgotten
		t.Errorf("events = %q", ev)
	}
	l.reload(func(o *server.Options) { o.Baseline = server.BaselineOff })
	b.model.BIOSVersion = "3"
	if v := b.attest(b.evidence()); !v.Accepted || len(v.Findings) > 0 {
		t.Errorf("off: %+v", v)
	}
}

// A certificate is replaced before it runs out; what is revoked is out at
// once, and only the TPM gets the node in again.
func TestRevocation(t *testing.T) {
	l := newLab(t)
	m := l.ready(1, "rack", l.publish("1"))
	stolen := *m
	_, err := l.op.NodeAct(ctx, "n1", "revoke", api.NodeRequest{})
	l.must(err)
	if _, err := m.c.Heartbeat(ctx, &m.report); !api.Unauthorized(err) {
		t.Errorf("heartbeat with a revoked certificate: %v; want 401", err)
	}
	if _, err := l.op.NodeAct(ctx, "n1", "revoke", api.NodeRequest{}); err == nil || !strings.Contains(err.Error(), "has no certificate") {
		t.Errorf("revoked twice: %v", err)
	}
	stolen.c, err = api.NewNodeClient(l.url, l.caPEM)
	l.must(err)
	l.must(stolen.join()) // proves the TPM
	stolen.beat()
	if ev := l.events("node.revoke"); len(ev) != 1 {
		t.Errorf("events = %q", ev)
	}

	// Of three certificates the newest two are taken.
	var clients []*api.NodeClient
	for range 3 {
		c, err := api.NewNodeClient(l.url, l.caPEM)
		l.must(err)
		m.c = c
		l.must(m.join())
		clients = append(clients, c)
	}
	for i, want := range []bool{false, true, true} {
		_, err := clients[i].Heartbeat(ctx, &m.report)
		if (err == nil) != want {
			t.Errorf("certificate %d: %v; want taken %v", i, err, want)
		}
	}
}

// A node whose verification has become old is told of, once, and so is the
// next good one.
func TestUnverified(t *testing.T) {
	l := newLab(t, func(o *server.Options) { o.AttestAlarm, o.Heartbeat = time.Hour, time.Second })
	image := l.publish("1")
	m, quiet := l.ready(1, "rack", image), l.ready(2, "rack", image)
	m.attest(image)
	watching, stop := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() { l.srv.Watch(watching); close(done) }()
	defer func() { stop(); <-done }()
	await := func(kind, text string) {
		t.Helper()
		for range 100 {
			for _, e := range l.events(kind) {
				if strings.Contains(e, text) {
					return
				}
			}
			_, err := l.view.Events(ctx, api.EventQuery{Kind: kind, After: 1 << 40, Wait: time.Second})
			l.must(err)
		}
		t.Fatalf("no event %q with %q: %q", kind, text, l.events("node."))
	}
	l.clock.add(50 * time.Minute)
	l.must(m.join())
	l.must(quiet.join())
	m.attest(image)
	l.clock.add(15 * time.Minute) // n1 was verified 15 minutes ago, n2 never
	await("node.unverified", "n2: last verified")
	l.tpm.refuse = "PCR 4, event 7: not as built"
	l.clock.add(50 * time.Minute)
	l.must(m.join())
	m.attest(image)
	await("node.unverified", "not as built")
	l.tpm.refuse = ""
	l.clock.add(time.Minute)
	m.attest(image)
	await("node.verified", "n1: again")
	if ev := l.events("node.unverified"); len(ev) != 2 {
		t.Errorf("events = %q; want one for each node", ev)
	}
}

func TestRenewal(t *testing.T) {
	l := newLab(t) // certificates last an hour
	m := l.machine(1)
	_, err := l.op.AddNode(ctx, api.NodeRequest{Name: "n1", Pool: "rack", MACs: []string{string(m.mac)}})
	l.must(err)
	_, csr, err := api.NewNodeKey()
	l.must(err)
	r, err := m.c.Enrol(ctx, &api.EnrolRequest{EKPublic: m.ek, AKPublic: m.ak, CSR: csr, MACs: []fleet.MAC{m.mac}})
	l.must(err)
	a, err := m.c.Activate(ctx, &api.ActivateRequest{Session: r.Session, Secret: l.tpm.open(r.CredentialBlob, r.EncryptedSecret, m.ek, m.ak)})
	if err != nil || a.RenewAfter != 2400 {
		t.Errorf("activation = %+v, %v; want renewal after 2400 s", a, err)
	}
}
