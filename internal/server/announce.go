package server

import (
	"context"
	"encoding/hex"
	"fmt"
	"net/http"
	"slices"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/rollout"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/tpm/eventlog"
	"github.com/turnout-project/turnout/internal/tpm/judge"
)

// announceBaseline approves firmware that no node has shown yet: a planned
// update of the firmware or of dbx is no outage then.
func (s *Server) announceBaseline(w http.ResponseWriter, r *http.Request, actor string) (any, error) {
	req, err := body[api.AnnounceRequest](w, r)
	if err != nil {
		return nil, err
	}
	var b *fleet.Baseline
	err = s.update(r.Context(), func(tx store.Tx) error {
		if b, err = s.announced(r.Context(), tx, req); err != nil {
			return err
		}
		all, err := tx.Baselines(r.Context())
		if err != nil {
			return err
		}
		if i := slices.IndexFunc(all, func(o *fleet.Baseline) bool { return o.ID == b.ID }); i >= 0 {
			if all[i].State == fleet.BaselineApproved {
				return &rollout.Refusal{Why: fmt.Sprintf("baseline %s is this very set, and approved already", b.ID)}
			}
			b.Node, b.First = all[i].Node, all[i].First // seen in the meantime
		}
		b.State, b.By = fleet.BaselineApproved, actor
		if err := tx.PutBaseline(r.Context(), b); err != nil {
			return err
		}
		return s.note(r.Context(), tx, actor, "", "baseline.announced", fmt.Sprintf("%s of %s, before any node showed it%s", b.ID, b.Model, dash(req.Reason)))
	})
	return b, err
}

// announced makes the baseline that a request describes.
func (s *Server) announced(ctx context.Context, tx store.Tx, req *api.AnnounceRequest) (*fleet.Baseline, error) {
	bad := func(format string, a ...any) error { return problem(http.StatusBadRequest, "", format, a...) }
	bank, _ := s.live().TPM.Wanted()
	b := &fleet.Baseline{Bank: bank, PCRs: map[int]string{}, Events: map[int][]string{}}
	if req.Like != "" {
		like, err := findBaseline(ctx, tx, req.Like)
		if err != nil {
			return nil, err
		}
		b = cloneBaseline(like)
	}
	model := b.Model
	for _, f := range []struct{ to, from *string }{
		{&model.Vendor, &req.Model.Vendor}, {&model.Product, &req.Model.Product}, {&model.BIOSVersion, &req.Model.BIOSVersion},
	} {
		if *f.from != "" {
			*f.to = clip(*f.from, 100)
		}
	}
	if model.Vendor == "" || model.Product == "" || model.BIOSVersion == "" {
		return nil, bad("a model is vendor, product and BIOS version, as the inventory of a node tells them: %+v is not whole", model)
	}
	if len(req.EventLog) > 0 {
		fromLog, err := judge.BaselineFromLog(model, bank, req.EventLog)
		if err != nil {
			return nil, bad("%v", err)
		}
		b = fromLog
	}
	b.Model, b.First = model, s.now()
	for p, v := range req.PCRs {
		raw, err := hex.DecodeString(v)
		if err != nil || len(raw) != eventlog.Size(bank) || !slices.Contains(judge.BaselinePCRs, p) {
			return nil, bad("value %q of PCR %d: want %d hexadecimal digits for one of PCR %v", v, p, 2*eventlog.Size(bank), judge.BaselinePCRs)
		}
		b.PCRs[p] = hex.EncodeToString(raw)
		delete(b.Events, p) // what led there is not known
	}
	for _, p := range judge.BaselinePCRs {
		if b.PCRs[p] == "" {
			return nil, bad("no value of PCR %d: begin with the event log of an updated machine, or with another baseline of the model", p)
		}
	}
	b.ID = judge.BaselineID(b.Model, b.Bank, b.PCRs)
	if len(req.DBX) > 0 {
		withDBX, err := judge.WithDBX(b, req.DBX)
		if err != nil {
			return nil, bad("%v", err)
		}
		b = withDBX
	}
	return b, nil
}

// cloneBaseline copies what is told of the firmware, and nothing of who saw
// or approved it.
func cloneBaseline(b *fleet.Baseline) *fleet.Baseline {
	c := &fleet.Baseline{Model: b.Model, Bank: b.Bank, PCRs: map[int]string{}, Events: map[int][]string{}}
	for p, v := range b.PCRs {
		c.PCRs[p] = v
	}
	for p, es := range b.Events {
		c.Events[p] = slices.Clone(es)
	}
	return c
}
