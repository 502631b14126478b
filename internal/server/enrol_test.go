package server_test

import (
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/server"
)

func TestDiscoveryApprovalEnrolment(t *testing.T) {
	l := newLab(t)
	m := l.machine(1)
	r, _, err := m.enrol()
	l.must(err)
	if r.Status != api.EnrolPending || r.RetryAfter == 0 || r.Session != "" {
		t.Fatalf("first enrol = %+v; want pending, when to ask again, and no session", r)
	}
	r2, _, err := m.enrol()
	l.must(err)
	if r2.Node != r.Node {
		t.Errorf("the same machine became %q, then %q", r.Node, r2.Node)
	}
	n, err := l.op.NodeAct(ctx, r.Node, "approve", api.NodeRequest{Name: "n1", Pool: "canary"})
	l.must(err)
	if n.Name != "n1" || n.Pool != "canary" || n.State != fleet.NodeApproved || n.EKHash == "" {
		t.Errorf("approved node = %+v", n)
	}
	wantStatus(t, "the old name", func() error { _, err := l.view.Node(ctx, r.Node); return err }(), 404)
	l.must(m.join())
	if m.name != "n1" {
		t.Errorf("activated as %q; want n1", m.name)
	}
	if got := l.node("n1"); got.AKName == "" {
		t.Errorf("enrolled node has no attestation key: %+v", got)
	}
	l.must(m.join()) // each boot enrols again; same TPM, no new event
	kinds := []string{}
	for _, e := range l.events("node.") {
		kinds = append(kinds, strings.Fields(e)[0])
	}
	if d := cmp.Diff([]string{"node.discovered", "node.approve", "node.enrolled"}, kinds); d != "" {
		t.Errorf("events (-want +got):\n%s", d)
	}
}

// Case C82: a machine cannot become another by claiming its MAC address.
func TestForeignTPM(t *testing.T) {
	l := newLab(t)
	victim := l.ready(1, "rack", l.publish("1"))
	thief := l.machine(2)
	thief.mac = victim.mac
	for range 3 {
		r, _, err := thief.enrol()
		l.must(err)
		if r.Status != api.EnrolRefused || !strings.Contains(r.Reason, "clear-tpm n1") {
			t.Fatalf("foreign TPM with n1's MAC: %+v; want refused, with the way out", r)
		}
	}
	if ev := l.events("node.foreign-tpm"); len(ev) != 1 {
		t.Errorf("events = %q; want one, however often it asks", ev)
	}
	wantStatus(t, "operator may not clear", func() error { _, err := l.op.NodeAct(ctx, "n1", "cleartpm", api.NodeRequest{}); return err }(), 403)
	_, err := l.admin.NodeAct(ctx, "n1", "cleartpm", api.NodeRequest{})
	l.must(err)
	_, err = victim.c.Heartbeat(ctx, &victim.report)
	if !api.Unauthorized(err) {
		t.Errorf("certificate of a cleared TPM: %v; want 401", err)
	}
	l.must(thief.join()) // the new board
	if thief.name != "n1" {
		t.Errorf("replaced board became %q; want n1", thief.name)
	}
	if r, _, err := victim.enrol(); err != nil || r.Status != api.EnrolRefused {
		t.Errorf("old board: %+v, %v; want refused", r, err)
	}
}

func TestMACsOfTwoNodes(t *testing.T) {
	l := newLab(t)
	for _, n := range []string{"a", "b"} {
		_, err := l.op.AddNode(ctx, api.NodeRequest{Name: n, Pool: "rack", MACs: []string{"52-54-00-00-00-0" + map[string]string{"a": "A", "b": "B"}[n]}})
		l.must(err)
	}
	m := l.machine(1)
	_, csr, _ := api.NewNodeKey()
	r, err := m.c.Enrol(ctx, &api.EnrolRequest{EKPublic: m.ek, AKPublic: m.ak, CSR: csr, MACs: []fleet.MAC{"52:54:00:00:00:0a", "5254.0000.000B"}})
	l.must(err)
	if r.Status != api.EnrolRefused || !strings.Contains(r.Reason, "different nodes") {
		t.Errorf("enrol = %+v; want refused", r)
	}
}

func TestActivation(t *testing.T) {
	l := newLab(t)
	m := l.machine(1)
	_, err := l.op.AddNode(ctx, api.NodeRequest{Name: "n1", Pool: "rack", MACs: []string{string(m.mac)}})
	l.must(err)
	challenge := func() *api.EnrolResponse {
		t.Helper()
		r, _, err := m.enrol()
		l.must(err)
		if r.Status != api.EnrolChallenge {
			t.Fatalf("enrol = %+v; want a challenge", r)
		}
		return r
	}
	activate := func(session string, secret []byte) error {
		_, err := m.c.Activate(ctx, &api.ActivateRequest{Session: session, Secret: secret})
		return err
	}
	r := challenge()
	good := l.tpm.open(r.CredentialBlob, r.EncryptedSecret, m.ek, m.ak)
	wantStatus(t, "wrong secret", activate(r.Session, []byte("guess")), 403)
	wantStatus(t, "right secret after a wrong one", activate(r.Session, good), 403)

	r = challenge()
	wantStatus(t, "secret opened with another key", activate(r.Session, l.tpm.open(r.CredentialBlob, r.EncryptedSecret, m.ek, []byte("ak9"))), 403)

	r = challenge()
	l.clock.add(6 * time.Minute)
	wantStatus(t, "after its time", activate(r.Session, l.tpm.open(r.CredentialBlob, r.EncryptedSecret, m.ek, m.ak)), 403)

	r = challenge()
	good = l.tpm.open(r.CredentialBlob, r.EncryptedSecret, m.ek, m.ak)
	l.must(activate(r.Session, good))
	wantStatus(t, "second use", activate(r.Session, good), 403)
	wantStatus(t, "made up session", activate("00", good), 403)

	r = challenge()
	l.must(l.op.RemoveNode(ctx, "n1"))
	wantStatus(t, "node removed meanwhile", activate(r.Session, l.tpm.open(r.CredentialBlob, r.EncryptedSecret, m.ek, m.ak)), 404)
}

func TestEnrolRefusesBadRequests(t *testing.T) {
	l := newLab(t)
	_, csr, _ := api.NewNodeKey()
	for _, tt := range []struct {
		name   string
		r      api.EnrolRequest
		status int
	}{
		{"no EK", api.EnrolRequest{AKPublic: []byte("ak"), CSR: csr}, 400},
		{"no CSR", api.EnrolRequest{EKPublic: []byte("ek"), AKPublic: []byte("ak")}, 400},
		{"unrestricted AK", api.EnrolRequest{EKPublic: []byte("ek"), AKPublic: []byte("unrestricted"), CSR: csr}, 400},
		{"forged EK certificate", api.EnrolRequest{EKPublic: []byte("ek"), AKPublic: []byte("ak"), EKCertificate: []byte("forged"), CSR: csr}, 403},
		{"MAC that is none", api.EnrolRequest{EKPublic: []byte("ek"), AKPublic: []byte("ak"), CSR: csr, MACs: []fleet.MAC{"x"}}, 400},
	} {
		_, err := l.machine(1).c.Enrol(ctx, &tt.r)
		wantStatus(t, tt.name, err, tt.status)
	}
	ns, err := l.view.Nodes(ctx)
	if err != nil || len(ns) != 0 {
		t.Errorf("nodes after refused requests = %v, %v; want none", ns, err)
	}
}

func TestDiscoveryOff(t *testing.T) {
	l := newLab(t, func(o *server.Options) { o.Discovery = "" })
	r, _, err := l.machine(1).enrol()
	l.must(err)
	if r.Status != api.EnrolRefused || !strings.Contains(r.Reason, "node add") {
		t.Errorf("enrol = %+v; want refused, with the way in", r)
	}
}

func TestCertificatesRunOut(t *testing.T) {
	l := newLab(t)
	m := l.ready(1, "rack", l.publish("1"))
	l.clock.add(59 * time.Minute)
	m.beat()
	l.clock.add(2 * time.Minute)
	if _, err := m.c.Heartbeat(ctx, &m.report); !api.Unauthorized(err) {
		t.Errorf("heartbeat with an old certificate: %v; want 401, so that the node enrols again", err)
	}
	l.must(m.join())
	m.beat()
}

// A certificate of some other CA, or none, or an operator's token opens no
// node path; a node's certificate opens no operator path.
func TestWhoMayDoWhat(t *testing.T) {
	l := newLab(t)
	image := l.publish("1")
	m := l.ready(1, "rack", image)
	other := newLab(t).ready(1, "rack", image)
	other.c, _ = api.NewNodeClient(l.url, l.caPEM)
	_, err := other.c.Heartbeat(ctx, &other.report)
	wantStatus(t, "heartbeat without a certificate", err, 401)
	_, err = other.c.ImageManifest(ctx, image)
	wantStatus(t, "image without a certificate", err, 401)

	for _, tt := range []struct {
		name   string
		status int
		call   func(*api.Client) error
		c      *api.Client
	}{
		{"viewer looks", 0, func(c *api.Client) error { _, err := c.Nodes(ctx); return err }, l.view},
		{"viewer cordons", 403, func(c *api.Client) error { _, err := c.NodeAct(ctx, "n1", "cordon", api.NodeRequest{}); return err }, l.view},
		{"viewer flips", 403, func(c *api.Client) error { _, err := c.Flip(ctx, api.FlipRequest{Nodes: []string{"n1"}}); return err }, l.view},
		{"operator cordons", 0, func(c *api.Client) error { _, err := c.NodeAct(ctx, "n1", "cordon", api.NodeRequest{}); return err }, l.op},
		{"stranger looks", 401, func(c *api.Client) error { _, err := c.Nodes(ctx); return err }, l.stranger("turnout_00")},
		{"no token", 401, func(c *api.Client) error { _, err := c.Nodes(ctx); return err }, l.stranger("")},
	} {
		wantStatus(t, tt.name, tt.call(tt.c), tt.status)
	}
	m.beat()
}

func (l *lab) stranger(token string) *api.Client {
	c, err := api.NewClient(l.url, l.caPEM, token)
	l.must(err)
	return c
}
