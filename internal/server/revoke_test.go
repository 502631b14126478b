package server_test

import (
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

// An old image with a valid signature is refused once an operator said so, in
// a whole attestation and in a cheap one, and nobody is given it any more.
func TestRevokedImage(t *testing.T) {
	l, b := boot(t)
	if v := b.attest(b.evidence()); !v.Accepted {
		t.Fatalf("before: %+v", v)
	}
	if v := b.attest(b.again()); !v.Accepted {
		t.Fatalf("before, with the hash of the log: %+v", v)
	}
	i, err := l.op.ActOnImage(ctx, b.image, "revoke", "kernel hole")
	l.must(err)
	if i.Revoked == nil || i.Revoked.Reason != "kernel hole" || i.Revoked.By == "" {
		t.Errorf("revoked image: %+v", i)
	}
	for what, req := range map[string]*api.AttestRequest{"hash": b.again(), "whole": b.evidence()} {
		v := b.attest(req)
		if v.Accepted || !strings.Contains(v.Summary, "was revoked by") || !strings.Contains(v.Summary, "kernel hole") {
			t.Errorf("%s, revoked: %+v", what, v)
		}
	}
	refused := func(what string, err error) {
		t.Helper()
		if err == nil || !strings.Contains(err.Error(), "revoked") {
			t.Errorf("%s: %v; want refused", what, err)
		}
	}
	_, err = l.op.ActOnImage(ctx, b.image, "revoke", "")
	refused("again", err)
	_, err = l.op.StartRollout(ctx, api.RolloutRequest{Image: b.image, Policy: fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "rack"}}}})
	refused("rollout", err)
	_, err = l.op.SetPool(ctx, fleet.Pool{Name: "rack", Image: b.image})
	refused("pool", err)
	_, err = l.op.NodeAct(ctx, "n1", "reimage", api.NodeRequest{Image: b.image})
	refused("reimage", err)
	if again := l.publish("1"); again != b.image {
		t.Fatalf("published %s", again)
	}
	refused("after another publication", func() error {
		_, err := l.op.NodeAct(ctx, "n1", "reimage", api.NodeRequest{Image: b.image})
		return err
	}())
	_, err = l.op.ActOnImage(ctx, b.image, "restore", "")
	l.must(err)
	if v := b.attest(b.evidence()); !v.Accepted {
		t.Errorf("restored: %+v", v)
	}
	_, err = l.op.SetPool(ctx, fleet.Pool{Name: "rack", Image: b.image})
	l.must(err)
	if _, err := l.op.ActOnImage(ctx, b.image, "revoke", ""); err == nil || !strings.Contains(err.Error(), "pool rack") {
		t.Errorf("an image that fresh nodes install was revoked: %v", err)
	}
}
