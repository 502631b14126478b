package node

import (
	"context"
	"errors"
	"fmt"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/install"
	"github.com/turnout-project/turnout/internal/manifest"
)

// errOffline is returned when an action needs the server and it is not there.
var errOffline = errors.New("no session with the server")

// do carries out one action. Each is safe to repeat after a crash at any
// point, because the state decides again.
func (a *Agent) do(ctx context.Context, act Action, f facts) error {
	switch act.Kind {
	case Ack:
		return a.remember(func(l *local) { l.Acted, l.Refused = act.Generation, "" })
	case Confirm:
		return a.confirm(ctx, act)
	case Condemn:
		return a.condemn(ctx, act)
	case Install:
		return a.install(ctx, act)
	case Arm:
		return a.arm(ctx, act, func() error { return a.cfg.Slots.Arm(ctx, act.Slot, act.Generation, act.Tries) })
	case Flip:
		short := manifest.Short(act.Image)
		return a.arm(ctx, act, func() error { return a.cfg.Slots.Flip(ctx, act.Slot, short, act.Generation, act.Tries) })
	case Cancel:
		if err := a.cfg.Slots.Cancel(ctx, act.Slot); err != nil {
			return err
		}
		a.tell("slot.cancelled", "slot %s: %s", act.Slot, act.Reason)
		return a.remember(func(l *local) { l.ArmedBoot = "" })
	case Reboot:
		return a.reboot(ctx, act.Reason)
	}
	return fmt.Errorf("unknown action %q", act.Kind)
}

func (a *Agent) confirm(ctx context.Context, act Action) error {
	err := a.cfg.Slots.Confirm(ctx, abslot.ConfirmRequest{BootID: a.cfg.Info.BootID, Slot: act.Slot, Generation: act.Generation})
	if err != nil {
		return err
	}
	a.tell("slot.confirmed", "slot %s, generation %d: %s", act.Slot, act.Generation, act.Reason)
	return nil
}

// condemn tells the server first, as far as that is quickly done: after the
// reset this system's knowledge of what failed is gone.
func (a *Agent) condemn(ctx context.Context, act Action) error {
	a.tell("slot.condemned", "slot %s, generation %d: %s", act.Slot, act.Generation, act.Reason)
	a.setActivity("giving slot %s up: %s", act.Slot, act.Reason)
	a.speakQuickly(ctx)
	if err := a.cfg.Slots.Condemn(ctx, act.Slot, act.Reason, false); err != nil {
		return err
	}
	return a.reboot(ctx, act.Reason)
}

func (a *Agent) install(ctx context.Context, act Action) error {
	a.mu.Lock()
	s := a.session
	a.mu.Unlock()
	if s == nil {
		return errOffline
	}
	short := manifest.Short(act.Image)
	a.setActivity("installing %s into slot %s", short, act.Slot)
	a.tell("install.started", "image %s into slot %s: %s", short, act.Slot, act.Reason)
	im, err := install.Fetch(ctx, s.Client(), act.Image, a.records.keys)
	if err == nil {
		n := act.Slot.Index()
		t := install.Target{
			Slots: a.cfg.Slots, Slot: act.Slot, Root: a.cfg.Info.Roots[n], Verity: a.cfg.Info.Verities[n],
			OtherRoot: a.cfg.Info.Roots[act.Slot.Other().Index()],
			Pace:      install.Pace{Fetch: int64(a.cfg.Identity.Update.FetchMB) * 1e6, Disk: int64(a.cfg.Identity.Update.DiskMB) * 1e6},
		}
		err = install.Run(ctx, s.Client(), im, t, a.progress(act.Slot))
		if err != nil && ctx.Err() == nil && s.Client().DistrustCache() {
			a.tell("install.cache-distrusted", "%v: once more, from the server alone", err)
			err = install.Run(ctx, s.Client(), im, t, a.progress(act.Slot))
		}
	}
	if errors.Is(err, install.ErrRefused) {
		a.tell("install.refused", "image %s: %v", short, err)
		return a.remember(func(l *local) { l.Acted, l.Refused = act.Generation, err.Error() })
	}
	if err != nil {
		return err
	}
	return a.arm(ctx, act, func() error { return a.cfg.Slots.Arm(ctx, act.Slot, act.Generation, act.Tries) })
}

// progress shows an installation in heartbeats, and in the story by quarters.
func (a *Agent) progress(s fleet.Slot) install.Progress {
	quarter := 0
	return func(step string, percent int) {
		a.setActivity("installing %d %%: %s of slot %s", percent, step, s)
		if percent/25 > quarter {
			quarter = percent / 25
			a.tell("install.progress", "%d %%: %s", percent, step)
		}
	}
}

// arm makes the other slot the next to boot. That this boot did it is noted
// first: a crash in between then leaves an arming that is known to be ours.
// A ban of the image here is lifted by an operator's word (Retry), and by a
// wish of a newer generation than the failure.
func (a *Agent) arm(ctx context.Context, act Action, rename func() error) error {
	short := manifest.Short(act.Image)
	for _, b := range a.cfg.Slots.Bans(ctx) {
		if b.Short == short && (act.Retry || act.Generation > b.Generation) {
			if err := a.cfg.Slots.Lift(ctx, short); err != nil {
				return err
			}
		}
	}
	if err := a.remember(func(l *local) { l.ArmedBoot = a.cfg.Info.BootID }); err != nil {
		return err
	}
	if err := rename(); err != nil {
		return err
	}
	a.tell("slot.armed", "slot %s, image %s, generation %d, %d tries", act.Slot, short, act.Generation, act.Tries)
	return a.remember(func(l *local) { l.Acted, l.Refused = act.Generation, "" })
}

// remember changes the memory and stores it. What could not be stored is not
// remembered either.
func (a *Agent) remember(change func(*local)) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	next := a.local
	change(&next)
	if err := next.write(a.cfg.Dir); err != nil {
		return fmt.Errorf("the agent's memory in %s: %w", a.cfg.Dir, err)
	}
	a.local = next
	return nil
}

// reboot says why and starts the reboot, then waits for it.
func (a *Agent) reboot(ctx context.Context, reason string) error {
	a.tell("node.rebooting", "%s", reason)
	a.setActivity("rebooting: %s", reason)
	a.speakQuickly(ctx)
	a.cfg.Log("rebooting: %s", reason)
	if err := a.cfg.Reboot(reason); err != nil {
		return err
	}
	<-ctx.Done()
	return nil
}

// speakQuickly sends the story and a report now, if that can be done at once.
func (a *Agent) speakQuickly(ctx context.Context) {
	a.mu.Lock()
	s := a.session
	a.mu.Unlock()
	if s == nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, quickly)
	defer cancel()
	if err := a.speak(ctx, s); err != nil {
		a.cfg.Log("warning: not told to the server: %v", err)
	}
}
