package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/console"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

// Role is what an operator may do; each includes the ones before it.
type Role int

// The roles.
const (
	RoleViewer   Role = iota + 1 // looks
	RoleOperator                 // acts
	RoleAdmin                    // also clears TPMs
)

var roles = map[string]Role{"viewer": RoleViewer, "operator": RoleOperator, "admin": RoleAdmin}

// Token is one operator's entry in the token file.
type Token struct {
	Name string
	Role Role
	Hash [sha256.Size]byte // of the token
}

// NewToken makes a token and its line for the token file.
func NewToken(name, role string) (token, line string) {
	b := make([]byte, 24)
	rand.Read(b) //nolint:errcheck // never fails since Go 1.24
	token = "turnout_" + hex.EncodeToString(b)
	h := sha256.Sum256([]byte(token))
	return token, name + " " + role + " " + hex.EncodeToString(h[:]) + "\n"
}

// ParseTokens reads a token file: a line "NAME ROLE SHA256" per operator,
// empty lines and lines that start with # left out.
func ParseTokens(b []byte) ([]Token, error) {
	var out []Token
	sc := bufio.NewScanner(bytes.NewReader(b))
	for n := 1; sc.Scan(); n++ {
		text := strings.TrimSpace(sc.Text())
		if text == "" || strings.HasPrefix(text, "#") {
			continue
		}
		f := strings.Fields(text)
		var t Token
		ok := len(f) == 3
		if ok {
			t.Name, t.Role = f[0], roles[f[1]]
			h, err := hex.DecodeString(f[2])
			ok = err == nil && copy(t.Hash[:], h) == len(t.Hash) && len(h) == len(t.Hash) && t.Role != 0
		}
		if !ok {
			return nil, fmt.Errorf("token file, line %d: want NAME viewer|operator|admin SHA256", n)
		}
		out = append(out, t)
	}
	return out, sc.Err()
}

// operator finds who a request's bearer token, or the console's session that
// it comes with, belongs to.
func (s *Server) operator(r *http.Request) (*Token, error) {
	tok, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	hash := sha256.Sum256([]byte(tok))
	if !ok {
		if !console.Has(r) {
			return nil, problem(http.StatusUnauthorized, "give one with --token-file", "no operator's token")
		}
		sess, err := s.console.Of(r)
		if err != nil {
			return nil, err
		}
		hash = sess.Token
	}
	if t := s.tokenOf(hash); t != nil {
		return t, nil
	}
	return nil, problem(http.StatusUnauthorized, "the token file of the server lists whom it knows", "unknown operator's token")
}

// tokenOf finds a token by its hash; nil if there is none.
func (s *Server) tokenOf(hash [sha256.Size]byte) *Token {
	for i := range s.live().Tokens {
		if subtle.ConstantTimeCompare(hash[:], s.live().Tokens[i].Hash[:]) == 1 {
			return &s.live().Tokens[i]
		}
	}
	return nil
}

// who is tokenOf in the console's words.
func (s *Server) who(hash [sha256.Size]byte) (console.Who, bool) {
	t := s.tokenOf(hash)
	if t == nil {
		return console.Who{}, false
	}
	for name, role := range roles {
		if role == t.Role {
			return console.Who{Name: t.Name, Role: name}, true
		}
	}
	return console.Who{}, false
}

// asOperator lets h run for operators of at least a role. h gets the actor's
// name for events, "operator:alice".
func (s *Server) asOperator(min Role, h func(w http.ResponseWriter, r *http.Request, actor string) (any, error)) http.HandlerFunc {
	return s.answer(func(w http.ResponseWriter, r *http.Request) (any, error) {
		var t *Token
		err := s.identified(w, r, func() (err error) { t, err = s.operator(r); return err })
		if err == nil {
			err = s.limited(w, "operator", t.Name, s.Limits.Operators, 1)
		}
		if err != nil {
			return nil, err
		}
		if t.Role < min {
			return nil, problem(http.StatusForbidden, "ask for a token with a higher role", "the token of %s does not allow this", t.Name)
		}
		return h(w, r, "operator:"+t.Name)
	})
}

// asNode lets h run for an enrolled node.
func (s *Server) asNode(h func(w http.ResponseWriter, r *http.Request, n *fleet.Node) (any, error)) http.HandlerFunc {
	return s.answer(func(w http.ResponseWriter, r *http.Request) (any, error) {
		var n *fleet.Node
		err := s.identified(w, r, func() (err error) { n, err = s.node(r.Context(), r); return err })
		if err == nil {
			err = s.limited(w, "node", n.Name, s.Limits.Nodes, 1)
		}
		if err != nil {
			return nil, err
		}
		return h(w, r, n)
	})
}

// node finds whose client certificate a request came with. The certificate
// alone is not enough: the node must still be known, admitted, and have the
// TPM that the certificate was made for, and the certificate must be one of
// those that are taken: not revoked, not replaced twice.
func (s *Server) node(ctx context.Context, r *http.Request) (*fleet.Node, error) {
	const hint = "enrol again"
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 {
		return nil, problem(http.StatusUnauthorized, hint, "no client certificate")
	}
	name, ek, err := s.CA.nodeOf(r.TLS.PeerCertificates[0], s.now())
	if err != nil {
		return nil, problem(http.StatusUnauthorized, hint, "client certificate: %v", err)
	}
	n, err := s.Store.Node(ctx, name)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err // our trouble, no reason for it to enrol again
	}
	if err != nil || n.EKHash != ek || n.State == fleet.NodePending {
		return nil, problem(http.StatusUnauthorized, hint, "node %q is not enrolled with this TPM", name)
	}
	e, err := s.Store.Enrolment(ctx, name)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	if err != nil || !slices.Contains(e.Serials, serialOf(r.TLS.PeerCertificates[0])) {
		return nil, problem(http.StatusUnauthorized, hint, "client certificate of node %q was revoked or replaced", name)
	}
	return n, nil
}

// asEither lets h run for an enrolled node or a viewer.
func (s *Server) asEither(h handler) http.HandlerFunc {
	return s.answer(func(w http.ResponseWriter, r *http.Request) (any, error) {
		err := s.identified(w, r, func() (err error) {
			if r.Header.Get("Authorization") != "" || console.Has(r) {
				_, err = s.operator(r)
			} else {
				_, err = s.node(r.Context(), r)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		return h(w, r)
	})
}
