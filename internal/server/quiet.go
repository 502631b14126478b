package server

import (
	"context"
	"maps"
	"slices"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

// quiet takes in a heartbeat that brings no news, and reports whether it was
// one: nothing follows from it, and what it says differs from the last in
// passing things only. Nearly all heartbeats are like that; they are kept in
// memory, see store.Store.Seen.
func (s *Server) quiet(ctx context.Context, n *fleet.Node, rep *fleet.Report, now time.Time) (bool, error) {
	if n.Reported == nil || rep.Inventory != nil {
		return false, nil
	}
	if err := fillIn(ctx, s.Store, rep); err != nil {
		return false, err
	}
	pool := &fleet.Pool{Name: n.Pool}
	if isFresh(n, rep) {
		if p, err := s.Store.Pool(ctx, n.Pool); err == nil {
			pool = p
		}
	}
	before, r := n.Clone(), *rep
	if notes := observe(n, &r, pool, now); len(notes) > 0 || isNews(before, n) {
		return false, nil
	}
	return true, s.Store.Seen(ctx, n.Name, &r, now)
}

// fillIn replaces short digests, if there are any.
func fillIn(ctx context.Context, rd store.Reader, rep *fleet.Report) error {
	isShort := func(x fleet.SlotReport) bool { return x.Image != "" && len(x.Image) != len("sha256:")+64 }
	if !slices.ContainsFunc(rep.Slots, isShort) {
		return nil
	}
	images, err := rd.Images(ctx)
	inFull(rep, images)
	return err
}

// isNews reports whether a node differs in more than passing things.
func isNews(old, n *fleet.Node) bool {
	a, b := old.Reported, n.Reported
	return old.Desired != n.Desired || old.State != n.State || len(old.Banned) != len(n.Banned) || !sameFailure(old.Failure, n.Failure) ||
		a.Stage != b.Stage || a.BootID != b.BootID || a.Booted != b.Booted || a.BootPath != b.BootPath ||
		a.Acted != b.Acted || a.Kernel != b.Kernel || a.Healthy != b.Healthy ||
		!slices.Equal(a.Slots, b.Slots) || !maps.Equal(a.Versions, b.Versions) ||
		!slices.EqualFunc(a.Health, b.Health, func(x, y fleet.CheckResult) bool {
			return x.Name == y.Name && x.Status == y.Status && x.Class == y.Class && x.Required == y.Required
		})
}

func sameFailure(a, b *fleet.Failure) bool {
	if a == nil || b == nil {
		return a == b
	}
	return a.Image == b.Image && a.Generation == b.Generation && a.Check == b.Check && a.Detail == b.Detail
}
