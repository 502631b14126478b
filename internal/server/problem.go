package server

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/rollout"
	"github.com/turnout-project/turnout/internal/store"
)

// handler is an HTTP handler that returns what to answer: a value for JSON
// (nil for an empty answer), or an error. A handler that has written an
// answer itself returns errAnswered.
type handler func(w http.ResponseWriter, r *http.Request) (any, error)

var errAnswered = errors.New("answered")

// problem makes an *api.Problem.
func problem(status int, hint, format string, a ...any) error {
	return &api.Problem{Title: http.StatusText(status), Status: status, Detail: fmt.Sprintf(format, a...), Hint: hint}
}

// answer runs h and writes its outcome.
func (s *Server) answer(h handler) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		v, err := h(w, r)
		switch {
		case errors.Is(err, errAnswered):
		case err != nil:
			s.refuse(w, r, err)
		case v == nil:
			w.WriteHeader(http.StatusNoContent)
		default:
			w.Header().Set("Content-Type", "application/json")
			if err := json.NewEncoder(w).Encode(v); err != nil {
				s.log.Debug("answer not delivered", "path", r.URL.Path, "err", err)
			}
		}
	}
}

// refuse writes an error as a problem (RFC 9457). What is our own fault is
// logged in full and told in short.
func (s *Server) refuse(w http.ResponseWriter, r *http.Request, err error) {
	p := asProblem(err)
	if p.Status >= 500 && r.Context().Err() == nil {
		s.log.Error("request failed", "method", r.Method, "path", r.URL.Path, "err", err)
	}
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(p.Status)
	if err := json.NewEncoder(w).Encode(p); err != nil {
		s.log.Debug("answer not delivered", "path", r.URL.Path, "err", err)
	}
}

// asProblem is the one place that maps errors to statuses.
func asProblem(err error) *api.Problem {
	var p *api.Problem
	var no *rollout.Refusal
	switch {
	case errors.As(err, &p):
		return p
	case errors.As(err, &no):
		return &api.Problem{Title: http.StatusText(http.StatusConflict), Status: http.StatusConflict, Detail: no.Why, Hint: no.Hint}
	case errors.Is(err, store.ErrNotFound), errors.Is(err, oci.ErrNotFound):
		return fault(http.StatusNotFound, err)
	case errors.Is(err, store.ErrExists), errors.Is(err, store.ErrConflict):
		return fault(http.StatusConflict, err)
	case errors.Is(err, manifest.ErrSignature):
		return fault(http.StatusForbidden, err)
	}
	return &api.Problem{
		Title: http.StatusText(http.StatusInternalServerError), Status: http.StatusInternalServerError,
		Detail: "the server could not do this", Hint: "its log says why",
	}
}

func fault(status int, err error) *api.Problem {
	return &api.Problem{Title: http.StatusText(status), Status: status, Detail: err.Error()}
}

// maxBody bounds JSON requests; the largest is an attestation with its log.
const maxBody = 8 << 20

// body reads a JSON request strictly.
func body[T any](w http.ResponseWriter, r *http.Request) (*T, error) {
	v := new(T)
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxBody))
	if err := d.Decode(v); err != nil {
		return nil, problem(http.StatusBadRequest, "", "request body: %s", strings.TrimPrefix(err.Error(), "json: "))
	}
	return v, nil
}
