//go:build linux

// Package session is a node's conversation with its server as one TPM: it
// enrols, waits for approval, activates the credential, keeps the client
// certificate fresh, and attests. The installer and the service of the booted
// system speak through it alike. The protocol is that of internal/api.
package session

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/tpm/device"
)

// ErrRefused is wrapped when the server will not have this node until an
// operator does something about it.
var ErrRefused = errors.New("server refuses this node")

// TPM is what a session needs of the node's TPM; *device.Device is one.
type TPM interface {
	EK() (device.EK, error)
	AK() ([]byte, error)
	Activate(credentialBlob, encryptedSecret []byte) ([]byte, error)
	Quote(nonce []byte, bank string, pcrs []int) (device.Evidence, error)
}

// Config says who the node is and whom it speaks to.
type Config struct {
	Server    string // https URL
	CA        []byte // PEM
	TPM       TPM
	Stage     fleet.Stage
	BootID    string
	MACs      []fleet.MAC
	Inventory *fleet.Inventory
	EventLog  func() ([]byte, error)           // nil means device.EventLog
	Log       func(format string, args ...any) // nil is quiet
}

// Session is a session, open once Open has succeeded. When a call fails with
// api.Unauthorized the certificate is no longer taken: Open it again. Use it
// from one goroutine at a time; the client it gives out is safe for several.
type Session struct {
	cfg    Config
	client *api.NodeClient
	node   string
	reason string // last reason given for pending, logged once

	renewAt  time.Time     // when the certificate should be replaced, zero for never; monotonic
	every    time.Duration // between attestations, as the server wishes; 0 for once
	accepted string        // hash of the log of the last accepted attestation, "" before
}

// New prepares a session; Open is where it starts.
func New(cfg Config) (*Session, error) {
	c, err := api.NewNodeClient(cfg.Server, cfg.CA)
	if err != nil {
		return nil, err
	}
	if cfg.Log == nil {
		cfg.Log = func(string, ...any) {}
	}
	if cfg.EventLog == nil {
		cfg.EventLog = device.EventLog
	}
	return &Session{cfg: cfg, client: c}, nil
}

// Client returns the client, which presents the node's certificate once Open
// has succeeded.
func (s *Session) Client() *api.NodeClient { return s.client }

// Node returns the name the server has for this node, "" before Open.
func (s *Session) Node() string { return s.node }

// Open enrols once. pending is how long to wait before it is called again
// when the node is not approved yet; then err is nil and the session is not
// open. An error that wraps ErrRefused needs an operator.
func (s *Session) Open(ctx context.Context) (pending time.Duration, err error) {
	ek, err := s.cfg.TPM.EK()
	if err != nil {
		return 0, fmt.Errorf("endorsement key of the TPM: %w", err)
	}
	ak, err := s.cfg.TPM.AK()
	if err != nil {
		return 0, fmt.Errorf("attestation key of the TPM: %w", err)
	}
	key, csr, err := api.NewNodeKey()
	if err != nil {
		return 0, err
	}
	r, err := s.client.Enrol(ctx, &api.EnrolRequest{
		EKPublic: ek.Public, EKCertificate: ek.Certificate, EKChain: ek.Chain, AKPublic: ak, CSR: csr,
		MACs: s.cfg.MACs, Stage: s.cfg.Stage, BootID: s.cfg.BootID, Inventory: s.cfg.Inventory,
	})
	if err != nil {
		return 0, err
	}
	switch r.Status {
	case api.EnrolChallenge:
	case api.EnrolPending:
		if r.Reason != s.reason {
			s.reason = r.Reason
			s.cfg.Log("waiting for approval: %s", r.Reason)
		}
		return max(time.Duration(r.RetryAfter)*time.Second, time.Second), nil
	case api.EnrolRefused:
		return 0, fmt.Errorf("%w: %s", ErrRefused, r.Reason)
	default:
		return 0, fmt.Errorf("server answered enrolment with %q; is it newer than this agent?", r.Status)
	}
	secret, err := s.cfg.TPM.Activate(r.CredentialBlob, r.EncryptedSecret)
	if err != nil {
		return 0, fmt.Errorf("opening the server's credential with the TPM: %w", err)
	}
	a, err := s.client.Activate(ctx, &api.ActivateRequest{Session: r.Session, Secret: secret})
	if err != nil {
		return 0, err
	}
	if err := s.client.UseCertificate(a.Certificate, key); err != nil {
		return 0, err
	}
	s.node = a.Node
	s.renewAt = time.Time{}
	if a.RenewAfter > 0 {
		s.renewAt = time.Now().Add(time.Duration(a.RenewAfter) * time.Second)
	}
	s.cfg.Log("session with %s open, this node is %q there", s.cfg.Server, a.Node)
	return 0, nil
}

// Renew replaces the certificate if two thirds of its life are over. A failure
// changes nothing: the certificate is good for a while yet.
func (s *Session) Renew(ctx context.Context) error {
	if s.renewAt.IsZero() || time.Now().Before(s.renewAt) {
		return nil
	}
	s.renewAt = time.Now().Add(renewPause)
	pending, err := s.Open(ctx)
	if err == nil && pending > 0 {
		err = errors.New("the server does not approve this node any more")
	}
	if err != nil {
		return fmt.Errorf("renewing the client certificate: %w", err)
	}
	return nil
}

// renewPause is how long after a failure renewal is tried again.
const renewPause = time.Minute

// Every returns how often the server wishes to see an attestation, 0 for once
// per boot, or before the first.
func (s *Session) Every() time.Duration { return s.every }

// Whole has the next attestation send the event log and not only its hash.
func (s *Session) Whole() { s.accepted = "" }

// Attest shows the server what was booted and returns its verdict. image is
// the digest the node believes it runs, path the boot path. Once it was
// accepted the log is only named; the server asks for it if it must.
func (s *Session) Attest(ctx context.Context, image, path string) (*fleet.Verdict, error) {
	log, err := s.cfg.EventLog()
	if err != nil {
		s.cfg.Log("warning: no event log, the server will not accept that: %v", err)
	}
	hash := api.LogHash(log)
	if hash != "" && hash == s.accepted {
		v, err := s.attest(ctx, &api.AttestRequest{LogHash: hash, Image: image, Path: path})
		if err != nil || v.Accepted {
			return v, err
		}
	}
	v, err := s.attest(ctx, &api.AttestRequest{EventLog: log, Image: image, Path: path})
	if err != nil {
		return nil, err
	}
	s.accepted = ""
	if v.Accepted {
		s.accepted = hash
	}
	return v, nil
}

// attest completes evidence with a quote and sends it.
func (s *Session) attest(ctx context.Context, req *api.AttestRequest) (*fleet.Verdict, error) {
	n, err := s.client.Nonce(ctx)
	if err != nil {
		return nil, err
	}
	s.every = time.Duration(n.Every) * time.Second
	q, err := s.cfg.TPM.Quote(n.Nonce, n.Bank, n.PCRs)
	if err != nil {
		return nil, fmt.Errorf("quote: %w", err)
	}
	req.Nonce, req.BootID, req.Stage = n.Nonce, s.cfg.BootID, s.cfg.Stage
	req.Quote, req.Signature, req.PCRs = q.Quote, q.Signature, q.PCRs
	if m := s.cfg.Inventory.Model(); !m.IsZero() {
		req.Model = &m
	}
	return s.client.Attest(ctx, req)
}
