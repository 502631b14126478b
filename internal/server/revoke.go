package server

import (
	"context"
	"fmt"
	"net/http"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/rollout"
	"github.com/turnout-project/turnout/internal/store"
)

// kindRevoked is the finding that a node runs, just as it was built, what no
// node should run any more.
const kindRevoked = "revoked"

// actOnImage revokes an image or takes that back.
func (s *Server) actOnImage(w http.ResponseWriter, r *http.Request, actor string) (any, error) {
	req, err := body[api.ReasonRequest](w, r)
	if err != nil {
		return nil, err
	}
	var i *fleet.Image
	err = s.update(r.Context(), func(tx store.Tx) error {
		if i, err = resolve(r.Context(), tx, r.PathValue("digest")); err != nil {
			return err
		}
		copied := *i
		i = &copied
		kind, msg := "", fmt.Sprintf("%s %s (%s)%s", i.Name, i.Version, rollout.Short(i.Digest), dash(req.Reason))
		switch act := r.PathValue("act"); {
		case act == "revoke" && i.Revoked != nil:
			return &rollout.Refusal{Why: "image " + rollout.Short(i.Digest) + " is revoked already"}
		case act == "revoke":
			if err := unwanted(r.Context(), tx, i.Digest); err != nil {
				return err
			}
			kind, i.Revoked = "image.revoked", &fleet.Revocation{At: s.now(), By: actor, Reason: clip(req.Reason, 500)}
		case act == "restore" && i.Revoked == nil:
			return &rollout.Refusal{Why: "image " + rollout.Short(i.Digest) + " is not revoked"}
		case act == "restore":
			kind, i.Revoked = "image.restored", nil
		default:
			return problem(http.StatusNotFound, "", "nothing called %q can be done to an image", act)
		}
		if err := tx.PutImage(r.Context(), i); err != nil {
			return err
		}
		return s.note(r.Context(), tx, actor, "", kind, msg)
	})
	return i, err
}

// unwanted refuses to revoke what the server itself is about to hand out.
func unwanted(ctx context.Context, tx store.Tx, digest string) error {
	pools, err := tx.Pools(ctx)
	if err != nil {
		return err
	}
	for _, p := range pools {
		if p.Image == digest {
			return &rollout.Refusal{Why: fmt.Sprintf("fresh nodes of pool %s install image %s", p.Name, rollout.Short(digest)), Hint: "give the pool another one first: pxeserver pool set " + p.Name + " --image …"}
		}
	}
	live, err := tx.LiveRollouts(ctx)
	if err != nil {
		return err
	}
	for _, ro := range live {
		if ro.Image == digest {
			return &rollout.Refusal{Why: fmt.Sprintf("rollout %s moves nodes to image %s", ro.ID, rollout.Short(digest)), Hint: "end it first: pxeserver rollout abort " + ro.ID + " --flip-back"}
		}
	}
	return nil
}

// usable refuses an image that was revoked.
func usable(i *fleet.Image) error {
	if i.Revoked == nil {
		return nil
	}
	return &rollout.Refusal{Why: fmt.Sprintf("image %s %s (%s) was revoked by %s%s", i.Name, i.Version, rollout.Short(i.Digest), i.Revoked.By, dash(i.Revoked.Reason)),
		Hint: "if it may be used again: pxeserver image restore " + rollout.Short(i.Digest)}
}

// refuseRevoked takes the acceptance back from a node that proved to run an
// image that was revoked.
func (s *Server) refuseRevoked(ctx context.Context, v *fleet.Verdict) error {
	if !v.Accepted {
		return nil
	}
	i, err := s.Store.Image(ctx, v.Image)
	if err != nil {
		return err
	}
	no := usable(i)
	if no == nil {
		return nil
	}
	v.Accepted = false
	v.Findings = append(v.Findings, fleet.Finding{Kind: kindRevoked, PCR: -1, Event: -1, What: "image", Seen: i.Digest, Detail: no.Error()})
	v.Summary = "the node runs what was built, but " + no.Error()
	return nil
}
