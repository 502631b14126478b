package server

import (
	"context"
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

// How long sessions and nonces last, by the server's clock.
const (
	sessionLife = 5 * time.Minute
	nonceLife   = 5 * time.Minute
)

// Kinds of ticket.
const (
	ticketSession = "session"
	ticketNonce   = "nonce"
)

// session is what the server remembers between enrol and activate.
type session struct {
	Node       string
	EKHash     string
	EKPublic   []byte
	EKTrust    string
	AKPublic   []byte
	AKName     string
	CSR        []byte
	MACs       []fleet.MAC
	SecretHash []byte // SHA-256 of what the TPM must return
}

// enrol answers a machine that says which TPM it has. Nothing it says is
// believed yet but that; it gets a challenge if it may.
func (s *Server) enrol(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := body[api.EnrolRequest](w, r)
	if err != nil {
		return nil, err
	}
	ses, err := s.checkEnrol(req)
	if err != nil {
		return nil, err
	}
	n, refusal, err := s.claim(r.Context(), req, ses)
	if err != nil {
		return nil, err
	}
	retry := int(s.Heartbeat.Seconds())
	switch {
	case refusal != "":
		return &api.EnrolResponse{Status: api.EnrolRefused, Reason: refusal, RetryAfter: 6 * retry}, nil
	case n.State == fleet.NodePending:
		return &api.EnrolResponse{Node: n.Name, Status: api.EnrolPending, Reason: "waits for an operator's approval", RetryAfter: retry}, nil
	}
	return s.challenge(r.Context(), n, ses)
}

// checkEnrol checks the form of a request and the trust in its EK.
func (s *Server) checkEnrol(req *api.EnrolRequest) (*session, error) {
	ses := &session{EKPublic: req.EKPublic, AKPublic: req.AKPublic, CSR: req.CSR}
	bad := func(err error) error { return problem(http.StatusBadRequest, "", "%v", err) }
	if len(req.EKPublic) == 0 {
		return nil, bad(errors.New("no endorsement key: this machine shows no TPM 2.0"))
	}
	if _, err := parseCSR(req.CSR); err != nil {
		return nil, bad(err)
	}
	var err error
	if ses.AKName, err = s.live().TPM.AKName(req.AKPublic); err != nil {
		return nil, bad(err)
	}
	for _, m := range req.MACs {
		mac, err := fleet.ParseMAC(string(m))
		if err != nil {
			return nil, bad(err)
		}
		if !slices.Contains(ses.MACs, mac) {
			ses.MACs = append(ses.MACs, mac)
		}
	}
	if ses.EKHash, ses.EKTrust, err = s.live().TPM.CheckEK(req.EKPublic, req.EKCertificate, req.EKChain); err != nil {
		return nil, problem(http.StatusForbidden, "if this TPM is to be trusted, add its maker's CA to ek_roots", "%v", err)
	}
	return ses, nil
}

// claim finds the node that a TPM and its MACs belong to, or makes a pending
// one. A refusal says why there is none.
func (s *Server) claim(ctx context.Context, req *api.EnrolRequest, ses *session) (n *fleet.Node, refusal string, err error) {
	err = s.update(ctx, func(tx store.Tx) error {
		n, refusal, err = s.claimIn(ctx, tx, req, ses)
		return err
	})
	if refusal != "" && err == nil {
		s.log.Warn("enrolment refused", "reason", refusal, "macs", ses.MACs, "ek", short(ses.EKHash))
	}
	return n, refusal, err
}

func (s *Server) claimIn(ctx context.Context, tx store.Tx, req *api.EnrolRequest, ses *session) (n *fleet.Node, refusal string, err error) {
	n, err = tx.NodeByEK(ctx, ses.EKHash)
	if err == nil && n.State == fleet.NodePending {
		n.LastSeen = s.now() // it is still there
		return n, "", tx.PutNode(ctx, n)
	}
	if !errors.Is(err, store.ErrNotFound) {
		return n, "", err
	}
	owners, err := ownersOf(ctx, tx, ses.MACs)
	if err != nil {
		return nil, "", err
	}
	switch {
	case len(owners) > 1:
		return nil, fmt.Sprintf("its MACs belong to different nodes, %s and %s", owners[0].Name, owners[1].Name), nil
	case len(owners) == 1 && owners[0].EKHash != "":
		o := owners[0]
		why := fmt.Sprintf("another TPM is enrolled for node %s; if its board was replaced: pxeserver node clear-tpm %s", o.Name, o.Name)
		return nil, why, s.noteOnce(ctx, tx, o.Name, "node.foreign-tpm", "a machine with TPM "+short(ses.EKHash)+" claims its MAC address")
	case len(owners) == 1 && owners[0].State == fleet.NodePending:
		owners[0].EKHash = ses.EKHash // a claim, until it is activated
		return owners[0], "", tx.PutNode(ctx, owners[0])
	case len(owners) == 1:
		return owners[0], "", nil // added by an operator: bound when activated
	case s.live().Discovery == "":
		return nil, "unknown machine, and discovery is off; add it with: pxeserver node add NAME --mac …", nil
	}
	n, err = s.discover(ctx, tx, req, ses)
	return n, "", err
}

func ownersOf(ctx context.Context, tx store.Tx, macs []fleet.MAC) ([]*fleet.Node, error) {
	var owners []*fleet.Node
	for _, m := range macs {
		n, err := tx.NodeByMAC(ctx, m)
		if errors.Is(err, store.ErrNotFound) {
			continue
		}
		if err != nil {
			return nil, err
		}
		if !slices.ContainsFunc(owners, func(o *fleet.Node) bool { return o.Name == n.Name }) {
			owners = append(owners, n)
		}
	}
	return owners, nil
}

// discover makes a pending node for a machine nobody added, named after its
// TPM. What it says of itself is kept for the operator to look at.
func (s *Server) discover(ctx context.Context, tx store.Tx, req *api.EnrolRequest, ses *session) (*fleet.Node, error) {
	now := s.now()
	n := &fleet.Node{
		Name: "new-" + short(ses.EKHash)[:8], Pool: s.live().Discovery, MACs: ses.MACs, EKHash: ses.EKHash,
		State: fleet.NodePending, Reason: "discovered; not approved", Created: now, LastSeen: now,
		Reported: &fleet.Report{Stage: req.Stage, BootID: req.BootID, Activity: "waiting for approval", Inventory: req.Inventory},
	}
	if p, err := tx.Pool(ctx, s.live().Discovery); err == nil && p.AutoApprove {
		n.State, n.Reason = fleet.NodeApproved, ""
	}
	if err := tx.CreateNode(ctx, n); err != nil {
		return nil, err
	}
	return n, tx.AppendEvent(ctx, &fleet.Event{At: now, Actor: "server", Node: n.Name, Kind: "node.discovered",
		Message: fmt.Sprintf("machine with MAC %v, TPM %s (%s): %s", ses.MACs, short(ses.EKHash), ses.EKTrust, n.State)})
}

// noteOnce appends an event unless the node's newest of the kind says the
// same: machines ask again and again.
func (s *Server) noteOnce(ctx context.Context, tx store.Tx, node, kind, msg string) error {
	last, err := tx.Events(ctx, store.EventQuery{Node: node, Kind: kind, Last: true, Limit: 1})
	if err != nil || len(last) > 0 && last[0].Message == msg {
		return err
	}
	return tx.AppendEvent(ctx, &fleet.Event{At: s.now(), Actor: "server", Node: node, Kind: kind, Message: msg})
}

// challenge opens a session that only the right TPM can close.
func (s *Server) challenge(ctx context.Context, n *fleet.Node, ses *session) (*api.EnrolResponse, error) {
	blob, enc, secret, err := s.live().TPM.MakeCredential(ses.EKPublic, ses.AKPublic)
	if err != nil {
		return nil, problem(http.StatusBadRequest, "", "%v", err)
	}
	h := sha256.Sum256(secret)
	ses.Node, ses.SecretHash = n.Name, h[:]
	doc, err := json.Marshal(ses)
	if err != nil {
		return nil, err
	}
	t := &store.Ticket{Kind: ticketSession, Key: randomHex(), Expires: s.now().Add(sessionLife), Payload: doc}
	if err := s.Store.Update(ctx, func(tx store.Tx) error { return tx.PutTicket(ctx, t) }); err != nil {
		return nil, err
	}
	return &api.EnrolResponse{Node: n.Name, Status: api.EnrolChallenge, Session: t.Key, CredentialBlob: blob, EncryptedSecret: enc}, nil
}

// short is a TPM's identity for people.
func short(ekHash string) string { return ekHash[:12] }

func randomHex() string {
	b := make([]byte, 32)
	rand.Read(b) //nolint:errcheck // never fails since Go 1.24
	return hex.EncodeToString(b)
}

// activate closes a session: the TPM returned the secret, so EK and AK live
// in it. The node is bound to it and gets its certificate.
func (s *Server) activate(w http.ResponseWriter, r *http.Request) (any, error) {
	req, err := body[api.ActivateRequest](w, r)
	if err != nil {
		return nil, err
	}
	ctx := r.Context()
	var t *store.Ticket
	err = s.Store.Update(ctx, func(tx store.Tx) (err error) {
		t, err = tx.TakeTicket(ctx, ticketSession, req.Session, "", s.now())
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return nil, problem(http.StatusForbidden, "enrol again", "no such session: it was used, or has expired")
	}
	if err != nil {
		return nil, err
	}
	var ses session
	if err := json.Unmarshal(t.Payload, &ses); err != nil {
		return nil, err
	}
	h := sha256.Sum256(req.Secret)
	if subtle.ConstantTimeCompare(h[:], ses.SecretHash) != 1 {
		s.log.Warn("activation failed", "node", ses.Node, "ek", short(ses.EKHash))
		return nil, problem(http.StatusForbidden, "enrol again", "the secret is wrong: EK and AK do not live in one TPM")
	}
	cert, serial, err := s.CA.nodeCertificate(ses.CSR, ses.Node, ses.EKHash, s.now(), s.NodeCert)
	if err != nil {
		return nil, err
	}
	if err := s.update(ctx, func(tx store.Tx) error { return s.bind(ctx, tx, &ses, serial) }); err != nil {
		return nil, err
	}
	return &api.ActivateResponse{Node: ses.Node, Certificate: cert, RenewAfter: int(s.NodeCert.Seconds() * 2 / 3)}, nil
}

// validSerials is how many certificates of a node are taken: a new one, and
// the one before it for requests that are still under way.
const validSerials = 2

// bind ties the TPM of a session to its node, unless things have changed
// since the challenge, and takes the certificate with the serial from now on.
func (s *Server) bind(ctx context.Context, tx store.Tx, ses *session, serial string) error {
	n, err := tx.Node(ctx, ses.Node)
	if err != nil {
		return err
	}
	if n.State == fleet.NodePending || n.EKHash != "" && n.EKHash != ses.EKHash {
		return problem(http.StatusForbidden, "enrol again", "node %q is not open to this TPM", n.Name)
	}
	old, err := tx.Enrolment(ctx, n.Name)
	if err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	now := s.now()
	isNew := old == nil || old.AKName != ses.AKName
	e := &store.Enrolment{Node: n.Name, EKHash: ses.EKHash, EKPublic: ses.EKPublic, EKTrust: ses.EKTrust, AKPublic: ses.AKPublic, AKName: ses.AKName, At: now}
	if old != nil && old.EKHash == e.EKHash {
		e.Clock, e.Serials = old.Clock, old.Serials
	}
	e.Serials = append(e.Serials, serial)
	e.Serials = e.Serials[max(len(e.Serials)-validSerials, 0):]
	n.EKHash, n.AKName, n.LastSeen = ses.EKHash, ses.AKName, now
	if err := s.addMACs(ctx, tx, n, ses.MACs); err != nil {
		return err
	}
	if err := errors.Join(tx.PutNode(ctx, n), tx.PutEnrolment(ctx, e)); err != nil || !isNew {
		return err
	}
	return tx.AppendEvent(ctx, &fleet.Event{At: now, Actor: "server", Node: n.Name, Kind: "node.enrolled",
		Message: fmt.Sprintf("TPM %s (%s), attestation key %.16s", short(ses.EKHash), ses.EKTrust, ses.AKName)})
}

// addMACs takes in the MACs of a node that has proven its TPM; those of
// another node stay with it, and are told.
func (s *Server) addMACs(ctx context.Context, tx store.Tx, n *fleet.Node, macs []fleet.MAC) error {
	for _, m := range macs {
		if slices.Contains(n.MACs, m) {
			continue
		}
		o, err := tx.NodeByMAC(ctx, m)
		switch {
		case errors.Is(err, store.ErrNotFound):
			n.MACs = append(n.MACs, m)
		case err != nil:
			return err
		default:
			if err := s.noteOnce(ctx, tx, n.Name, "node.mac-conflict", fmt.Sprintf("has MAC %s, which is known as node %s's", m, o.Name)); err != nil {
				return err
			}
		}
	}
	return nil
}
