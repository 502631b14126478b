package node

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"github.com/turnout-project/turnout/internal/efivar"
	"github.com/turnout-project/turnout/internal/fleet"
)

// entryFile counts, in the agent's folder, how often the boot entry was made.
const entryFile = "boot-entry"

// entryTimes is how often it is made: once, and once more after the firmware
// dropped it. A firmware that drops it again would have its flash worn out.
const entryTimes = 2

// keepEntry looks whether the firmware still has a boot entry for this disk,
// and has it made where it does not. It is a convenience: the loader lies at
// the path that firmware starts without an entry. Only a confirmed slot does
// it.
func (a *Agent) keepEntry(ctx context.Context) {
	if a.cfg.BootEntry == nil {
		return
	}
	st, err := a.cfg.Slots.Status(ctx)
	if err != nil || st.Booted == fleet.NoSlot || st.Slot(st.Booted).State != fleet.SlotGood {
		return
	}
	path := filepath.Join(a.cfg.Dir, entryFile)
	made := 0
	if b, err := os.ReadFile(path); err == nil {
		made, _ = strconv.Atoi(strings.TrimSpace(string(b))) // damaged: none
	}
	state, n, err := a.cfg.BootEntry(false)
	if err == nil && state != efivar.EntryThere && made < entryTimes {
		if err = countEntry(a.cfg.Dir, made+1); err == nil { // first: a crash then costs a try, not the limit
			state, n, err = a.cfg.BootEntry(true)
		}
		if err == nil {
			a.tell("boot.entry", "the firmware's boot entry for this disk was %s: Boot%04X is there, last in the boot order", state, n)
			return
		}
	}
	switch {
	case errors.Is(err, efivar.ErrNotExist):
	case err != nil:
		a.cfg.Log("boot entry: %v; the disk boots by the firmware's default path", err)
	case state != efivar.EntryThere:
		a.cfg.Log("boot entry: %s again, left so; the disk boots by the firmware's default path", state)
	}
}

func countEntry(dir string, made int) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, entryFile), []byte(strconv.Itoa(made)+"\n"), 0o644)
}
