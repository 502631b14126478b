package server

import (
	"context"
	"errors"
	"maps"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/store"
)

// truce is an operator's word that nothing be done by itself.
type truce struct {
	Until time.Time `json:"until,omitzero"` // zero: until resumed
	By    string    `json:"by"`
}

// holds reports whether nothing is to be done now. nil does not.
func (p *truce) holds(now time.Time) bool {
	return p != nil && (p.Until.IsZero() || now.Before(p.Until))
}

// readPause returns nil if there is none.
func readPause(ctx context.Context, r store.Reader) (*truce, error) {
	p := &truce{}
	err := getJSON(ctx, r, kindRecovery, keyPause, p)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	return p, err
}

// forEver stands for "until resumed" where a time is wanted.
var forEver = time.Date(9999, 1, 1, 0, 0, 0, 0, time.UTC)

func (s *Server) showRecovery(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	return s.recoveryNow(r.Context())
}

func (s *Server) recoveryNow(ctx context.Context) (*api.Recovery, error) {
	st, err := readState(ctx, s.Store)
	if err != nil {
		return nil, err
	}
	p, err := readPause(ctx, s.Store)
	if err != nil {
		return nil, err
	}
	out := &api.Recovery{Nodes: []api.RecoveryNode{}, Storms: []api.RecoveryNode{}}
	now := s.now()
	if p.holds(now) {
		until := p.Until
		if until.IsZero() {
			until = forEver
		}
		out.Paused, out.Pauser = &until, p.By
	}
	for _, name := range st.Sorted() {
		n := st.Nodes[name]
		out.Nodes = append(out.Nodes, api.RecoveryNode{Node: name, Trouble: string(n.Trouble), Why: n.Why, Since: n.Since,
			Step: string(n.Step), At: n.At, Failed: n.Failed, Calm: !n.Calm.IsZero()})
	}
	for _, group := range slices.Sorted(maps.Keys(st.Storms)) {
		x := st.Storms[group]
		out.Storms = append(out.Storms, api.RecoveryNode{Node: group, Trouble: "storm", Why: strings.Join(x.Members, ", "), Since: x.Since})
	}
	for _, d := range st.Log {
		if now.Sub(d.At) < time.Hour {
			out.Steps++
		}
	}
	return out, nil
}

func (s *Server) pauseRecovery(w http.ResponseWriter, r *http.Request, actor string) (any, error) {
	req, err := body[api.PauseRequest](w, r)
	if err != nil {
		return nil, err
	}
	if req.For < 0 {
		return nil, problem(http.StatusBadRequest, "", "for %s: want a time ahead, or none", req.For)
	}
	p := truce{By: actor + dash(clip(req.Reason, 300))}
	msg := "until it is resumed"
	if req.For > 0 {
		p.Until = s.now().Add(req.For)
		msg = "until " + p.Until.UTC().Format(time.RFC3339)
	}
	err = s.update(r.Context(), func(tx store.Tx) error {
		return errors.Join(putJSON(r.Context(), tx, kindRecovery, keyPause, p),
			s.note(r.Context(), tx, actor, "", "recovery.paused", msg+dash(clip(req.Reason, 300))))
	})
	if err != nil {
		return nil, err
	}
	return s.recoveryNow(r.Context())
}

func (s *Server) resumeRecovery(_ http.ResponseWriter, r *http.Request, actor string) (any, error) {
	err := s.update(r.Context(), func(tx store.Tx) error {
		if err := tx.DeleteRecord(r.Context(), kindRecovery, keyPause); err != nil {
			if errors.Is(err, store.ErrNotFound) {
				return problem(http.StatusConflict, "", "recovery is not paused")
			}
			return err
		}
		return s.note(r.Context(), tx, actor, "", "recovery.resumed", "")
	})
	if err != nil {
		return nil, err
	}
	return s.recoveryNow(r.Context())
}
