package server

import (
	"context"
	"errors"
	"net/http"
	"net/url"

	"github.com/turnout-project/turnout/internal/alert"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

// Alert tells webhooks of events until ctx ends.
func (s *Server) Alert(ctx context.Context) { s.sender().Run(ctx) }

func (s *Server) sender() *alert.Sender {
	return &alert.Sender{Store: s.Store, Hooks: s.Hooks, Version: s.Version, Now: s.Now, Log: s.log}
}

func (s *Server) listAlerts(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	out := []api.Webhook{}
	for i := range s.Hooks {
		w, err := s.webhook(r.Context(), &s.Hooks[i])
		if err != nil {
			return nil, err
		}
		out = append(out, *w)
	}
	return out, nil
}

func (s *Server) webhook(ctx context.Context, h *alert.Hook) (*api.Webhook, error) {
	w := &api.Webhook{Name: h.Name, Kinds: h.Kinds}
	if len(w.Kinds) == 0 {
		w.Kinds = alert.DefaultKinds
	}
	if u, err := url.Parse(h.URL); err == nil {
		w.Host = u.Host
	}
	var p alert.Progress
	err := getJSON(ctx, s.Store, alert.Kind, h.Name, &p)
	if errors.Is(err, store.ErrNotFound) {
		return w, nil // it has not begun
	}
	w.After, w.Failing, w.Tries, w.Last, w.Dropped = p.After, p.Why, p.Tries, p.Last, p.Dropped
	return w, err
}

func (s *Server) testAlert(_ http.ResponseWriter, r *http.Request, actor string) (any, error) {
	name := r.PathValue("name")
	for i := range s.Hooks {
		h := &s.Hooks[i]
		if h.Name != name {
			continue
		}
		e := fleet.Event{At: s.now(), Actor: actor, Kind: "alert.test", Message: "a test, asked for by " + actor}
		err := s.sender().Send(r.Context(), h, nil, alert.Message{Hook: h.Name, Server: s.Version, Test: true, Events: []fleet.Event{e}})
		if err != nil {
			return nil, problem(http.StatusBadGateway, "", "webhook %s: %s", name, clip(err.Error(), 300))
		}
		return s.webhook(r.Context(), h)
	}
	return nil, problem(http.StatusNotFound, "webhooks are named in the server's configuration, under alerts", "no webhook is called %q", name)
}
