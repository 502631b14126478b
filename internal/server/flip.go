package server

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/rollout"
	"github.com/turnout-project/turnout/internal/store"
)

// flip wants nodes to boot their other confirmed slot: all of them or, if
// one cannot, none.
func (s *Server) flip(w http.ResponseWriter, r *http.Request, actor string) (any, error) {
	req, err := body[api.FlipRequest](w, r)
	if err != nil {
		return nil, err
	}
	if len(req.Nodes) == 0 {
		return nil, problem(http.StatusBadRequest, "", "no node is named")
	}
	slices.Sort(req.Nodes)
	var flips []api.Flip
	err = s.update(r.Context(), func(tx store.Tx) error {
		flips, err = s.flipAll(r.Context(), tx, slices.Compact(req.Nodes), req, actor)
		return err
	})
	if errors.Is(err, errRefused) {
		err = nil
	}
	return flips, err
}

// errRefused undoes a flip of many when one is refused; the flips say why.
var errRefused = errors.New("refused")

func (s *Server) flipAll(ctx context.Context, tx store.Tx, names []string, req *api.FlipRequest, actor string) ([]api.Flip, error) {
	var flips []api.Flip
	refused := false
	for _, name := range names {
		f, n, err := flipOf(ctx, tx, name)
		if err != nil {
			return nil, err
		}
		refused = refused || f.Refused != ""
		flips = append(flips, f)
		if req.DryRun || f.Refused != "" {
			continue
		}
		reason := "slot flip by " + actor
		if req.Reason != "" {
			reason += ": " + req.Reason
		}
		rollout.Want(n, fleet.Desired{Image: f.Image, Reason: reason})
		msg := fmt.Sprintf("slot %s -> %s, image %s, generation %d%s", f.From, f.To, rollout.Short(f.Image), n.Desired.Generation, dash(req.Reason))
		if err := errors.Join(tx.PutNode(ctx, n), s.note(ctx, tx, actor, name, "slot.flip", msg)); err != nil {
			return nil, err
		}
	}
	if refused && !req.DryRun {
		return flips, errRefused
	}
	for i := range flips {
		flips[i].Done = !req.DryRun
	}
	return flips, nil
}

// flipOf says what a flip means for one node, or why it cannot be.
func flipOf(ctx context.Context, tx store.Tx, name string) (api.Flip, *fleet.Node, error) {
	n, err := tx.Node(ctx, name)
	if err != nil {
		return api.Flip{}, nil, err
	}
	f := api.Flip{Node: name}
	r := n.Reported
	switch {
	case n.State == fleet.NodePending:
		f.Refused = "it is pending"
	case r == nil || r.Stage != fleet.StageSystem || r.Booted == fleet.NoSlot:
		f.Refused = "it runs from no slot: it is not installed, or has not reported yet"
	}
	if f.Refused != "" {
		return f, n, nil
	}
	other := r.Slot(r.Booted.Other())
	f.From, f.To, f.Image, f.Name, f.Generation = r.Booted, other.Slot, other.Image, other.Name, rollout.NextGeneration(n)
	switch err := free(ctx, tx, n, other.Image); {
	case other.State != fleet.SlotGood:
		f.Refused = fmt.Sprintf("its other slot %s is %s, not good%s", other.Slot, other.State, dash(other.Reason))
	case other.Image == "":
		f.Refused = fmt.Sprintf("which image its slot %s holds is not known", other.Slot)
	case err != nil:
		var no *rollout.Refusal
		if !errors.As(err, &no) {
			return f, n, err
		}
		f.Refused = no.Why
	}
	return f, n, nil
}
