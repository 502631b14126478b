package node

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/manifest"
)

// OrderSocket is where the service takes a technician's orders: HTTP on a
// unix socket that only root can open.
const OrderSocket = "/run/turnout/agent.sock"

// FlipOrder asks for a boot of the other, confirmed slot.
type FlipOrder struct {
	Reason string `json:"reason"`
}

// FlipResult says what will be booted.
type FlipResult struct {
	Slot       fleet.Slot `json:"slot"`
	Image      string     `json:"image"` // label, or short digest where no record is known
	Generation uint64     `json:"generation"`
}

// ConfirmOrder asks to confirm the booted slot on a technician's word, where
// the server cannot. With Force, although checks do not pass or attestation
// was refused.
type ConfirmOrder struct {
	Reason string `json:"reason"`
	Force  bool   `json:"force,omitempty"`
}

// orderRefused is an order that cannot be carried out as things stand.
type orderRefused struct{ why string }

func (e *orderRefused) Error() string { return e.why }

func refuse(format string, args ...any) error { return &orderRefused{fmt.Sprintf(format, args...)} }

// orderLoop takes orders until ctx ends. A socket that cannot be made is
// told, and costs the technician's commands only.
func (a *Agent) orderLoop(ctx context.Context) {
	l, err := listenPrivate(a.cfg.Orders)
	if err != nil {
		a.cfg.Log("warning: no orders can be taken at %s: %v", a.cfg.Orders, err)
		return
	}
	s := &http.Server{Handler: a.orders(), ReadHeaderTimeout: 10 * time.Second}
	stop := context.AfterFunc(ctx, func() { _ = s.Close() })
	defer stop()
	if err := s.Serve(l); !errors.Is(err, http.ErrServerClosed) {
		a.cfg.Log("warning: orders: %v", err)
	}
}

// listenPrivate makes a socket that is nobody else's from its first moment.
func listenPrivate(path string) (net.Listener, error) {
	dir := filepath.Join(filepath.Dir(path), "private")
	if err := errors.Join(os.MkdirAll(dir, 0o700), os.Chmod(dir, 0o700)); err != nil {
		return nil, err
	}
	inside := filepath.Join(dir, "socket")
	for _, p := range []string{inside, path} {
		if err := os.Remove(p); err != nil && !errors.Is(err, os.ErrNotExist) {
			return nil, err
		}
	}
	l, err := net.Listen("unix", inside)
	if err != nil {
		return nil, err
	}
	l.(*net.UnixListener).SetUnlinkOnClose(false)
	if err := errors.Join(os.Chmod(inside, 0o600), os.Rename(inside, path)); err != nil {
		l.Close()
		return nil, err
	}
	return l, nil
}

func (a *Agent) orders() http.Handler {
	m := http.NewServeMux()
	m.HandleFunc("POST /flip", answerOrder(a.flipOrder))
	m.HandleFunc("POST /confirm", answerOrder(a.confirmOrder))
	m.HandleFunc("POST /attest", answerOrder(a.attestOrder))
	return m
}

// answerOrder makes a handler of JSON to JSON; refusals are status 409.
func answerOrder[In, Out any](do func(context.Context, In) (Out, error)) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var in In
		var out any
		status := http.StatusOK
		err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<16)).Decode(&in)
		if err == nil {
			out, err = do(r.Context(), in)
		}
		if err != nil {
			status, out = http.StatusInternalServerError, map[string]string{"error": err.Error()}
			var no *orderRefused
			if errors.As(err, &no) {
				status = http.StatusConflict
			}
		}
		w.Header().Set("Content-Type", "application/json")
		w.WriteHeader(status)
		_ = json.NewEncoder(w).Encode(out) // the reader is gone if it fails
	}
}

// exclusively does something while no action of the agent's own is under way.
func (a *Agent) exclusively(do func() error) error {
	a.mu.Lock()
	if a.busy {
		why := a.activity
		a.mu.Unlock()
		return refuse("the agent is at work: %s; try again when it is done", why)
	}
	a.busy = true
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		a.busy = false
		a.mu.Unlock()
		poke(a.wake)
		poke(a.beat)
	}()
	return do()
}

func (a *Agent) flipOrder(ctx context.Context, o FlipOrder) (out FlipResult, err error) {
	err = a.exclusively(func() error {
		f, err := a.look(ctx)
		if err != nil {
			return err
		}
		act, err := PlanFlip(a.cfg.Info.Slot, f.slots, a.actedLocked(f), o.Reason)
		if err != nil {
			return err
		}
		other := f.slots[act.Slot.Index()]
		out = FlipResult{act.Slot, cmp.Or(other.Name, shortOf(other.Image)), act.Generation}
		a.tell("slot.flip-ordered", "at the node: slot %s, %s: %s", act.Slot, out.Image, o.Reason)
		return a.do(ctx, act, f)
	})
	return out, err
}

func (a *Agent) actedLocked(f facts) uint64 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.acted(f)
}

// PlanFlip is the action by which a technician flips a node: to its other
// slot, which must be confirmed, under a generation above all that it has
// acted on, so that a server's older wish does not undo it.
func PlanFlip(booted fleet.Slot, slots [2]fleet.SlotReport, acted uint64, reason string) (Action, error) {
	if booted == fleet.NoSlot {
		return Action{}, refuse("no slot runs")
	}
	now, other := slots[booted.Index()], slots[booted.Other().Index()]
	switch {
	case now.State != fleet.SlotGood:
		return Action{}, refuse("slot %s, which runs, is %s: it is given up by a reset, or confirmed first (nodeagent slot confirm)", booted, now.State)
	case other.State != fleet.SlotGood:
		return Action{}, refuse("slot %s is %s; only a confirmed slot can be flipped to", other.Slot, other.State)
	}
	next := max(acted, now.Generation, other.Generation) + 1
	return Action{Kind: Flip, Slot: other.Slot, Image: other.Image, Generation: next, Tries: fleet.DefaultTries, Retry: true, Reason: "technician: " + reason}, nil
}

func (a *Agent) confirmOrder(ctx context.Context, o ConfirmOrder) (out fleet.SlotReport, err error) {
	err = a.exclusively(func() error {
		f, err := a.look(ctx)
		if err != nil {
			return err
		}
		booted := a.cfg.Info.Slot
		if booted == fleet.NoSlot {
			return refuse("no slot runs")
		}
		if err := a.mayConfirmByHand(o.Force); err != nil {
			return err
		}
		out = f.slots[booted.Index()]
		err = a.confirm(ctx, Action{Kind: Confirm, Slot: booted, Generation: out.Generation, Reason: "technician: " + o.Reason})
		if err == nil {
			out.State = fleet.SlotGood
		}
		return err
	})
	return out, err
}

// mayConfirmByHand wants health, and no verdict against this boot.
func (a *Agent) mayConfirmByHand(force bool) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	if force {
		return nil
	}
	if v := a.verdict; v != nil && !v.Accepted {
		return refuse("attestation of this boot was refused: %s; --force confirms it all the same", v.Summary)
	}
	if c, _, failing := a.soak.Failing(time.Now()); failing {
		return refuse("health check %q %s: %s; --force confirms it all the same", c.Name, c.Status, c.Detail)
	}
	if !a.soak.Soaked() {
		return refuse("health checks have not passed for the whole soak yet; wait, or say --force")
	}
	return nil
}

func (a *Agent) attestOrder(ctx context.Context, _ struct{}) (*fleet.Verdict, error) {
	a.mu.Lock()
	s := a.session
	a.mu.Unlock()
	if s == nil {
		return nil, refuse("there is no session with the server, which judges; see `nodeagent status`")
	}
	if err := a.attest(ctx, s); err != nil {
		return nil, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.verdict, nil
}

// ArmFlip carries a flip out where no service runs: as the agent would, so
// that the next agent does not take the arming back. The caller reboots.
func ArmFlip(ctx context.Context, cfg Config, reason string) (FlipResult, error) {
	a, err := New(cfg)
	if err != nil {
		return FlipResult{}, err
	}
	f, err := a.look(ctx)
	if err != nil {
		return FlipResult{}, err
	}
	act, err := PlanFlip(cfg.Info.Slot, f.slots, a.actedLocked(f), reason)
	if err != nil {
		return FlipResult{}, err
	}
	other := f.slots[act.Slot.Index()]
	short := manifest.Short(act.Image)
	if short == "" {
		short = act.Image
	}
	err = a.arm(ctx, act, func() error { return cfg.Slots.Flip(ctx, act.Slot, short, act.Generation, act.Tries) })
	return FlipResult{act.Slot, cmp.Or(other.Name, shortOf(other.Image)), act.Generation}, err
}
