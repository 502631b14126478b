package node

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/pause"
)

// DefaultSilence is how long an agent may give no sign of life in a trial
// boot before the trial is over.
const DefaultSilence = 10 * time.Minute

// Guard ends a trial boot whose agent is not alive: one that is killed again
// and again, or never comes up, would neither confirm the slot nor give it
// up, and systemd would feed the hardware watchdog all the same. A confirmed
// slot is left alone whatever its agent does.
type Guard struct {
	Report  string        // file that a living agent writes again and again: Config.ReportTo
	Silence time.Duration // 0 is DefaultSilence
	// State is that of the running slot.
	State func(context.Context) (fleet.SlotState, error)
	// Reset resets the machine: the loader then tries again, or goes back.
	Reset func(reason string) error
	Log   func(format string, args ...any)
	Every time.Duration // between two looks; 0 is 15 s
}

// Run looks until the slot is no longer on trial, ctx ends, or it has reset
// the machine.
func (g Guard) Run(ctx context.Context) error {
	if g.Silence == 0 {
		g.Silence = DefaultSilence
	}
	if g.Every == 0 {
		g.Every = 15 * time.Second
	}
	heard, last := time.Now(), time.Time{} // by the monotonic clock: the wall clock may be set meanwhile
	for {
		if st, err := os.Stat(g.Report); err == nil && !st.ModTime().Equal(last) {
			heard, last = time.Now(), st.ModTime()
		} else if err != nil && !errors.Is(err, fs.ErrNotExist) {
			g.Log("warning: %v", err)
		}
		state, err := g.State(ctx)
		switch {
		case err != nil:
			g.Log("warning: the state of the running slot is not known: %v", err) // it is not taken for a trial
		case state != fleet.SlotTrying:
			g.Log("the running slot is %s: nothing to guard", state)
			<-ctx.Done()
			return nil
		case time.Since(heard) >= g.Silence:
			return g.Reset(fmt.Sprintf("trial boot: no sign of life of the agent for %s", g.Silence))
		}
		if pause.For(ctx, g.Every) != nil {
			return nil
		}
	}
}
