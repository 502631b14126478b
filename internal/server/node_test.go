package server_test

import (
	"bytes"
	"context"
	"errors"
	"io"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/server"
	"github.com/turnout-project/turnout/internal/store"
)

// Case C62: a nonce is for one node, one use, a short time.
func TestNonces(t *testing.T) {
	l := newLab(t)
	image := l.publish("1")
	a, b := l.ready(1, "rack", image), l.ready(2, "rack", image)
	refused := func(what string, m *machine, req *api.AttestRequest) {
		t.Helper()
		v, err := m.c.Attest(ctx, req)
		if err != nil || v.Accepted || len(v.Findings) != 1 || v.Findings[0].Kind != "nonce" {
			t.Errorf("%s: verdict %+v, %v; want refused for its nonce", what, v, err)
		}
	}
	v, nonce := a.attest(image)
	if !v.Accepted {
		t.Fatalf("good evidence: %+v", v)
	}
	refused("same evidence again", a, a.evidence(nonce, image))

	n, err := a.c.Nonce(ctx)
	l.must(err)
	refused("nonce of another node", b, b.evidence(n.Nonce, image))
	v, err = a.c.Attest(ctx, a.evidence(n.Nonce, image))
	if err != nil || !v.Accepted {
		t.Errorf("the owner's use after a thief's try: %+v, %v; want accepted", v, err)
	}
	refused("no nonce", a, a.evidence(nil, image))
	refused("made up nonce", a, a.evidence(bytes.Repeat([]byte{7}, 32), image))

	n, err = a.c.Nonce(ctx)
	l.must(err)
	l.clock.add(6 * time.Minute)
	refused("nonce after its time", a, a.evidence(n.Nonce, image))

	n, err = a.c.Nonce(ctx)
	l.must(err)
	l.clock.add(-time.Hour) // the clock is set back: still good, once
	l.must(a.join())
	if v, err := a.c.Attest(ctx, a.evidence(n.Nonce, image)); err != nil || !v.Accepted {
		t.Errorf("nonce after the clock went back: %+v, %v", v, err)
	}
	refused("and again", a, a.evidence(n.Nonce, image))
}

func TestVerdicts(t *testing.T) {
	l := newLab(t)
	image := l.publish("1")
	m := l.ready(1, "rack", image)
	if v, _ := m.attest(strings.TrimPrefix(image, "sha256:")[:12]); !v.Accepted || v.Image != image {
		t.Errorf("by short digest: %+v; want accepted for %s", v, image)
	}
	m.attest(image)
	if ev := l.events("attest."); len(ev) != 1 {
		t.Errorf("events = %q; want one for the same verdict twice", ev)
	}
	if v, _ := m.attest("sha256:" + strings.Repeat("0", 64)); v.Accepted || v.Findings[0].Kind != "image" {
		t.Errorf("unpublished image: %+v; want refused", v)
	}
	if v, _ := m.attest("ab"); v.Accepted {
		t.Errorf("image named by two digits: %+v; want refused", v)
	}
	l.tpm.refuse = "PCR 4, event 7: the UKI is not the one that was built"
	v, _ := m.attest(image)
	if v.Accepted || v.Summary != l.tpm.refuse {
		t.Errorf("verdict = %+v", v)
	}
	n := l.node("n1")
	if n.Verdict == nil || n.Verdict.Accepted || n.Failure == nil || n.Failure.String() != "check attestation: "+l.tpm.refuse {
		t.Errorf("node keeps %+v, %+v; want the refusal", n.Verdict, n.Failure)
	}
}

// An installer may come from any published image; a system must be the one
// that its slot holds.
func TestInstallerOfAnotherImage(t *testing.T) {
	l := newLab(t)
	v1, v2 := l.publish("1"), l.publish("2")
	m := l.ready(1, "rack", v1)
	l.tpm.only = v1
	if v, _ := m.attest(v2); v.Accepted {
		t.Errorf("system of image 1 that says it is 2: %+v; want refused", v)
	}
	m.report.Stage = fleet.StageInstaller
	if v, _ := m.attest(v2); !v.Accepted || v.Image != v1 {
		t.Errorf("installer of image 1 that says it is 2: %+v; want accepted as 1", v)
	}
}

// A node that refuses an image, say for its signature, is not waited for.
func TestInstallRefused(t *testing.T) {
	l := newLab(t)
	v1, v2 := l.publish("1"), l.publish("2")
	m := l.ready(1, "rack", v1)
	_, err := l.op.NodeAct(ctx, "n1", "reimage", api.NodeRequest{Image: v2})
	l.must(err)
	d := m.beat()
	l.must(m.c.Events(ctx, api.NodeEvent{Kind: "install.refused", Message: "image 2: signature is not valid"}))
	if again := m.beat(); again != d {
		t.Errorf("before the node has acted %+v is wanted; want %+v still", again, d)
	}
	m.report.Acted = d.Generation
	if back := m.beat(); back.Image != v1 {
		t.Errorf("after the refusal %+v is wanted; want what it runs", back)
	}
	if b := l.node("n1").Banned; len(b) != 1 || b[0].Reason != "check installation: image 2: signature is not valid" {
		t.Errorf("banned = %+v", b)
	}
}

// A check that failed for a moment is not why a trial ended later.
func TestPassingFailure(t *testing.T) {
	l := newLab(t)
	m := l.ready(1, "rack", l.publish("1"))
	m.report.Slots[0].State = fleet.SlotTrying
	m.report.Health = []fleet.CheckResult{{Name: "net", Required: true, Status: fleet.CheckFailed}}
	m.beat()
	if f := l.node("n1").Failure; f == nil || f.Check != "net" {
		t.Fatalf("failure = %+v; want check net", f)
	}
	m.report.Health[0].Status = fleet.CheckPassed
	m.beat()
	if f := l.node("n1").Failure; f != nil {
		t.Errorf("failure = %+v after the check passed; want none", f)
	}
}

func TestFreshNodeGetsPoolsImage(t *testing.T) {
	l := newLab(t)
	v1, v2 := l.publish("1"), l.publish("2")
	_, err := l.op.SetPool(ctx, fleet.Pool{Name: "rack", Image: "rack 1"})
	l.must(err)
	m := l.machine(1)
	_, err = l.op.AddNode(ctx, api.NodeRequest{Name: "n1", Pool: "rack", MACs: []string{string(m.mac)}})
	l.must(err)
	l.must(m.join())
	d := m.beat()
	if d.Image != v1 || d.Generation != 1 {
		t.Fatalf("first heartbeat wants %+v; want image %s, generation 1", d, v1)
	}
	if again := m.beat(); again != d {
		t.Errorf("second heartbeat wants %+v; want the same", again)
	}
	_, err = l.op.SetPool(ctx, fleet.Pool{Name: "rack", Image: v2})
	l.must(err)
	if again := m.beat(); again != d {
		t.Errorf("after the pool changed: %+v; want the same, pools move nobody", again)
	}
}

// Case C76: what failed is not sent again without an operator's word.
func TestBan(t *testing.T) {
	l := newLab(t)
	v1, v2 := l.publish("1"), l.publish("2")
	m := l.ready(1, "rack", v1)
	_, err := l.op.NodeAct(ctx, "n1", "reimage", api.NodeRequest{Image: "rack 2"})
	l.must(err)
	d := m.beat()
	if d.Image != v2 || d.Generation != 2 || !d.Reinstall {
		t.Fatalf("reimage wants %+v", d)
	}
	trial := m.report
	trial.BootID, trial.Booted, trial.Acted, trial.Healthy = "boot2", fleet.SlotB, 2, false
	short := strings.TrimPrefix(v2, "sha256:")[:12] // as the ESP's file name has it
	trial.Slots = []fleet.SlotReport{m.report.Slots[0], {Slot: fleet.SlotB, State: fleet.SlotTrying, Image: short, Generation: 2}}
	trial.Health = []fleet.CheckResult{{Name: "gpu-count", Status: fleet.CheckFailed, Required: true, Detail: "want 8, saw 7"}}
	back := m.report
	m.report = trial
	m.beat()
	back.BootID, back.Acted = "boot3", 2
	back.Slots = []fleet.SlotReport{back.Slots[0], {Slot: fleet.SlotB, State: fleet.SlotBad, Image: short, Generation: 2}}
	m.report = back
	d = m.beat()
	if d.Image != v1 || d.Generation != 3 {
		t.Errorf("after the fallback the server wants %+v; want image 1 under generation 3", d)
	}
	n := l.node("n1")
	if len(n.Banned) != 1 || n.Banned[0].Image != v2 || n.Banned[0].Reason != "check gpu-count: want 8, saw 7" {
		t.Errorf("banned = %+v; want image 2 with the failed check", n.Banned)
	}
	if again := m.beat(); again != d {
		t.Errorf("the same report again wants %+v; want %+v", again, d)
	}
	_, err = l.op.NodeAct(ctx, "n1", "reimage", api.NodeRequest{Image: v2})
	wantStatus(t, "reimage with the banned image", err, 409)
	_, err = l.op.NodeAct(ctx, "n1", "unban", api.NodeRequest{Image: v2})
	l.must(err)
	_, err = l.op.NodeAct(ctx, "n1", "reimage", api.NodeRequest{Image: v2})
	l.must(err)
	if d := m.beat(); d.Image != v2 || d.Generation != 4 {
		t.Errorf("after the unban %+v is wanted; the old failure must not count", d)
	}
	if n := l.node("n1"); len(n.Banned) != 0 {
		t.Errorf("banned again by an old report: %+v", n.Banned)
	}
}

// Case C81: node clocks are shown and nothing else.
func TestNodeClock(t *testing.T) {
	l := newLab(t)
	m := l.ready(1, "rack", l.publish("1"))
	for i, at := range []time.Time{time.Unix(0, 0), l.clock.now().Add(-30 * time.Minute), l.clock.now().Add(24 * time.Hour), {}} {
		m.report.Time, m.report.BootID = at, "boot"+string(rune('a'+i))
		_, err := m.c.Heartbeat(ctx, &m.report)
		l.must(err)
		if got := l.node("n1").LastSeen; !got.Equal(l.clock.now()) {
			t.Errorf("node clock %s: last seen %s; want the server's %s", at, got, l.clock.now())
		}
	}
	if ev := l.events("node.clock-skew"); len(ev) != 3 {
		t.Errorf("skew events = %q; want one for each boot with a wrong clock", ev)
	}
}

// Case C81: a node that flaps at every heartbeat for ten minutes is one event.
func TestFlapping(t *testing.T) {
	l := newLab(t)
	m := l.ready(1, "rack", l.publish("1"))
	for i := range 60 {
		m.report.Healthy = i%2 == 0
		m.report.Health = []fleet.CheckResult{{Name: "nic", Required: true, Status: map[bool]fleet.CheckStatus{true: fleet.CheckPassed, false: fleet.CheckFailed}[m.report.Healthy]}}
		m.beat()
		l.clock.add(10 * time.Second)
	}
	if ev := l.events("node.unhealthy"); len(ev) != 1 || len(l.events("node.healthy")) != 0 {
		t.Errorf("events = %q, %q; want one", ev, l.events("node.healthy"))
	}
	m.report.Healthy, m.report.Health[0].Status = true, fleet.CheckPassed
	for range 20 {
		m.beat()
	}
	if ev := l.events("node.healthy"); len(ev) != 1 {
		t.Errorf("recovery events = %q; want one", ev)
	}
}

func TestHeartbeatKeepsInventoryOfTheBoot(t *testing.T) {
	l := newLab(t)
	m := l.ready(1, "rack", l.publish("1"))
	m.report.BootID, m.report.Inventory = "boot7", &fleet.Inventory{Vendor: "QEMU"}
	m.beat()
	m.report.Inventory = nil
	m.beat()
	if n := l.node("n1"); n.Reported.Inventory == nil || n.Reported.Inventory.Vendor != "QEMU" {
		t.Errorf("inventory = %+v; want that of the boot's first report", n.Reported.Inventory)
	}
}

func TestImagesOverMTLS(t *testing.T) {
	l := newLab(t)
	b := l.upload("1")
	image := l.publish("1")
	m := l.ready(1, "rack", image)
	raw, err := m.c.ImageManifest(ctx, image)
	if err != nil || !bytes.Equal(raw, b.raw) {
		t.Errorf("manifest: %v, equal %v", err, bytes.Equal(raw, b.raw))
	}
	sig, err := m.c.ImageSignature(ctx, image)
	if err != nil || !bytes.Equal(sig, b.sig) {
		t.Errorf("signature: %x, %v; want %x", sig, err, b.sig)
	}
	img, err := l.srv.Images.Image(image)
	l.must(err)
	root := img.Manifest.Root
	for _, off := range []int64{0, 5, root.SizeBytes - 1, root.SizeBytes} {
		r := m.c.Blob(ctx, image, root.Digest, off, root.SizeBytes)
		got, err := io.ReadAll(r)
		r.Close()
		if err != nil || !bytes.Equal(got, b.root[off:]) {
			t.Errorf("blob from %d = %q, %v; want %q", off, got, err, b.root[off:])
		}
	}
	_, err = io.ReadAll(m.c.Blob(ctx, image, "sha256:"+strings.Repeat("0", 64), 0, 5))
	wantStatus(t, "blob of no image", err, 404)
	_, err = m.c.ImageManifest(ctx, "sha256:"+strings.Repeat("0", 64))
	wantStatus(t, "image that is not published", err, 404)
}

func TestNodeEvents(t *testing.T) {
	l := newLab(t)
	m := l.ready(1, "rack", l.publish("1"))
	l.must(m.c.Events(ctx, api.NodeEvent{Kind: "install.progress", Message: "43 %\x1b[31m\n" + strings.Repeat("x", 5000)}))
	ev, err := l.view.Events(ctx, api.EventQuery{Kind: "install."})
	l.must(err)
	if len(ev) != 1 || ev[0].Node != "n1" || ev[0].Actor != "node:n1" || len(ev[0].Message) > 2010 || strings.ContainsAny(ev[0].Message, "\x1b\n") {
		t.Errorf("events = %+v; want one, cut and clean", ev)
	}
}

// The server can be replaced by a new one over the same store between any
// two calls: nothing that matters is in memory.
func TestServerRestart(t *testing.T) {
	l := newLab(t)
	image := l.publish("1")
	m := l.ready(1, "rack", image)
	n, err := m.c.Nonce(ctx)
	l.must(err)
	again := newLab(t, func(o *server.Options) {
		o.Store, o.CA, o.Images, o.ImageKeys, o.TPM = l.store, l.srv.CA, l.srv.Images, l.srv.ImageKeys, l.tpm
	})
	again.store, again.caPEM, again.tpm = l.store, l.caPEM, l.tpm
	moved := l.machine(1)
	moved.l, moved.c = again, nil
	moved.c, err = api.NewNodeClient(again.url, l.caPEM)
	l.must(err)
	l.must(moved.join())
	v, err := moved.c.Attest(ctx, moved.evidence(n.Nonce, image))
	if err != nil || !v.Accepted {
		t.Errorf("nonce of the old server at the new one: %+v, %v; want accepted once", v, err)
	}
	if v, err := moved.c.Attest(ctx, moved.evidence(n.Nonce, image)); err != nil || v.Accepted {
		t.Errorf("and again: %+v, %v; want refused", v, err)
	}
}

func TestStoreFaultIsToldAsOurs(t *testing.T) {
	l := newLab(t, func(o *server.Options) { o.Store = broken{o.Store} })
	_, err := l.view.Nodes(ctx)
	wantStatus(t, "list with a broken store", err, 500)
	if err == nil || strings.Contains(err.Error(), "disk on fire") {
		t.Errorf("error = %v; want it not to tell what is inside", err)
	}
}

func TestObserveIsIdempotent(t *testing.T) {
	l := newLab(t)
	m := l.ready(1, "rack", l.publish("1"))
	before := l.node("n1")
	count := len(l.events(""))
	m.beat()
	if d := cmp.Diff(before, l.node("n1")); d != "" || len(l.events("")) != count {
		t.Errorf("a repeated heartbeat changed the node or made events (-before +after):\n%s", d)
	}
}

// broken is a store whose disk is gone.
type broken struct{ store.Store }

func (broken) Nodes(context.Context) ([]*fleet.Node, error) { return nil, errBroken }

var errBroken = errors.New("disk on fire")

// Nodes are told all servers of the fleet with each heartbeat, with news or
// without, and of a change at once.
func TestServersAreTold(t *testing.T) {
	l := newLab(t)
	m := l.ready(1, "rack", l.publish("1"))
	told := func() []string {
		t.Helper()
		hb, err := m.c.Heartbeat(ctx, &m.report)
		l.must(err)
		return hb.Servers
	}
	if got := told(); got != nil {
		t.Errorf("a server that is alone tells of %q", got)
	}
	want := []string{"https://10.77.0.1:8443", "https://10.77.0.2:8443"}
	l.reload(func(o *server.Options) { o.Servers = want })
	if got := told(); !slices.Equal(got, want) {
		t.Errorf("without news: told %q, want %q", got, want)
	}
	m.report.BootID += "'"
	if got := told(); !slices.Equal(got, want) {
		t.Errorf("with news: told %q, want %q", got, want)
	}
}
