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
	"github.com/turnout-project/turnout/internal/manifest"
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
	bank, pcrs := s.live().TPM.Wanted()
	return &api.NonceResponse{Nonce: raw, Bank: bank, PCRs: pcrs, Every: int(s.live().AttestEvery.Seconds())}, err
}

// attest judges evidence and keeps the verdict.
func (s *Server) attest(w http.ResponseWriter, r *http.Request, n *fleet.Node) (any, error) {
	req, err := body[api.AttestRequest](w, r)
	if err != nil {
		return nil, err
	}
	v, clock, err := s.judge(r.Context(), n, req)
	if err != nil {
		return nil, err
	}
	v.At, v.BootID = s.now(), req.BootID
	if v.Path == "" {
		v.Path = req.Path
	}
	err = s.update(r.Context(), func(tx store.Tx) error {
		return errors.Join(s.keepVerdict(r.Context(), tx, n.Name, req, v), keepClock(r.Context(), tx, n.Name, clock),
			s.learn(r.Context(), tx, n, req, v, clock))
	})
	return v, err
}

// judge uses up the nonce before anything else: whatever comes of the
// evidence, the nonce cannot be answered twice.
func (s *Server) judge(ctx context.Context, n *fleet.Node, req *api.AttestRequest) (*fleet.Verdict, *store.Clock, error) {
	node := n.Name
	enrolment, err := s.Store.Enrolment(ctx, node)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil, problem(http.StatusUnauthorized, "enrol again", "node %q has no enrolled TPM", node)
	}
	if err != nil {
		return nil, nil, err
	}
	err = s.Store.Update(ctx, func(tx store.Tx) error {
		_, err := tx.TakeTicket(ctx, ticketNonce, hex.EncodeToString(req.Nonce), node, s.now())
		return err
	})
	if errors.Is(err, store.ErrNotFound) {
		return unjudged("nonce", "the nonce is not one that this node was given, or was used, or has expired"), nil, nil
	}
	if err != nil {
		return nil, nil, err
	}
	e := Evidence{Request: req, AKPublic: enrolment.AKPublic, Before: enrolment.Clock, Last: n.Verdict}
	if e.Firmware, err = s.firmware(ctx, modelOf(n, req)); err != nil {
		return nil, nil, err
	}
	why, err := s.attested(ctx, req.Image, &e)
	if err != nil || why != "" {
		return unjudged("image", why), nil, err
	}
	v, clock := s.live().TPM.Judge(e)
	if v.Image == "" {
		v.Image = e.Image.Digest
	}
	if !v.Accepted && clock != nil && req.Stage == fleet.StageInstaller {
		clock = s.judgeOthers(e, &v, clock)
	}
	return &v, clock, s.refuseRevoked(ctx, &v)
}

// judgeOthers holds an installer against the other images: a node cannot
// tell from which of them the installer came that it was sent.
func (s *Server) judgeOthers(e Evidence, v *fleet.Verdict, clock *store.Clock) *store.Clock {
	claimed := e.Image
	for _, e.Image = range e.Fleet {
		if e.Image == claimed {
			continue
		}
		if other, c := s.live().TPM.Judge(e); other.Accepted {
			*v = other
			return c
		}
	}
	return clock
}

// checkAttestation is the name under which a refused attestation is kept
// among failed checks.
const checkAttestation = "attestation"

// keepClock remembers how far a TPM has counted, and what it showed then. Of
// two answers that come at once the later one counts.
func keepClock(ctx context.Context, tx store.Tx, node string, c *store.Clock) error {
	if c == nil {
		return nil
	}
	e, err := tx.Enrolment(ctx, node)
	if err != nil {
		return err
	}
	if b := e.Clock; b != nil && (b.Reset > c.Reset || b.Reset == c.Reset && b.Millis > c.Millis) {
		return nil
	}
	e.Clock = c
	return tx.PutEnrolment(ctx, e)
}

// unjudged is the verdict on evidence that was not even looked at.
func unjudged(kind, why string) *fleet.Verdict {
	return &fleet.Verdict{Summary: why, Findings: []fleet.Finding{{Kind: kind, PCR: -1, Event: -1, Detail: why}}}
}

// attested finds the image that a node says it runs, by digest or by its
// first 12 digits, among the published ones, and loads them all.
func (s *Server) attested(ctx context.Context, ref string, e *Evidence) (why string, err error) {
	digits := strings.TrimPrefix(ref, "sha256:")
	if len(digits) < manifest.ShortLen {
		return fmt.Sprintf("image %q is not named by at least %d digits of its digest", ref, manifest.ShortLen), nil
	}
	all, err := s.Store.Images(ctx)
	if err != nil {
		return "", err
	}
	for _, i := range all {
		img, err := s.image(i.Digest)
		isIt := strings.HasPrefix(i.Digest, "sha256:"+digits)
		if err != nil && isIt {
			return "", err
		}
		if err != nil {
			continue // image has told
		}
		e.Fleet = append(e.Fleet, img)
		if isIt {
			e.Image = img
		}
	}
	if e.Image == nil {
		return fmt.Sprintf("image %s is not published here", ref), nil
	}
	return "", nil
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
	if v.Accepted {
		n.Verified = v.At
	}
	if !v.Accepted && req.Stage == fleet.StageSystem && n.Reported != nil && n.Reported.BootID == req.BootID {
		b := n.Reported.Slot(n.Reported.Booted)
		if v.Image == "" || b.Image == v.Image {
			n.Failure = &fleet.Failure{Image: b.Image, Generation: b.Generation, Check: checkAttestation, Detail: v.Summary, At: v.At}
		}
	}
	if err := tx.PutNode(ctx, n); err != nil || !isNews {
		return err
	}
	return tx.AppendEvent(ctx, &fleet.Event{At: v.At, Actor: "server", Node: node, Kind: kind, Message: v.Summary})
}
