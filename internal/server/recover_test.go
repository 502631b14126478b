package server_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/recovery"
	"github.com/turnout-project/turnout/internal/server"
	"github.com/turnout-project/turnout/internal/store"
)

// acting is a recovery that acts, with room enough.
func acting(o *server.Options) {
	c := recovery.DefaultConfig()
	c.Default.Mode, c.Default.PerHour, c.Default.AtOnce = recovery.Act, fleet.Amount{Nodes: 50}, fleet.Amount{Nodes: 50}
	c.Limits.PerHour, o.NodeCert = 50, 48*time.Hour
	o.Recovery = &c
}

// rack is a pool of nodes that send heartbeats.
type rack struct {
	l     *lab
	nodes []*machine
	quiet map[int]bool // send none
}

func newRecoveryRack(t *testing.T, n int, change ...func(*server.Options)) *rack {
	l := newLab(t, change...)
	image := l.publish("1.0.0")
	_, err := l.op.SetPool(ctx, fleet.Pool{Name: "rack", Image: image})
	l.must(err)
	r := &rack{l: l, quiet: map[int]bool{}}
	for i := range n {
		m := l.ready(i+1, "rack", image)
		m.report.Health = []fleet.CheckResult{{Name: "gpu", Class: fleet.FaultSoftware, Required: true, Status: fleet.CheckPassed}}
		r.nodes = append(r.nodes, m)
	}
	return r
}

// pass lets minutes go by.
func (r *rack) pass(minutes int) {
	r.l.t.Helper()
	for range minutes {
		r.l.clock.add(time.Minute)
		for i, m := range r.nodes {
			if !r.quiet[i] {
				m.beat()
			}
		}
		r.l.must(r.l.srv.RecoverOnce(ctx))
	}
}

func (r *rack) story() []string {
	r.l.t.Helper()
	var out []string
	for _, e := range r.l.events("recovery.") {
		what, _, _ := strings.Cut(e, ": ")
		out = append(out, what)
	}
	return out
}

// A silent node is cycled through its BMC, sent to the network, and at last
// quarantined; the server says so at every step.
func TestRecoverSilent(t *testing.T) {
	r := newRecoveryRack(t, 12, acting, withKeys(t))
	l, m := r.l, &powered{}
	m.on.Store(true)
	b, req := newBMC(t, m)
	_, err := l.admin.SetBMC(ctx, "n1", req)
	l.must(err)
	r.quiet[0] = true
	r.pass(8)
	if got, want := r.story(), []string{"recovery.recheck n1", "recovery.power-cycle n1"}; !cmp.Equal(got, want) {
		t.Errorf("story %q; want %q", got, want)
	}
	if _, ever := b.Sessions(); !m.Running() || ever < 2 {
		t.Errorf("the machine's power was not cycled: on %v, %d sessions", m.Running(), ever)
	}
	rec, err := l.view.Recovery(ctx)
	l.must(err)
	if len(rec.Nodes) != 1 || rec.Nodes[0].Node != "n1" || rec.Nodes[0].Trouble != "silent" || rec.Nodes[0].Step != "power-cycle" || rec.Steps != 1 {
		t.Errorf("recovery: %+v", rec)
	}
	r.pass(25)
	if !m.network.Load() || !l.node("n1").Desired.Reinstall {
		t.Errorf("for the reinstallation: network %v, desired %+v", m.network.Load(), l.node("n1").Desired)
	}
	r.pass(70)
	n := l.node("n1")
	if n.State != fleet.NodeQuarantined || !strings.HasPrefix(n.Reason, "recovery: silent: not seen since ") {
		t.Errorf("in the end it is %s: %s\n%v", n.State, n.Reason, r.story())
	}
	r.pass(60)
	want := []string{"recovery.recheck n1", "recovery.power-cycle n1", "recovery.reinstall n1", "recovery.quarantine n1"}
	if d := cmp.Diff(want, r.story()); d != "" {
		t.Errorf("story (-want +got):\n%s", d)
	}
}

// A node whose checks fail is asked for small favours with its heartbeats
// first. Its image is healthy on its peers, so no other image is tried.
func TestRecoverSoftware(t *testing.T) {
	r := newRecoveryRack(t, 12, acting, withKeys(t))
	l := r.l
	r.nodes[0].report.Health[0].Status, r.nodes[0].report.Healthy = fleet.CheckFailed, false
	r.pass(7)
	n := l.node("n1")
	if n.Ask == nil || n.Ask.Act != fleet.AskRecheck {
		t.Fatalf("asked for %+v", n.Ask)
	}
	resp, err := r.nodes[0].c.Heartbeat(ctx, &r.nodes[0].report)
	l.must(err)
	if resp.Ask == nil || *resp.Ask != *n.Ask {
		t.Errorf("the heartbeat brings %+v; want %+v", resp.Ask, n.Ask)
	}
	r.pass(3)
	if n := l.node("n1"); n.Ask.Act != fleet.AskRestart || n.Ask.ID <= resp.Ask.ID {
		t.Errorf("then asked for %+v", n.Ask)
	}
	r.pass(5)
	want := []string{"recovery.recheck n1", "recovery.restart-agent n1", "recovery.skipped n1", "recovery.skipped n1", "recovery.reinstall n1"}
	if d := cmp.Diff(want, r.story()); d != "" {
		t.Errorf("story (-want +got):\n%s\n%v", d, l.events("recovery."))
	}
	if w := l.node("n1").Desired; !w.Reinstall || !strings.HasPrefix(w.Reason, "recovery, reinstall: software: check gpu") {
		t.Errorf("desired %+v", w)
	}
}

// A BMC that does not answer is told, and not waited for.
func TestRecoverWithoutBMC(t *testing.T) {
	r := newRecoveryRack(t, 12, acting, withKeys(t))
	req := api.BMCRequest{URL: "https://127.0.0.1:1", User: "u", Password: "p", Pin: strings.Repeat("0", 64), NoCheck: true}
	_, err := r.l.admin.SetBMC(ctx, "n1", req)
	r.l.must(err)
	r.quiet[0] = true
	r.pass(10)
	want := []string{"recovery.recheck n1", "recovery.power-cycle n1", "recovery.failed n1", "recovery.reinstall n1", "recovery.failed n1"}
	if got := r.story(); len(got) < len(want) || !cmp.Equal(got[:len(want)], want) {
		t.Errorf("story %q; want %q", got, want)
	}
}

// The network goes: nothing is done, whatever time passes. A pause keeps
// recovery from a single node, too.
func TestRecoverNothing(t *testing.T) {
	r := newRecoveryRack(t, 10, acting, withKeys(t))
	for i := range r.nodes {
		r.quiet[i] = true
	}
	r.pass(200)
	for _, e := range r.story() {
		if !strings.HasPrefix(e, "recovery.storm") {
			t.Errorf("%s although the network is gone", e)
		}
	}
	rec, err := r.l.view.Recovery(ctx)
	r.l.must(err)
	if len(rec.Storms) != 2 {
		t.Errorf("storms: %+v", rec.Storms)
	}
	clear(r.quiet)
	r.pass(20)
	before := len(r.story())
	rec, err = r.l.op.PauseRecovery(ctx, api.PauseRequest{For: time.Hour, Reason: "work on the switches"})
	r.l.must(err)
	if rec.Paused == nil || !strings.Contains(rec.Pauser, "work on the switches") {
		t.Errorf("paused: %+v", rec)
	}
	r.quiet[3] = true
	r.pass(59)
	if got := r.story()[before:]; !cmp.Equal(got, []string{"recovery.paused "}) {
		t.Errorf("while paused: %q", got)
	}
	r.pass(2)
	if got := r.story(); got[len(got)-1] != "recovery.recheck n4" {
		t.Errorf("after the pause: %q", got[before:])
	}
	_, err = r.l.op.PauseRecovery(ctx, api.PauseRequest{})
	r.l.must(err)
	_, err = r.l.op.ResumeRecovery(ctx)
	r.l.must(err)
	_, err = r.l.op.ResumeRecovery(ctx)
	wantStatus(t, "resumed twice", err, 409)
}

// meddler does something just before an update.
type meddler struct {
	store.Store
	before func()
}

func (m *meddler) Update(ctx context.Context, fn func(store.Tx) error) error {
	if f := m.before; f != nil {
		m.before = nil
		f()
	}
	return m.Store.Update(ctx, fn)
}

// What happens between the look and the deed counts: a cordon, a pause, a
// heartbeat, another server.
func TestRecoverLooksAgain(t *testing.T) {
	for name, meddle := range map[string]func(r *rack){
		"a cordon": func(r *rack) {
			_, err := r.l.op.NodeAct(ctx, "n1", "cordon", api.NodeRequest{Reason: "DIMM"})
			r.l.must(err)
		},
		"a pause": func(r *rack) {
			_, err := r.l.op.PauseRecovery(ctx, api.PauseRequest{})
			r.l.must(err)
		},
		"a heartbeat":    func(r *rack) { r.nodes[0].beat() },
		"another server": func(r *rack) { r.l.must(r.l.srv.RecoverOnce(ctx)) },
	} {
		m := &meddler{}
		r := newRecoveryRack(t, 12, acting, withKeys(t), func(o *server.Options) { m.Store = o.Store; o.Store = m })
		p := &powered{}
		_, req := newBMC(t, p)
		_, err := r.l.admin.SetBMC(ctx, "n1", req)
		r.l.must(err)
		r.quiet[0] = true
		r.pass(7)
		r.l.clock.add(time.Minute)
		for _, n := range r.nodes[1:] {
			n.beat()
		}
		m.before = func() { meddle(r) }
		r.l.must(r.l.srv.RecoverOnce(ctx))
		cycles := 0
		for _, e := range r.story() {
			if e == "recovery.power-cycle n1" {
				cycles++
			}
		}
		want := 0
		if name == "another server" {
			want = 1
		}
		if cycles != want || p.Running() != (want == 1) {
			t.Errorf("%s: %d power cycles, the machine runs: %v; want %d\n%v", name, cycles, p.Running(), want, r.story())
		}
	}
}

// Recovery is switched on while the server runs.
func TestRecoveryIsReloaded(t *testing.T) {
	tells := recovery.DefaultConfig()
	var o server.Options
	r := newRecoveryRack(t, 12, func(x *server.Options) { x.Recovery, x.NodeCert = &tells, 48*time.Hour; o = *x })
	r.quiet[0] = true
	r.pass(8)
	acting(&o)
	r.l.srv.Reload(o)
	r.pass(1)
	if got, want := r.story(), []string{"recovery.would n1", "recovery.recheck n1"}; !cmp.Equal(got, want) {
		t.Errorf("story %q; want %q", got, want)
	}
}

// Nodes that a rollout moves, or has drained, are that rollout's, however
// long they are silent; the others are recovery's.
func TestRecoverLeavesRolloutsTheirs(t *testing.T) {
	r := newRecoveryRack(t, 16, acting, withKeys(t))
	v2 := r.l.publish("2.0.0")
	r.l.must(r.l.store.Update(ctx, func(tx store.Tx) error {
		return tx.CreateRollout(ctx, &fleet.Rollout{Image: v2, State: fleet.RolloutRunning, Policy: fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "rack"}}}, Nodes: []fleet.Move{
			{Node: "n1", State: fleet.MoveDraining, Drain: fleet.DrainAsked},
			{Node: "n2", State: fleet.MoveDone, Drain: fleet.DrainDone}, // not given back yet
			{Node: "n3", State: fleet.MoveWaiting},
		}})
	}))
	for i := range 3 { // of 16: no storm
		r.quiet[i] = true
	}
	r.pass(40)
	if got := r.story(); len(got) == 0 {
		t.Error("nothing was done about n3, which waits")
	}
	for _, e := range r.story() {
		if !strings.HasSuffix(e, " n3") {
			t.Errorf("recovery did %q", e)
		}
	}
}
