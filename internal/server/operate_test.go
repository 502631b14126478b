package server_test

import (
	"bytes"
	"crypto/ed25519"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/netboot"
	"github.com/turnout-project/turnout/internal/rollout"
	"github.com/turnout-project/turnout/internal/server"
)

func TestPublishChecks(t *testing.T) {
	l := newLab(t)
	b := l.upload("1")
	_, stranger, err := ed25519.GenerateKey(nil)
	l.must(err)
	foreign, err := manifest.Sign(stranger, b.digest)
	l.must(err)
	for _, tt := range []struct {
		name   string
		r      api.PublishRequest
		status int
	}{
		{"signed by a stranger", api.PublishRequest{Manifest: b.raw, Signature: foreign}, 403},
		{"not signed", api.PublishRequest{Manifest: b.raw}, 403},
		{"signature of another image", api.PublishRequest{Manifest: append([]byte(" "), b.raw...), Signature: b.sig}, 403},
		{"no image", func() api.PublishRequest {
			raw := []byte("{}")
			sig, _ := manifest.Sign(l.key, manifest.DigestOf(raw))
			return api.PublishRequest{Manifest: raw, Signature: sig}
		}(), 422},
		{"a blob that was not sent", func() api.PublishRequest {
			raw := bytes.Replace(b.raw, []byte(manifest.DigestOf(b.root)), []byte("sha256:"+strings.Repeat("0", 64)), 1)
			sig, _ := manifest.Sign(l.key, manifest.DigestOf(raw))
			return api.PublishRequest{Manifest: raw, Signature: sig}
		}(), 422},
	} {
		_, err := l.op.Publish(ctx, tt.r)
		wantStatus(t, tt.name, err, tt.status)
	}
	if is, err := l.view.Images(ctx); err != nil || len(is) != 0 {
		t.Errorf("images after refused publications = %v, %v; want none", is, err)
	}
	first, err := l.op.Publish(ctx, api.PublishRequest{Manifest: b.raw, Signature: b.sig})
	l.must(err)
	l.clock.add(time.Hour)
	again, err := l.op.Publish(ctx, api.PublishRequest{Manifest: b.raw, Signature: b.sig})
	l.must(err)
	if d := cmp.Diff(first, again); d != "" {
		t.Errorf("published twice (-first +again):\n%s", d)
	}
	wantStatus(t, "blob under a wrong name", l.op.PutBlob(ctx, "sha256:"+strings.Repeat("0", 64), strings.NewReader("x")), 422)
	wantStatus(t, "blob without a name", l.op.PutBlob(ctx, "sha256:..%2f", strings.NewReader("x")), 400)
	for digest, want := range map[string]bool{manifest.DigestOf(b.root): true, "sha256:" + strings.Repeat("0", 64): false} {
		if got, err := l.view.HasBlob(ctx, digest); got != want || err != nil {
			t.Errorf("HasBlob(%s) = %v, %v; want %v", digest, got, err, want)
		}
	}
}

func TestImagesByName(t *testing.T) {
	l := newLab(t)
	v1, _ := l.publish("1"), l.publish("2")
	for ref, status := range map[string]int{
		"rack 1": 0, v1: 0, v1[:19]: 0, strings.TrimPrefix(v1, "sha256:")[:12]: 0,
		"rack": 409, "rack 3": 404, "sha": 404, "": 0,
	} {
		p, err := l.op.SetPool(ctx, fleet.Pool{Name: "p", Image: ref})
		wantStatus(t, "pool image "+ref, err, status)
		if status == 0 && ref != "" && (err != nil || p.Image != v1) {
			t.Errorf("pool image %q is %+v; want %s", ref, p, v1)
		}
	}
}

// flipReady is a machine with both slots confirmed, B booted.
func (l *lab) flipReady(n int, v1, v2 string) *machine {
	m := l.ready(n, "rack", v1)
	m.report.Booted, m.report.Acted = fleet.SlotB, 2
	m.report.Slots[1] = fleet.SlotReport{Slot: fleet.SlotB, State: fleet.SlotGood, Image: v2, Generation: 2}
	m.beat()
	return m
}

func TestSlotFlip(t *testing.T) {
	l := newLab(t)
	v1, v2 := l.publish("1"), l.publish("2")
	a, b := l.flipReady(1, v1, v2), l.flipReady(2, v1, v2)
	b.report.Slots[0].State, b.report.Slots[0].Reason = fleet.SlotBad, "root does not verify"
	b.beat()

	dry, err := l.op.Flip(ctx, api.FlipRequest{Nodes: []string{"n1"}, DryRun: true})
	l.must(err)
	want := []api.Flip{{Node: "n1", From: fleet.SlotB, To: fleet.SlotA, Image: v1, Generation: 3}}
	if d := cmp.Diff(want, dry); d != "" {
		t.Errorf("dry run (-want +got):\n%s", d)
	}
	if d := a.beat(); d.Generation != 0 {
		t.Errorf("after a dry run %+v is wanted; want nothing", d)
	}
	both, err := l.op.Flip(ctx, api.FlipRequest{Nodes: []string{"n2", "n1"}})
	l.must(err)
	if both[0].Done || both[1].Done || both[1].Refused != "its other slot A is bad, not good: root does not verify" {
		t.Errorf("flip of two, one of which cannot = %+v; want none done, and why", both)
	}
	if d := a.beat(); d.Generation != 0 {
		t.Errorf("the other node wants %+v; want it untouched", d)
	}
	done, err := l.op.Flip(ctx, api.FlipRequest{Nodes: []string{"n1", "n1"}})
	l.must(err)
	if len(done) != 1 || !done[0].Done {
		t.Errorf("flip = %+v; want one, done", done)
	}
	if d := a.beat(); d.Image != v1 || d.Generation != 3 || d.Reinstall {
		t.Errorf("after the flip %+v is wanted; want image 1, generation 3", d)
	}
	_, err = l.op.Flip(ctx, api.FlipRequest{Nodes: []string{"nobody"}})
	wantStatus(t, "flip of nobody", err, 404)
	_, err = l.op.Flip(ctx, api.FlipRequest{})
	wantStatus(t, "flip of none", err, 400)
}

func policy() fleet.Policy {
	return fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "canary"}, {Pool: "rack"}}, MaxUnavailable: fleet.Amount{Nodes: 1}}
}

// pass lets the executor work as the server's does.
func (l *lab) pass() {
	l.t.Helper()
	ex := &rollout.Executor{Store: l.store, Now: l.clock.now}
	for range 3 {
		l.must(ex.Pass(ctx))
	}
}

// TestRolloutHalts is the canary story over the API: it fails, falls back,
// the rollout says which check failed where, and nobody else was touched.
func TestRolloutHalts(t *testing.T) {
	l := newLab(t)
	v1, v2 := l.publish("1"), l.publish("2")
	c, r := l.ready(1, "canary", v1), l.ready(2, "rack", v1)
	ro, err := l.op.StartRollout(ctx, api.RolloutRequest{Image: "rack 2", Policy: policy()})
	l.must(err)
	l.pass()
	if d := c.beat(); d.Image != v2 || d.Rollout != ro.ID || d.Generation != 2 {
		t.Fatalf("canary wants %+v", d)
	}
	old := c.report
	c.report.BootID, c.report.Booted, c.report.Acted, c.report.Healthy = "boot2", fleet.SlotB, 2, false
	c.report.Slots = []fleet.SlotReport{old.Slots[0], {Slot: fleet.SlotB, State: fleet.SlotTrying, Image: v2, Generation: 2, TriesLeft: 1}}
	c.report.Health = []fleet.CheckResult{{Name: "gpu-count", Status: fleet.CheckFailed, Required: true, Detail: "want 8, saw 7"}}
	c.beat()
	l.pass()
	_, err = l.op.Flip(ctx, api.FlipRequest{Nodes: []string{"n1"}})
	l.must(err)
	if _, err = l.op.NodeAct(ctx, "n1", "reimage", api.NodeRequest{Image: v1}); api.StatusOf(err) != 409 {
		t.Errorf("reimage of a node on the move: %v; want 409", err)
	}
	old.BootID, old.Acted = "boot3", 2
	old.Slots = []fleet.SlotReport{old.Slots[0], {Slot: fleet.SlotB, State: fleet.SlotBad, Image: v2, Generation: 2}}
	c.report = old
	if d := c.beat(); d.Image != v1 || d.Generation != 3 {
		t.Errorf("after the fallback canary wants %+v", d)
	}
	l.pass()
	ro, err = l.view.Rollout(ctx, ro.ID)
	l.must(err)
	if ro.State != fleet.RolloutHalted || ro.Reason != "node n1: check gpu-count: want 8, saw 7 (1 failed, budget 0)" {
		t.Errorf("rollout is %s: %s", ro.State, ro.Reason)
	}
	if d := r.beat(); d.Generation != 0 {
		t.Errorf("the other node wants %+v; want it untouched", d)
	}

	_, err = l.op.StartRollout(ctx, api.RolloutRequest{Image: v2, Policy: policy()})
	l.must(err)
	l.pass()
	rs, err := l.view.Rollouts(ctx)
	l.must(err)
	if last := rs[len(rs)-1]; last.State != fleet.RolloutHalted || !strings.Contains(last.Nodes[0].Reason, "banned here") {
		t.Errorf("second rollout of the banned image: %+v; want it halted, the canary skipped", last)
	}
	if d := c.beat(); d.Image != v1 {
		t.Errorf("canary wants %+v; a banned image must not be sent again", d)
	}
}

// TestRolloutSucceeds drives both stages, then a fresh node joins.
func TestRolloutSucceeds(t *testing.T) {
	l := newLab(t)
	v1, v2 := l.publish("1"), l.publish("2")
	c, r := l.ready(1, "canary", v1), l.ready(2, "rack", v1)
	ro, err := l.op.StartRollout(ctx, api.RolloutRequest{Image: v2, Policy: policy()})
	l.must(err)
	for _, m := range []*machine{c, r} {
		l.pass()
		d := m.beat()
		if d.Image != v2 {
			t.Fatalf("%s wants %+v; want its turn", m.name, d)
		}
		m.report.BootID, m.report.Booted, m.report.Acted = "boot2", fleet.SlotB, d.Generation
		m.report.Slots[1] = fleet.SlotReport{Slot: fleet.SlotB, State: fleet.SlotGood, Image: v2, Generation: d.Generation}
		m.beat()
	}
	l.pass()
	if ro, err = l.view.Rollout(ctx, ro.ID); err != nil || ro.State != fleet.RolloutDone {
		t.Fatalf("rollout = %+v, %v; want done", ro, err)
	}
	fresh := l.machine(3)
	_, err = l.op.AddNode(ctx, api.NodeRequest{Name: "n3", Pool: "rack", MACs: []string{string(fresh.mac)}})
	l.must(err)
	l.must(fresh.join())
	if d := fresh.beat(); d.Image != v2 {
		t.Errorf("fresh node wants %+v; want the rolled out image", d)
	}
}

func TestRolloutRefusals(t *testing.T) {
	l := newLab(t)
	v1, v2 := l.publish("1"), l.publish("2")
	l.ready(1, "canary", v1)
	l.ready(2, "rack", v1)
	start := func(p fleet.Policy) error {
		_, err := l.op.StartRollout(ctx, api.RolloutRequest{Image: v2, Policy: p})
		return err
	}
	wantStatus(t, "no stages", start(fleet.Policy{}), 409)
	wantStatus(t, "empty pool", start(fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "nobody"}}}), 409)
	wantStatus(t, "pool twice", start(fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "rack"}, {Pool: "rack"}}}), 409)
	_, err := l.op.StartRollout(ctx, api.RolloutRequest{Image: "nothing", Policy: policy()})
	wantStatus(t, "unpublished image", err, 404)

	draft, err := l.op.StartRollout(ctx, api.RolloutRequest{Image: v2, Policy: policy(), DryRun: true})
	l.must(err)
	if rs, _ := l.view.Rollouts(ctx); len(rs) != 0 || len(draft.Nodes) != 2 {
		t.Errorf("a draft left %d rollouts, names %d nodes; want 0 and 2", len(rs), len(draft.Nodes))
	}
	l.must(start(policy()))
	wantStatus(t, "overlapping", start(fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "rack"}}}), 409)
	act := func(act string) error {
		_, err := l.op.RolloutAct(ctx, "r1", act, api.ReasonRequest{Reason: "test"})
		return err
	}
	wantStatus(t, "resume of a running one", act("resume"), 409)
	l.must(act("pause"))
	wantStatus(t, "pause of a paused one", act("pause"), 409)
	l.pass()
	if n := l.node("n1"); n.Desired.Generation != 0 {
		t.Errorf("paused rollout asked n1 for %+v", n.Desired)
	}
	l.must(act("resume"))
	l.must(act("abort"))
	wantStatus(t, "abort of an aborted one", act("abort"), 409)
	wantStatus(t, "explode", act("explode"), 404)
	l.must(start(fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "rack"}}}))
}

// Case C78: a canary that is removed in the middle ends the wave by name.
func TestRemovedWhileMoving(t *testing.T) {
	l := newLab(t)
	v1, v2 := l.publish("1"), l.publish("2")
	l.ready(1, "canary", v1)
	l.ready(2, "rack", v1)
	_, err := l.op.StartRollout(ctx, api.RolloutRequest{Image: v2, Policy: policy()})
	l.must(err)
	l.pass()
	l.must(l.op.RemoveNode(ctx, "n1"))
	l.pass()
	r, err := l.view.Rollout(ctx, "r1")
	l.must(err)
	if r.State != fleet.RolloutHalted || !strings.Contains(r.Reason, "node n1: removed while it was moving") {
		t.Errorf("rollout is %s: %s; want it halted, naming n1", r.State, r.Reason)
	}
}

func TestAbortFlipsBack(t *testing.T) {
	l := newLab(t)
	v1, v2 := l.publish("1"), l.publish("2")
	c, r := l.ready(1, "canary", v1), l.ready(2, "rack", v1)
	p := policy()
	p.Bake = time.Hour
	_, err := l.op.StartRollout(ctx, api.RolloutRequest{Image: v2, Policy: p})
	l.must(err)
	l.pass()
	d := c.beat()
	c.report.Booted, c.report.Acted = fleet.SlotB, d.Generation
	c.report.Slots[1] = fleet.SlotReport{Slot: fleet.SlotB, State: fleet.SlotGood, Image: v2, Generation: d.Generation}
	c.beat()
	l.pass()
	_, err = l.op.RolloutAct(ctx, "r1", "abort", api.ReasonRequest{FlipBack: true, Reason: "slow"})
	l.must(err)
	l.pass()
	if d := c.beat(); d.Image != v1 || d.Generation != 3 {
		t.Errorf("canary wants %+v; want image 1 back", d)
	}
	if d := r.beat(); d.Generation != 0 {
		t.Errorf("the other node wants %+v; want it untouched", d)
	}
	c.report.Booted, c.report.Acted = fleet.SlotA, 3
	c.report.Slots[0].Generation = 3
	c.beat()
	l.pass()
	ro, err := l.view.Rollout(ctx, "r1")
	l.must(err)
	if ro.Nodes[0].State != fleet.MoveReturned || ro.Nodes[1].State != fleet.MoveWaiting {
		t.Errorf("moves = %+v; want returned, waiting", ro.Nodes)
	}
	if n := l.node("n1"); len(n.Banned) != 0 {
		t.Errorf("n1 has bans %v after an operator's abort", n.Banned)
	}
}

// Case C43: one node, however its MAC is spelled.
func TestMACSpellings(t *testing.T) {
	l := newLab(t)
	add := func(name string, macs ...string) error {
		_, err := l.op.AddNode(ctx, api.NodeRequest{Name: name, Pool: "rack", MACs: macs})
		return err
	}
	l.must(add("a", "52-54-00-AB-CD-EF"))
	for _, s := range []string{"52:54:00:ab:cd:ef", "5254.00ab.cdef", "525400ABCDEF"} {
		wantStatus(t, s, add("b", s), 409)
	}
	wantStatus(t, "twice in one", add("b", "52:54:00:00:00:01", "525400000001"), 400)
	wantStatus(t, "base-60 number of a YAML reader", add("b", "41056736456"), 400)
	wantStatus(t, "none", add("b"), 400)
	wantStatus(t, "all zero", add("b", "00:00:00:00:00:00"), 400)
	l.must(add("ib", "80:00:02:08:fe:80:00:00:00:00:00:00:00:02:c9:03:00:0a:0b:0c"))
}

func TestEventsWait(t *testing.T) {
	l := newLab(t)
	l.publish("1")
	ev, err := l.view.Events(ctx, api.EventQuery{})
	l.must(err)
	last := ev[len(ev)-1].ID
	got := make(chan []fleet.Event, 1)
	go func() {
		ev, err := l.view.Events(ctx, api.EventQuery{After: last, Wait: 30 * time.Second})
		if err != nil {
			t.Errorf("waiting for events: %v", err)
		}
		got <- ev
	}()
	_, err = l.op.SetPool(ctx, fleet.Pool{Name: "p"})
	l.must(err)
	if ev := <-got; len(ev) != 1 || ev[0].Kind != "pool.set" || ev[0].Actor != "operator:test-operator" {
		t.Errorf("events = %+v; want the one that happened", ev)
	}
}

func TestBootPolicy(t *testing.T) {
	l := newLab(t)
	decide := func(mac fleet.MAC) netboot.Answer {
		t.Helper()
		a, err := l.srv.Decide(ctx, netboot.Client{MAC: mac, Arch: netboot.ArchX64, HasArch: true, Kind: netboot.KindUEFIPXE})
		l.must(err)
		return a
	}
	if a := decide("52:54:00:00:00:77"); a.Kind != netboot.AnswerRefuse || !strings.Contains(a.Reason, "image publish") {
		t.Errorf("without any image: %+v; want refused, with what to do", a)
	}
	v1, v2 := l.publish("1"), l.publish("2")
	m := l.flipReady(1, v1, v2)
	check := func(what string, a netboot.Answer, kind netboot.AnswerKind, text string) {
		t.Helper()
		if a.Kind != kind {
			t.Fatalf("%s: %s (%s); want %s", what, a.Kind, a.Reason, kind)
		}
		if kind == netboot.AnswerRefuse {
			return
		}
		f, err := a.Open()
		l.must(err)
		defer f.Close()
		b := make([]byte, 100)
		n, _ := f.Read(b)
		if string(b[:n]) != text || a.Size != int64(n) || !a.Serves() {
			t.Errorf("%s: file %q, size %d; want %q", what, b[:n], a.Size, text)
		}
	}
	check("unknown", decide("52:54:00:00:00:77"), netboot.AnswerInstaller, "installer of 2")
	check("installed, runs B", decide(m.mac), netboot.AnswerSlot, "uki of 2")
	_, err := l.op.Flip(ctx, api.FlipRequest{Nodes: []string{"n1"}})
	l.must(err)
	check("flipped", decide(m.mac), netboot.AnswerSlot, "uki of 1")
	m.report.Slots[0].State = fleet.SlotTrying
	m.beat()
	check("a trial is not started from the network", decide(m.mac), netboot.AnswerSlot, "uki of 2")
	_, err = l.op.NodeAct(ctx, "n1", "reimage", api.NodeRequest{Image: v1})
	l.must(err)
	check("to be reinstalled", decide(m.mac), netboot.AnswerInstaller, "installer of 1")
	_, err = l.op.SetPool(ctx, fleet.Pool{Name: "rack", Image: v1})
	l.must(err)
	check("unknown again: a pool's image rather than the newest", decide("52:54:00:00:00:77"), netboot.AnswerInstaller, "installer of 1")
	a, err := l.srv.Decide(ctx, netboot.Client{MAC: m.mac, Arch: netboot.ArchARM64, HasArch: true})
	if err != nil || a.Kind != netboot.AnswerRefuse || !strings.Contains(a.Reason, "arm64") {
		t.Errorf("arm64 machine: %+v, %v; want refused", a, err)
	}
	off := newLab(t, func(o *server.Options) { o.Discovery = "" })
	off.publish("1")
	a, err = off.srv.Decide(ctx, netboot.Client{MAC: "52:54:00:00:00:77"})
	if err != nil || a.Kind != netboot.AnswerRefuse {
		t.Errorf("unknown machine with discovery off: %+v, %v; want refused", a, err)
	}
}

func TestCordon(t *testing.T) {
	l := newLab(t)
	v1, v2 := l.publish("1"), l.publish("2")
	l.ready(1, "rack", v1)
	m := l.ready(2, "rack", v1)
	_, err := l.op.NodeAct(ctx, "n1", "cordon", api.NodeRequest{Reason: "benchmark"})
	l.must(err)
	_, err = l.op.StartRollout(ctx, api.RolloutRequest{Image: v2, Policy: fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "rack"}}}})
	l.must(err)
	l.pass()
	r, err := l.view.Rollout(ctx, "r1")
	l.must(err)
	if r.Nodes[0].State != fleet.MoveSkipped || r.Nodes[0].Reason != "cordoned" || r.Nodes[1].State != fleet.MoveMoving {
		t.Errorf("moves = %+v; want n1 skipped, n2 moving", r.Nodes)
	}
	m.beat()
	_, err = l.op.NodeAct(ctx, "n1", "uncordon", api.NodeRequest{})
	l.must(err)
	_, err = l.op.NodeAct(ctx, "n1", "uncordon", api.NodeRequest{})
	wantStatus(t, "uncordon twice", err, 409)
}
