package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/turnout-project/turnout/internal/bmc"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/recovery"
	"github.com/turnout-project/turnout/internal/rollout"
	"github.com/turnout-project/turnout/internal/store"
)

// recoverEvery is the pause between two looks at nodes in trouble, and
// recoverAfter how long a server that has just started waits for the first:
// nodes that could not reach it must have their say.
const (
	recoverEvery = 30 * time.Second
	recoverAfter = 10 * time.Minute
)

// The actor of recovery's events, and its records.
const (
	actorRecovery = "recovery"
	kindRecovery  = "recovery"
	keyState      = "state"
	keyPause      = "pause"
)

// Recover looks after nodes in trouble until ctx ends.
func (s *Server) Recover(ctx context.Context) {
	if s.Recovery == nil {
		return
	}
	if !rest(ctx, recoverAfter) {
		return
	}
	for {
		if err := s.RecoverOnce(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("recovering nodes; it will be tried again", "err", err)
		}
		if !rest(ctx, recoverEvery) {
			return
		}
	}
}

func rest(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-t.C:
		return true
	}
}

// RecoverOnce is one look. What it decides is written down, with its reason,
// before it is done: a server that dies in between does less, never more. Of
// several servers that look at once, one finds everything decided.
func (s *Server) RecoverOnce(ctx context.Context) error {
	var deeds []recovery.Deed
	err := s.Store.Update(ctx, func(tx store.Tx) (err error) {
		deeds, err = s.decide(ctx, tx)
		return err
	})
	if err != nil {
		return err
	}
	if len(deeds) > 0 {
		s.news.tell()
		s.poke()
	}
	var errs []error
	for _, d := range deeds {
		if err := s.carryOut(ctx, d); err != nil {
			errs = append(errs, s.failedDeed(ctx, d, err))
		}
	}
	return errors.Join(errs...)
}

// decide looks at the fleet inside the transaction that also writes the
// outcome.
func (s *Server) decide(ctx context.Context, tx store.Tx) ([]recovery.Deed, error) {
	in, err := s.recoveryInput(ctx, tx)
	if err != nil {
		return nil, err
	}
	if p, err := readPause(ctx, tx); err != nil || p != nil && (p.Until.IsZero() || in.Now.Before(p.Until)) {
		return nil, err
	}
	state, deeds, notes := recovery.Decide(*in)
	for _, n := range notes {
		if err := s.note(ctx, tx, actorRecovery, n.Node, n.Kind, clip(n.Message, 1000)); err != nil {
			return nil, err
		}
	}
	for _, d := range deeds {
		if err := s.intend(ctx, tx, d, state.Nodes[d.Node]); err != nil {
			return nil, err
		}
	}
	return deeds, putJSON(ctx, tx, kindRecovery, keyState, state)
}

func (s *Server) recoveryInput(ctx context.Context, r store.Reader) (*recovery.Input, error) {
	in := &recovery.Input{Now: s.now(), Config: *s.Recovery, Held: map[string]string{}, BMC: map[string]bool{}, Images: map[string]string{}, Quiet: max(time.Minute, s.silentAfter())}
	var err error
	if in.Nodes, err = r.Nodes(ctx); err != nil {
		return nil, err
	}
	rs, err := r.LiveRollouts(ctx)
	if err != nil {
		return nil, err
	}
	for _, x := range rs {
		for _, m := range x.Nodes {
			if m.State == fleet.MoveMoving || m.State == fleet.MoveReturning {
				in.Held[m.Node] = x.ID
			}
		}
	}
	pools, err := r.Pools(ctx)
	if err != nil {
		return nil, err
	}
	for _, p := range pools {
		in.Images[p.Name] = p.Image
	}
	bmcs, err := r.Records(ctx, kindBMC, "", "")
	if err != nil {
		return nil, err
	}
	for _, b := range bmcs {
		in.BMC[b.Key] = s.BMC != nil
	}
	in.State, err = readState(ctx, r)
	return in, err
}

func readState(ctx context.Context, r store.Reader) (recovery.State, error) {
	var st recovery.State
	err := getJSON(ctx, r, kindRecovery, keyState, &st)
	if errors.Is(err, store.ErrNotFound) {
		err = nil
	}
	return st, err
}

// getJSON and putJSON keep a value as a record.
func getJSON(ctx context.Context, r store.Reader, kind, key string, v any) error {
	rec, err := r.Record(ctx, kind, key)
	if err != nil {
		return err
	}
	if err := json.Unmarshal(rec.Doc, v); err != nil {
		return fmt.Errorf("%s %s: %w", kind, key, err)
	}
	return nil
}

func putJSON(ctx context.Context, tx store.Tx, kind, key string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return fmt.Errorf("%s %s: %w", kind, key, err)
	}
	old, err := tx.Record(ctx, kind, key)
	if err == nil && string(old.Doc) == string(b) {
		return nil // nothing new: no write
	}
	return tx.PutRecord(ctx, store.Record{Kind: kind, Key: key, Doc: b})
}

// intend writes what is about to be done, and does what the store alone can.
func (s *Server) intend(ctx context.Context, tx store.Tx, d recovery.Deed, ns *recovery.NodeState) error {
	n, err := tx.Node(ctx, d.Node)
	if err != nil {
		return err
	}
	switch d.Step {
	case recovery.Recheck, recovery.RestartAgent:
		act := fleet.AskRecheck
		if d.Step == recovery.RestartAgent {
			act = fleet.AskRestart
		}
		ask := &fleet.Ask{ID: 1, Act: act}
		if n.Ask != nil {
			ask.ID = n.Ask.ID + 1
		}
		n.Ask = ask
	case recovery.Flip, recovery.Reinstall:
		rollout.Want(n, fleet.Desired{Image: d.Image, Reinstall: d.Step == recovery.Reinstall, Reason: "recovery, " + string(d.Step) + ": " + clip(d.Reason, 300)})
		ns.Generation = n.Desired.Generation
	case recovery.Quarantine:
		n.State, n.Reason = fleet.NodeQuarantined, "recovery: "+clip(d.Reason, 300)
	}
	if err := tx.PutNode(ctx, n); err != nil {
		return err
	}
	return s.note(ctx, tx, actorRecovery, d.Node, "recovery."+string(d.Step), clip(d.Reason, 1000))
}

// carryOut does what needs a BMC.
func (s *Server) carryOut(ctx context.Context, d recovery.Deed) error {
	switch {
	case d.Step == recovery.PowerCycle:
		_, err := s.actPower(ctx, d.Node, fleet.PowerCycle)
		return err
	case d.Step == recovery.Reinstall && d.Silent:
		return s.withBMC(ctx, d.Node, func(ctx context.Context, c *bmc.Session) error {
			if err := c.BootOnce(fleet.BootPXE); err != nil {
				return err
			}
			return c.Act(ctx, fleet.PowerCycle)
		})
	}
	return nil
}

// failedDeed remembers that a step could not be carried out, so that the next
// one need not wait for it to help.
func (s *Server) failedDeed(ctx context.Context, d recovery.Deed, why error) error {
	return s.update(context.WithoutCancel(ctx), func(tx store.Tx) error {
		st, err := readState(ctx, tx)
		if err != nil {
			return err
		}
		if ns := st.Nodes[d.Node]; ns != nil && ns.Step == d.Step {
			ns.Failed = clip(why.Error(), 300)
		}
		return errors.Join(putJSON(ctx, tx, kindRecovery, keyState, st),
			s.note(ctx, tx, actorRecovery, d.Node, "recovery.failed", string(d.Step)+": "+clip(why.Error(), 600)))
	})
}
