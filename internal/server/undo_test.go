package server_test

import (
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/server"
)

// runs makes a machine do what is wanted of it, as if it took no time.
func (m *machine) runs(d fleet.Desired) {
	m.l.t.Helper()
	r := &m.report
	if d.Generation > r.Acted && d.Image != r.BootedImage() {
		r.Booted = r.Booted.Other()
		r.Slots[r.Booted.Index()] = fleet.SlotReport{Slot: r.Booted, State: fleet.SlotGood, Image: d.Image, Generation: d.Generation}
	}
	r.Acted = d.Generation
	m.beat()
}

// A rollout that is done is undone: what it moved goes back, within the same
// limits, its pools install the image before, and what was moved since stays.
func TestUndo(t *testing.T) {
	l := newLab(t)
	v1, v2, v3 := l.publish("1"), l.publish("2"), l.publish("3")
	_, err := l.op.SetPool(ctx, fleet.Pool{Name: "rack", Image: v1})
	l.must(err)
	ms := []*machine{l.ready(1, "rack", v1), l.ready(2, "rack", v1), l.ready(3, "rack", v1)}
	settle := func() {
		for range 6 {
			l.pass()
			for _, m := range ms {
				m.runs(m.beat())
			}
		}
		l.pass()
	}
	_, err = l.op.StartRollout(ctx, api.RolloutRequest{Image: v2, Policy: fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "rack"}}}})
	l.must(err)
	undo := func(r api.ReasonRequest) error {
		_, err := l.op.RolloutAct(ctx, "r1", "undo", r)
		return err
	}
	wantStatus(t, "undo of a running one", undo(api.ReasonRequest{}), 409)
	settle()
	_, err = l.op.NodeAct(ctx, "n3", "reimage", api.NodeRequest{Image: v3})
	l.must(err)
	settle()
	wantStatus(t, "undo with nonsense", undo(api.ReasonRequest{AtOnce: "many"}), 400)
	l.must(undo(api.ReasonRequest{Reason: "slow", AtOnce: "1"}))
	l.pass()
	if a, b := ms[0].beat(), ms[1].beat(); a.Image != v1 || b.Image != v2 {
		t.Errorf("at once are wanted %s and %s; want one on its way back", a.Image, b.Image)
	}
	settle()
	for i, want := range []string{v1, v1, v3} {
		if got := ms[i].report.BootedImage(); got != want {
			t.Errorf("n%d runs %s, want %s", i+1, got, want)
		}
	}
	if p, err := l.view.Pools(ctx); err != nil || p[0].Image != v1 {
		t.Errorf("pools = %+v, %v; want the image before", p, err)
	}
	wantStatus(t, "undo twice", undo(api.ReasonRequest{}), 409)
}

// Windows hold back what would start, and nothing else.
func TestWindows(t *testing.T) {
	l := newLab(t, func(o *server.Options) { o.NodeCert = 24 * time.Hour })
	v1, v2 := l.publish("1"), l.publish("2")
	m := l.ready(1, "rack", v1)
	later := l.clock.now().UTC().Add(2 * time.Hour)
	p := fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "rack"}}, Windows: []fleet.Window{{From: later.Format("15:04"), To: later.Add(time.Hour).Format("15:04")}}}
	_, err := l.op.StartRollout(ctx, api.RolloutRequest{Image: v2, Policy: p})
	l.must(err)
	l.pass()
	if d := m.beat(); d.Image != "" {
		t.Errorf("outside of the window %+v is wanted", d)
	}
	l.clock.add(2*time.Hour + time.Minute)
	m.beat()
	l.pass()
	if d := m.beat(); d.Image != v2 {
		t.Errorf("in the window %+v is wanted; want image 2", d)
	}
	p.Windows[0].Zone = "Mars/Olympus"
	_, err = l.op.StartRollout(ctx, api.RolloutRequest{Image: v2, Policy: p})
	wantStatus(t, "a window on Mars", err, 409)
}

// An operator's word reaches the node's own ban.
func TestRetry(t *testing.T) {
	l := newLab(t)
	v1, v2 := l.publish("1"), l.publish("2")
	m := l.ready(1, "rack", v1)
	fail := func() {
		t.Helper()
		d := m.beat()
		m.report.Acted = d.Generation
		m.report.Slots[1] = fleet.SlotReport{Slot: fleet.SlotB, State: fleet.SlotBad, Image: v2, Generation: d.Generation, Reason: "no"}
		m.beat()
		l.pass()
		if n := l.node("n1"); len(n.Banned) != 1 {
			t.Fatalf("banned = %+v; want image 2", n.Banned)
		}
	}
	start := func(p fleet.Policy) {
		t.Helper()
		p.Stages = []fleet.RolloutStage{{Pool: "rack"}}
		_, err := l.op.StartRollout(ctx, api.RolloutRequest{Image: v2, Policy: p})
		l.must(err)
		l.pass()
	}
	start(fleet.Policy{})
	if d := m.beat(); d.Image != v2 || d.Retry {
		t.Errorf("first try wants %+v; want no retry", d)
	}
	fail()
	start(fleet.Policy{})
	if d := m.beat(); d.Image == v2 {
		t.Errorf("a banned image is wanted: %+v", d)
	}
	start(fleet.Policy{Retry: true})
	if d := m.beat(); d.Image != v2 || !d.Retry {
		t.Errorf("a rollout with --retry wants %+v", d)
	}
	fail()
	_, err := l.op.NodeAct(ctx, "n1", "reimage", api.NodeRequest{Image: v2})
	wantStatus(t, "reimage with a banned image", err, 409)
	_, err = l.op.NodeAct(ctx, "n1", "unban", api.NodeRequest{Image: v2})
	l.must(err)
	start(fleet.Policy{})
	if d := m.beat(); d.Image != v2 || !d.Retry {
		t.Errorf("after unban %+v is wanted; want a retry", d)
	}
	fail()
	_, err = l.op.NodeAct(ctx, "n1", "reimage", api.NodeRequest{Image: v2, Retry: true})
	l.must(err)
	if d := m.beat(); d.Image != v2 || !d.Retry || !d.Reinstall {
		t.Errorf("reimage --retry wants %+v", d)
	}
}
