package server

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/turnout-project/turnout/internal/bmc"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/pause"
	"github.com/turnout-project/turnout/internal/pulse"
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
	if pause.For(ctx, recoverAfter) != nil {
		return
	}
	for {
		if err := s.RecoverOnce(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("recovering nodes; it will be tried again", "err", err)
		}
		if pause.For(ctx, recoverEvery) != nil {
			return
		}
	}
}

// errMoved says that the fleet has moved on since it was looked at.
var errMoved = errors.New("the fleet has moved on")

// RecoverOnce is one look. What it decides is written down, with its reason,
// before it is done: a server that dies in between does less, never more. Of
// several servers that look at once, one finds everything decided.
//
// Looking at a large fleet takes a while, so it is done outside the update;
// the update holds what matters against what was looked at.
func (s *Server) RecoverOnce(ctx context.Context) error {
	if s.live().Recovery == nil {
		return nil
	}
	before, in, err := s.recoveryInput(ctx, s.Store)
	if err != nil {
		return err
	}
	if p, err := readPause(ctx, s.Store); err != nil || p.holds(in.Now) {
		return err
	}
	state, deeds, notes := recovery.Decide(*in)
	after, err := json.Marshal(state)
	if err != nil || string(after) == string(before) && len(deeds)+len(notes) == 0 {
		return err
	}
	err = s.Store.Update(ctx, func(tx store.Tx) error {
		if err := s.unmoved(ctx, tx, before, deeds, in.Now); err != nil {
			return err
		}
		return s.writeDown(ctx, tx, state, deeds, notes)
	})
	switch {
	case errors.Is(err, errMoved):
		return nil // the next look sees it
	case err != nil:
		return err
	}
	if len(deeds)+len(notes) > 0 {
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

// unmoved checks that nobody else has decided meanwhile, no operator has
// paused recovery or taken a node away, no rollout has taken one up, and that
// a node that was silent still is.
func (s *Server) unmoved(ctx context.Context, tx store.Tx, before []byte, deeds []recovery.Deed, at time.Time) error {
	now, err := stateDoc(ctx, tx)
	if err != nil {
		return err
	}
	p, err := readPause(ctx, tx)
	if err != nil {
		return err
	}
	if string(now) != string(before) || p.holds(at) {
		return errMoved
	}
	if len(deeds) == 0 {
		return nil
	}
	held, err := heldNodes(ctx, tx)
	if err != nil {
		return err
	}
	for _, d := range deeds {
		n, err := tx.Node(ctx, d.Node)
		switch {
		case errors.Is(err, store.ErrNotFound):
			return errMoved
		case err != nil:
			return err
		case n.State != fleet.NodeApproved, held[d.Node] != "", d.Silent && at.Sub(n.LastSeen) <= pulse.LostAfter:
			return errMoved
		}
	}
	return nil
}

// writeDown writes what was decided.
func (s *Server) writeDown(ctx context.Context, tx store.Tx, state recovery.State, deeds []recovery.Deed, notes []recovery.Note) error {
	for _, n := range notes {
		if err := s.note(ctx, tx, actorRecovery, n.Node, n.Kind, clip(n.Message, 1000)); err != nil {
			return err
		}
	}
	for _, d := range deeds {
		if err := s.intend(ctx, tx, d, state.Nodes[d.Node]); err != nil {
			return err
		}
	}
	return putJSON(ctx, tx, kindRecovery, keyState, state)
}

// heldNodes are the nodes that live rollouts move, or keep drained.
func heldNodes(ctx context.Context, r store.Reader) (map[string]string, error) {
	rs, err := r.LiveRollouts(ctx)
	held := map[string]string{}
	for _, x := range rs {
		for i := range x.Nodes {
			switch m := &x.Nodes[i]; {
			case m.Held(), m.State == fleet.MoveDraining, m.State == fleet.MoveMoving, m.State == fleet.MoveReturning:
				held[m.Node] = x.ID
			}
		}
	}
	return held, err
}

// recoveryInput is what is looked at, with the state's document as it was
// read.
func (s *Server) recoveryInput(ctx context.Context, r store.Reader) (before []byte, in *recovery.Input, err error) {
	in = &recovery.Input{Now: s.now(), Config: *s.live().Recovery, BMC: map[string]bool{}, Images: map[string]string{}, Quiet: max(time.Minute, s.silentAfter())}
	if before, err = stateDoc(ctx, r); err != nil {
		return nil, nil, err
	}
	if len(before) > 0 {
		if err := json.Unmarshal(before, &in.State); err != nil {
			return nil, nil, fmt.Errorf("state of recovery: %w", err)
		}
	}
	if in.Nodes, err = r.Nodes(ctx); err != nil {
		return nil, nil, err
	}
	if in.Held, err = heldNodes(ctx, r); err != nil {
		return nil, nil, err
	}
	pools, err := r.Pools(ctx)
	if err != nil {
		return nil, nil, err
	}
	for _, p := range pools {
		in.Images[p.Name] = p.Image
	}
	bmcs, err := r.Records(ctx, kindBMC, "", "")
	for _, b := range bmcs {
		in.BMC[b.Key] = s.BMC != nil
	}
	return before, in, err
}

// stateDoc reads the state's document, empty before the first.
func stateDoc(ctx context.Context, r store.Reader) ([]byte, error) {
	rec, err := r.Record(ctx, kindRecovery, keyState)
	if errors.Is(err, store.ErrNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	return rec.Doc, nil
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
		ask(n, act)
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
