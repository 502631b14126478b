package server

import (
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/rollout"
	"github.com/turnout-project/turnout/internal/store"
)

func (s *Server) listRollouts(w http.ResponseWriter, r *http.Request, _ string) (any, error) {
	p, err := pageOf(r)
	if err != nil {
		return nil, err
	}
	rs, err := s.Store.Rollouts(r.Context())
	if err != nil {
		return nil, err
	}
	if st := r.URL.Query().Get("state"); st != "" {
		rs = slices.DeleteFunc(rs, func(r *fleet.Rollout) bool { return string(r.State) != st })
	}
	rs = page(w, r, p, rs, func(r *fleet.Rollout) string { return r.ID }, func(r *fleet.Rollout, after string) bool { return isOlder(after, r.ID) })
	if r.URL.Query().Get("summary") != "" {
		return summaries(rs), err
	}
	return orEmpty(rs), err
}

func summaries(rs []*fleet.Rollout) []api.RolloutSummary {
	out := []api.RolloutSummary{}
	for _, r := range rs {
		s := api.RolloutSummary{Rollout: *r, Counts: make([]map[fleet.MoveState]int, len(r.Policy.Stages))}
		for i := range s.Counts {
			s.Counts[i] = map[fleet.MoveState]int{}
		}
		for _, m := range r.Nodes {
			s.Counts[m.Stage][m.State]++
		}
		s.Nodes = []fleet.Move{}
		out = append(out, s)
	}
	return out
}

func (s *Server) showRollout(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	return s.Store.Rollout(r.Context(), r.PathValue("id"))
}

func (s *Server) startRollout(w http.ResponseWriter, r *http.Request, actor string) (any, error) {
	req, err := body[api.RolloutRequest](w, r)
	if err != nil {
		return nil, err
	}
	i, err := resolve(r.Context(), s.Store, req.Image)
	if err != nil {
		return nil, err
	}
	if err := usable(i); err != nil {
		return nil, err
	}
	if d := req.Policy.Drain; d != "" && !slices.Contains(s.Drains, d) {
		return nil, &rollout.Refusal{Why: fmt.Sprintf("there is no hook %q to drain nodes with", d),
			Hint: fmt.Sprintf("hooks are made in the server's configuration, which has %d: %s", len(s.Drains), strings.Join(s.Drains, ", "))}
	}
	if req.DryRun {
		return rollout.Draft(r.Context(), s.Store, i.Digest, req.Policy, actor, s.now())
	}
	ro, err := rollout.New(r.Context(), s.Store, i.Digest, req.Policy, actor, s.now())
	s.news.tell()
	s.poke()
	return ro, err
}

func (s *Server) actOnRollout(w http.ResponseWriter, r *http.Request, actor string) (any, error) {
	req, err := body[api.ReasonRequest](w, r)
	if err != nil {
		return nil, err
	}
	var ro *fleet.Rollout
	switch id, act := r.PathValue("id"), r.PathValue("act"); act {
	case "pause":
		ro, err = rollout.Pause(r.Context(), s.Store, id, actor, req.Reason, s.now())
	case "resume":
		ro, err = rollout.Resume(r.Context(), s.Store, id, actor, s.now())
	case "abort":
		ro, err = rollout.Abort(r.Context(), s.Store, id, actor, req.Reason, req.FlipBack, s.now())
	case "undo":
		var atOnce fleet.Amount
		if req.AtOnce != "" {
			if atOnce, err = fleet.ParseAmount(req.AtOnce); err != nil {
				return nil, problem(http.StatusBadRequest, "", "%v", err)
			}
		}
		ro, err = rollout.Undo(r.Context(), s.Store, id, actor, req.Reason, atOnce, s.now())
	default:
		return nil, problem(http.StatusNotFound, "", "nothing called %q can be done to a rollout", act)
	}
	s.news.tell()
	s.poke()
	return ro, err
}

func (s *Server) listPools(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	ps, err := s.Store.Pools(r.Context())
	return orEmpty(ps), err
}

// setPool makes or changes a pool. It moves no node: that is what rollouts
// are for.
func (s *Server) setPool(w http.ResponseWriter, r *http.Request, actor string) (any, error) {
	p, err := body[fleet.Pool](w, r)
	if err != nil {
		return nil, err
	}
	p.Name = r.PathValue("pool")
	if err := checkName("pool", p.Name); err != nil {
		return nil, err
	}
	return p, s.update(r.Context(), func(tx store.Tx) error {
		what := "no image"
		if p.Image != "" {
			i, err := resolve(r.Context(), tx, p.Image)
			if err != nil {
				return err
			}
			if err := usable(i); err != nil {
				return err
			}
			p.Image, what = i.Digest, fmt.Sprintf("image %s %s (%s)", i.Name, i.Version, rollout.Short(i.Digest))
		}
		if err := tx.PutPool(r.Context(), p); err != nil {
			return err
		}
		return s.note(r.Context(), tx, actor, "", "pool.set", fmt.Sprintf("pool %s: %s, auto-approve %v", p.Name, what, p.AutoApprove))
	})
}
