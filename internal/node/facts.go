package node

import (
	"context"
	"crypto/ed25519"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/install"
)

// facts is the state of the slots, with the images put to their names.
type facts struct {
	status abslot.Status
	slots  [2]fleet.SlotReport
}

// look reads the slots. An error is told as the Problem of the State, so
// that nothing is decided on guesses.
func (a *Agent) look(ctx context.Context) (facts, error) {
	st, err := a.cfg.Slots.Status(ctx)
	if err != nil {
		return facts{}, err
	}
	f := facts{status: st}
	for i, r := range st.Report() {
		f.slots[i] = r
		if short := st.Slots[i].Short; short != "" {
			f.slots[i].Image, f.slots[i].Name = short, ""
			if im := a.records.get(ctx, a.cfg.Slots, short); im != nil {
				f.slots[i].Image, f.slots[i].Name = im.Digest, im.Label
			}
		}
	}
	return f, nil
}

// state puts together what Decide wants to know.
func (a *Agent) state(f facts, lookErr error, now time.Time) State {
	a.mu.Lock()
	defer a.mu.Unlock()
	s := State{
		Booted: a.cfg.Info.Slot, Slots: f.slots, Counted: f.status.Counted,
		ArmedNow: a.local.ArmedBoot == a.cfg.Info.BootID,
		Desired:  a.desired, Acted: a.acted(f), Soaked: a.soak.Soaked(),
		Verdict: a.verdict, Grace: a.cfg.Grace, ConfirmOffline: a.cfg.Identity.Health.ConfirmOffline,
	}
	if !a.reached {
		s.Offline = now.Sub(a.began)
	}
	switch {
	case lookErr != nil:
		s.Problem = "slots cannot be read: " + lookErr.Error()
	case f.status.Problem != nil:
		s.Problem = f.status.Problem.Error()
	}
	if c, d, ok := a.soak.Failing(now); ok {
		s.Failing = &Failure{Check: c, For: d}
	}
	return s
}

// acted is the highest generation acted on, as remembered and as the ESP
// shows it.
func (a *Agent) acted(f facts) uint64 {
	g := a.local.Acted
	for _, s := range f.slots {
		g = max(g, s.Generation)
	}
	return g
}

// records keeps the image records of the ESP that were checked.
type records struct {
	keys []ed25519.PublicKey

	mu    sync.Mutex
	known map[string]*install.Image // by short digest
}

// get returns the record of an image, nil when there is none that holds.
func (r *records) get(ctx context.Context, m *abslot.Machine, short string) *install.Image {
	r.mu.Lock()
	defer r.mu.Unlock()
	if im, ok := r.known[short]; ok {
		return im
	}
	b, err := m.Manifest(ctx, short)
	if err != nil {
		return nil
	}
	rec, err := install.DecodeRecord(b)
	if err != nil {
		return nil
	}
	im, err := rec.Open(r.keys)
	if err != nil {
		return nil
	}
	if r.known == nil {
		r.known = map[string]*install.Image{}
	}
	r.known[short] = im
	return im
}
