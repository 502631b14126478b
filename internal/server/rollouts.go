package server

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

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
	rs, err := s.Store.RolloutHeads(r.Context())
	if err != nil {
		return nil, err
	}
	if st := r.URL.Query().Get("state"); st != "" {
		rs = slices.DeleteFunc(rs, func(r *fleet.Rollout) bool { return string(r.State) != st })
	}
	rs = page(w, r, p, rs, func(r *fleet.Rollout) string { return r.ID }, func(r *fleet.Rollout, after string) bool { return isOlder(after, r.ID) })
	if r.URL.Query().Get("summary") != "" {
		return s.summaries(r.Context(), rs)
	}
	for i := range rs {
		if rs[i], err = s.Store.Rollout(r.Context(), rs[i].ID); err != nil {
			return nil, err
		}
	}
	return orEmpty(rs), nil
}

// tally is how many nodes of a rollout's stages were in which state, as of
// its last change.
type tally struct {
	updated time.Time
	counts  []map[fleet.MoveState]int
}

// summaries counts the nodes of rollouts. Of those that are over it remembers
// what it counted: nodes of old rollouts are many.
func (s *Server) summaries(ctx context.Context, heads []*fleet.Rollout) ([]api.RolloutSummary, error) {
	out := make([]api.RolloutSummary, 0, len(heads))
	for _, h := range heads {
		s.mu.Lock()
		t, ok := s.tallies[h.ID]
		s.mu.Unlock()
		if !ok || !t.updated.Equal(h.Updated) {
			r, err := s.Store.Rollout(ctx, h.ID)
			if err != nil {
				return nil, err
			}
			h, t = r, tallyOf(r)
			if !r.Live() {
				s.mu.Lock()
				s.tallies[r.ID] = t
				s.mu.Unlock()
			}
		}
		sum := api.RolloutSummary{Rollout: *h, Counts: t.counts}
		sum.Nodes = []fleet.Move{}
		out = append(out, sum)
	}
	return out, nil
}

func tallyOf(r *fleet.Rollout) tally {
	t := tally{r.Updated, make([]map[fleet.MoveState]int, len(r.Policy.Stages))}
	for i := range t.counts {
		t.counts[i] = map[fleet.MoveState]int{}
	}
	for _, m := range r.Nodes {
		t.counts[m.Stage][m.State]++
	}
	return t
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
