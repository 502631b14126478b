package server

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/rollout"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/tpm/judge"
)

// What is done about firmware that is not as approved.
const (
	BaselineOff     = "off"     // nothing is learned or compared
	BaselineWarn    = "warn"    // the verdict says so, and stands
	BaselineEnforce = "enforce" // refused; so is a model nothing was approved of
)

// maxLearned bounds how many baselines wait for approval: what a node calls
// itself is its own word.
const maxLearned = 512

// modelOf returns the hardware model that a node says it is, now or in its
// newest inventory.
func modelOf(n *fleet.Node, req *api.AttestRequest) fleet.Model {
	m := fleet.Model{}
	switch {
	case req.Model != nil:
		m = *req.Model
	case n.Reported != nil:
		m = n.Reported.Inventory.Model()
	}
	return fleet.Model{Vendor: clip(m.Vendor, 100), Product: clip(m.Product, 100), BIOSVersion: clip(m.BIOSVersion, 100)}
}

// firmware collects what was approved for a model, nil if nothing is compared.
func (s *Server) firmware(ctx context.Context, m fleet.Model) (*judge.Firmware, error) {
	if s.live().Baseline != BaselineWarn && s.live().Baseline != BaselineEnforce {
		return nil, nil
	}
	all, err := s.Store.Baselines(ctx)
	if err != nil {
		return nil, err
	}
	bank, _ := s.live().TPM.Wanted()
	all = slices.DeleteFunc(all, func(b *fleet.Baseline) bool {
		return b.State != fleet.BaselineApproved || b.Model != m || b.Bank != bank
	})
	return &judge.Firmware{Model: m, Approved: all, Enforce: s.live().Baseline == BaselineEnforce}, nil
}

// learn keeps what the firmware of a node measured, for an operator to
// approve, if nothing but the firmware speaks against the node.
func (s *Server) learn(ctx context.Context, tx store.Tx, n *fleet.Node, req *api.AttestRequest, v *fleet.Verdict, c *store.Clock) error {
	if c == nil || len(req.EventLog) == 0 || s.live().Baseline != BaselineWarn && s.live().Baseline != BaselineEnforce {
		return nil
	}
	if slices.ContainsFunc(v.Findings, func(f fleet.Finding) bool { return f.Kind != judge.KindBaseline }) {
		return nil
	}
	m := modelOf(n, req)
	all, err := tx.Baselines(ctx)
	id := judge.BaselineID(m, c.Bank, c.PCRs)
	if err != nil || m.IsZero() || len(all) >= maxLearned || slices.ContainsFunc(all, func(b *fleet.Baseline) bool { return b.ID == id }) {
		return err
	}
	b, err := judge.Learn(m, c.Bank, c.PCRs, req.EventLog)
	if err != nil {
		return nil // the log was judged: what cannot be read has been told
	}
	b.Node, b.First = n.Name, s.now()
	if err := tx.PutBaseline(ctx, b); err != nil {
		return err
	}
	return s.note(ctx, tx, "server", n.Name, "baseline.learned", fmt.Sprintf("%s: firmware of %s; if it may run: pxeserver baseline approve %s", b.ID, m, b.ID))
}

func (s *Server) listBaselines(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	bs, err := s.Store.Baselines(r.Context())
	return orEmpty(bs), err
}

// approveBaseline lets nodes of a model show what was seen.
func (s *Server) approveBaseline(_ http.ResponseWriter, r *http.Request, actor string) (any, error) {
	var b *fleet.Baseline
	err := s.update(r.Context(), func(tx store.Tx) (err error) {
		if b, err = findBaseline(r.Context(), tx, r.PathValue("id")); err != nil {
			return err
		}
		if b.State == fleet.BaselineApproved {
			return &rollout.Refusal{Why: "baseline " + b.ID + " is approved already"}
		}
		b.State, b.By = fleet.BaselineApproved, actor
		if err := tx.PutBaseline(r.Context(), b); err != nil {
			return err
		}
		return s.note(r.Context(), tx, actor, "", "baseline.approved", fmt.Sprintf("%s of %s, first seen on node %s", b.ID, b.Model, b.Node))
	})
	return b, err
}

// forgetBaseline drops a baseline. Nodes that show it are as new.
func (s *Server) forgetBaseline(_ http.ResponseWriter, r *http.Request, actor string) (any, error) {
	return nil, s.update(r.Context(), func(tx store.Tx) error {
		b, err := findBaseline(r.Context(), tx, r.PathValue("id"))
		if err != nil {
			return err
		}
		if err := tx.DeleteBaseline(r.Context(), b.ID); err != nil {
			return err
		}
		return s.note(r.Context(), tx, actor, "", "baseline.forgotten", fmt.Sprintf("%s of %s, which was %s", b.ID, b.Model, b.State))
	})
}

// findBaseline finds a baseline by its ID or the beginning of it.
func findBaseline(ctx context.Context, tx store.Tx, id string) (*fleet.Baseline, error) {
	all, err := tx.Baselines(ctx)
	if err != nil {
		return nil, err
	}
	found := slices.DeleteFunc(all, func(b *fleet.Baseline) bool { return len(id) < 4 || !strings.HasPrefix(b.ID, id) })
	if len(found) != 1 {
		return nil, problem(http.StatusNotFound, "`pxeserver baseline list` shows them", "%d baselines have an ID that begins with %q", len(found), id)
	}
	return found[0], nil
}
