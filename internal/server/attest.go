package server

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/oci"
	"github.com/turnout-project/turnout/internal/store"
)

// nonce makes a challenge for the node's next quote.
func (s *Server) nonce(_ http.ResponseWriter, r *http.Request, n *fleet.Node) (any, error) {
	key := randomHex()
	err := s.Store.Update(r.Context(), func(tx store.Tx) error {
		return tx.PutTicket(r.Context(), &store.Ticket{Kind: ticketNonce, Key: key, Node: n.Name, Expires: s.now().Add(nonceLife)})
	})
	if err != nil {
		return nil, err
	}
	raw, err := hex.DecodeString(key)
	bank, pcrs := s.TPM.Wanted()
	return &api.NonceResponse{Nonce: raw, Bank: bank, PCRs: pcrs}, err
}

// attest judges evidence and keeps the verdict.
func (s *Server) attest(w http.ResponseWriter, r *http.Request, n *fleet.Node) (any, error) {
	req, err := body[api.AttestRequest](w, r)
	if err != nil {
		return nil, err
	}
	v, err := s.judge(r.Context(), n.Name, req)
	if err != nil {
		return nil, err
	}
	v.At, v.BootID = s.now(), req.BootID
	if v.Path == "" {
		v.Path = req.Path
	}
	err = s.update(r.Context(), func(tx store.Tx) error { return s.keepVerdict(r.Context(), tx, n.Name, req, v) })
	return v, err
}

// judge uses up the nonce before anything else: whatever comes of the
// evidence, the nonce cannot be answered twice.
func (s *Server) judge(ctx context.Context, node string, req *api.AttestRequest) (*fleet.Verdict, error) {
	var enrolment *store.Enrolment
	err := s.Store.Update(ctx, func(tx store.Tx) (err error) {
		if enrolment, err = tx.Enrolment(ctx, node); err != nil {
			return err
		}
		_, err = tx.TakeTicket(ctx, ticketNonce, hex.EncodeToString(req.Nonce), node, s.now())
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		if enrolment == nil {
			return nil, problem(http.StatusUnauthorized, "enrol again", "node %q has no enrolled TPM", node)
		}
		return unjudged("nonce", "the nonce is not one that this node was given, or was used, or has expired"), nil
	}
	if err != nil {
		return nil, err
	}
	img, why, err := s.attested(ctx, req.Image)
	if err != nil || why != "" {
		return unjudged("image", why), err
	}
	v := s.TPM.Judge(Evidence{Request: req, AKPublic: enrolment.AKPublic, Image: img})
	if v.Image == "" {
		v.Image = img.Digest
	}
	return &v, nil
}

// unjudged is the verdict on evidence that was not even looked at.
func unjudged(kind, why string) *fleet.Verdict {
	return &fleet.Verdict{Summary: why, Findings: []fleet.Finding{{Kind: kind, PCR: -1, Event: -1, Detail: why}}}
}

// attested finds the image that a node says it runs, by digest or by its
// first 12 digits, among the published ones.
func (s *Server) attested(ctx context.Context, ref string) (img *oci.Image, why string, err error) {
	hexDigits := strings.TrimPrefix(ref, "sha256:")
	if len(hexDigits) < 12 {
		return nil, fmt.Sprintf("image %q is not named by at least 12 digits of its digest", ref), nil
	}
	all, err := s.Store.Images(ctx)
	if err != nil {
		return nil, "", err
	}
	for _, i := range all {
		if strings.HasPrefix(strings.TrimPrefix(i.Digest, "sha256:"), hexDigits) {
			img, err = s.image(i.Digest)
			return img, "", err
		}
	}
	return nil, fmt.Sprintf("image %s is not published here", ref), nil
}

// keepVerdict stores a verdict with its node, and remembers a refusal that
// would end a trial.
func (s *Server) keepVerdict(ctx context.Context, tx store.Tx, node string, req *api.AttestRequest, v *fleet.Verdict) error {
	n, err := tx.Node(ctx, node)
	if err != nil {
		return err
	}
	kind := "attest.refused"
	if v.Accepted {
		kind = "attest.accepted"
	}
	isNews := n.Verdict == nil || n.Verdict.Accepted != v.Accepted || n.Verdict.BootID != v.BootID || n.Verdict.Summary != v.Summary
	n.Verdict, n.LastSeen = v, s.now()
	if !v.Accepted && req.Stage == fleet.StageSystem && n.Reported != nil && n.Reported.BootID == req.BootID {
		b := n.Reported.Slot(n.Reported.Booted)
		if v.Image == "" || b.Image == v.Image {
			n.Failure = &fleet.Failure{Image: b.Image, Generation: b.Generation, Check: "attestation", Detail: v.Summary, At: v.At}
		}
	}
	if err := tx.PutNode(ctx, n); err != nil || !isNews {
		return err
	}
	return tx.AppendEvent(ctx, &fleet.Event{At: v.At, Actor: "server", Node: node, Kind: kind, Message: v.Summary})
}
