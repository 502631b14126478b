package server

import (
	"bufio"
	"bytes"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/hex"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

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

// Token is one operator's entry in the token file: whom a token, or a client
// certificate, belongs to.
type Token struct {
	Name string
	Role Role
	Hash [sha256.Size]byte // of the token, or of the certificate's public key (SubjectPublicKeyInfo)
	Cert bool              // it is a certificate's: nobody gets in by showing what is hashed, which is no secret
}

// certHash begins the hash of a client certificate in the token file.
const certHash = "cert:"

// NewToken makes a token and its line for the token file.
func NewToken(name, role string) (token, line string) {
	b := make([]byte, 24)
	rand.Read(b) //nolint:errcheck // never fails since Go 1.24
	token = "turnout_" + hex.EncodeToString(b)
	h := sha256.Sum256([]byte(token))
	return token, name + " " + role + " " + hex.EncodeToString(h[:]) + "\n"
}

// NewCertificate makes a key and a certificate for an operator (PEM, both in
// one), good for so long, and the line for the token file.
func NewCertificate(name, role string, now time.Time, life time.Duration) (certAndKey []byte, line string, err error) {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, "", fmt.Errorf("making the key of operator %q: %w", name, err)
	}
	t := &x509.Certificate{
		Subject:   pkix.Name{CommonName: name, OrganizationalUnit: []string{"turnout-operator"}},
		NotBefore: now.Add(-time.Hour), NotAfter: now.Add(life), // another machine's clock may be behind
		KeyUsage: x509.KeyUsageDigitalSignature, ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	der, err := sign(t, t, key.Public(), key)
	if err != nil {
		return nil, "", fmt.Errorf("making the certificate of operator %q: %w", name, err)
	}
	pk, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return nil, "", fmt.Errorf("making the certificate of operator %q: %w", name, err)
	}
	certAndKey = append(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: pk})...)
	line, err = CertificateLine(name, role, certAndKey)
	return certAndKey, line, err
}

// CertificateLine returns the line of the token file for an operator's own
// certificate, whoever signed it: the first in PEM form. What counts is its
// key, so that a renewed certificate for the same key needs no new line.
func CertificateLine(name, role string, certPEM []byte) (string, error) {
	for p, rest := pem.Decode(certPEM); p != nil; p, rest = pem.Decode(rest) {
		if p.Type != "CERTIFICATE" {
			continue
		}
		c, err := x509.ParseCertificate(p.Bytes)
		if err != nil {
			return "", fmt.Errorf("certificate of operator %q: %w", name, err)
		}
		h := sha256.Sum256(c.RawSubjectPublicKeyInfo)
		return name + " " + role + " " + certHash + hex.EncodeToString(h[:]) + "\n", nil
	}
	return "", fmt.Errorf("certificate of operator %q: none in PEM form", name)
}

// ParseTokens reads a token file: a line "NAME ROLE SHA256" per operator,
// with "cert:" before the hash of a certificate's public key; empty lines and
// lines that start with # are left out.
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
			f[2], t.Cert = strings.CutPrefix(f[2], certHash)
			h, err := hex.DecodeString(f[2])
			ok = err == nil && copy(t.Hash[:], h) == len(t.Hash) && len(h) == len(t.Hash) && t.Role != 0
		}
		if !ok {
			return nil, fmt.Errorf("token file, line %d: want NAME viewer|operator|admin SHA256, or cert:SHA256", n)
		}
		out = append(out, t)
	}
	return out, sc.Err()
}

// byCertificate returns the operator whose client certificate a request came
// with, nil for none. Browsers send a certificate along with whatever page
// asks for it, so what comes from one is not taken for its owner's wish.
func (s *Server) byCertificate(r *http.Request) *Token {
	if r.TLS == nil || len(r.TLS.PeerCertificates) == 0 || r.Header.Get("Origin") != "" || r.Header.Get("Sec-Fetch-Site") != "" {
		return nil
	}
	c, now := r.TLS.PeerCertificates[0], s.now()
	if now.Before(c.NotBefore) || now.After(c.NotAfter) {
		return nil
	}
	return s.tokenOf(sha256.Sum256(c.RawSubjectPublicKeyInfo), true)
}

// operator finds who a request's bearer token, its client certificate, or the
// console's session that it comes with belongs to.
func (s *Server) operator(r *http.Request) (*Token, error) {
	tok, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	hash := sha256.Sum256([]byte(tok))
	if !ok {
		if t := s.byCertificate(r); t != nil {
			return t, nil
		}
		if !console.Has(r) {
			return nil, problem(http.StatusUnauthorized, "give one with --token-file or --client-cert", "no operator's token, and no certificate that is known and good")
		}
		sess, err := s.console.Of(r)
		if err != nil {
			return nil, err
		}
		hash = sess.Token
	}
	if t := s.tokenOf(hash, false); t != nil {
		return t, nil
	}
	return nil, problem(http.StatusUnauthorized, "the token file of the server lists whom it knows", "unknown operator's token")
}

// tokenOf finds a token, or a certificate, by its hash; nil if there is none.
func (s *Server) tokenOf(hash [sha256.Size]byte, cert bool) *Token {
	tokens := s.live().Tokens
	for i := range tokens {
		if tokens[i].Cert == cert && subtle.ConstantTimeCompare(hash[:], tokens[i].Hash[:]) == 1 {
			return &tokens[i]
		}
	}
	return nil
}

// who is tokenOf in the console's words.
func (s *Server) who(hash [sha256.Size]byte) (console.Who, bool) {
	t := s.tokenOf(hash, false)
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
			if r.Header.Get("Authorization") != "" || console.Has(r) || s.byCertificate(r) != nil {
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
