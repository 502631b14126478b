package server

import (
	"context"
	"fmt"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/rollout"
	"github.com/turnout-project/turnout/internal/store"
)

// findUnverified tells of nodes whose last accepted attestation is older than
// it may be, whether they are silent or refused, and of the next accepted one.
// told holds, by node, what was last verified as it was told; began is when
// the server began to watch. A server that was away gives nodes the time of
// two attestations to come back: their silence was its own.
func (s *Server) findUnverified(ctx context.Context, told map[string]time.Time, began time.Time) error {
	alarm := s.live().AttestAlarm
	if alarm <= 0 || s.now().Sub(began) < min(alarm, 2*s.live().AttestEvery) {
		return nil
	}
	nodes, err := s.Store.Nodes(ctx)
	if err != nil {
		return err
	}
	now := s.now()
	for _, n := range nodes {
		if n.State == fleet.NodePending || n.EKHash == "" {
			continue
		}
		last := n.LastVerified()
		was, isTold := told[n.Name]
		kind, msg := "", ""
		switch age := now.Sub(last); {
		case age > s.live().AttestAlarm && !isTold:
			told[n.Name] = last
			kind, msg = "node.unverified", fmt.Sprintf("last verified %s; at least every %s is asked for%s", last.UTC().Format(time.RFC3339), s.live().AttestAlarm, whyUnverified(n))
		case isTold && last.After(was):
			delete(told, n.Name)
			kind, msg = "node.verified", "again, at "+last.UTC().Format(time.RFC3339)
		}
		if kind == "" {
			continue
		}
		if err := s.update(ctx, func(tx store.Tx) error { return s.noteOnce(ctx, tx, n.Name, kind, msg) }); err != nil {
			return err
		}
	}
	return nil
}

func whyUnverified(n *fleet.Node) string {
	switch {
	case n.Verdict != nil && !n.Verdict.Accepted:
		return ": " + n.Verdict.Summary
	case n.Verdict == nil:
		return ": it never attested"
	}
	return ": it has not attested since"
}

// askAttest has a node prove what it runs now, whatever its pace.
func askAttest(_ context.Context, _ *Server, _ store.Tx, n *fleet.Node, _ *api.NodeRequest) (string, error) {
	if n.State == fleet.NodePending || n.EKHash == "" {
		return "", &rollout.Refusal{Why: "node " + n.Name + " has not proven a TPM yet", Hint: "it does so when it boots, once it is approved"}
	}
	ask(n, fleet.AskAttest)
	return "with the answer to its next heartbeat", nil
}

// ask asks a node's agent for a favour; it does the newest one only.
func ask(n *fleet.Node, act fleet.AskAct) {
	next := &fleet.Ask{ID: 1, Act: act}
	if n.Ask != nil {
		next.ID = n.Ask.ID + 1
	}
	n.Ask = next
}

// revoke makes the server take none of a node's certificates any more. The
// node enrols anew, for which it needs its TPM; whoever only had its
// certificate is out.
func revoke(ctx context.Context, _ *Server, tx store.Tx, n *fleet.Node, _ *api.NodeRequest) (string, error) {
	e, err := tx.Enrolment(ctx, n.Name)
	if err != nil || len(e.Serials) == 0 {
		return "", &rollout.Refusal{Why: "node " + n.Name + " has no certificate", Hint: "to keep its TPM out: pxeserver node clear-tpm, or node remove"}
	}
	msg := fmt.Sprintf("%d certificates; the node must prove its TPM again", len(e.Serials))
	e.Serials = nil
	return msg, tx.PutEnrolment(ctx, e)
}
