package crashtest

import (
	"fmt"
	"maps"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/disk/fatdir"
)

// unshare is what disk.RepairESP does before the ESP is mounted.
func unshare(d fatdir.Device) error {
	for _, dir := range abslot.Folders {
		if _, err := fatdir.Dedupe(d, 0, dir, abslot.Keep); err != nil {
			return err
		}
	}
	return nil
}

// cutRepair cuts the repair of a state at each of its writes: what is left
// settles, and settles when the repair is done again. s stays as it is.
func (c *Checker) cutRepair(s *State) error {
	r := &recorder{State: s.clone()}
	if err := unshare(r); err != nil {
		return err
	}
	if len(r.ops) == 0 {
		return nil
	}
	return Log{Base: s.clone(), Ops: r.ops}.States(Bounds{AllSubsets: 10, Random: 50}, func(where string, cut *State) error {
		c.Recut++
		for _, step := range []func() error{func() error { return nil }, func() error { return unshare(cut) }} {
			if err := step(); err != nil {
				return fmt.Errorf("%s: %w", where, err)
			}
			n, err := c.node(cut)
			if err == nil {
				err = c.settles(n)
			}
			if err != nil {
				return fmt.Errorf("%s: %w", where, err)
			}
		}
		return nil
	})
}

func (s *State) clone() *State { return &State{s.base, maps.Clone(s.sectors)} }

// recorder is a state that records what is done to it.
type recorder struct {
	*State
	ops []Op
}

// WriteAt records whole sectors.
func (r *recorder) WriteAt(b []byte, off int64) (int, error) {
	n, err := r.State.WriteAt(b, off)
	if err != nil {
		return n, err
	}
	first, end := off/Sector*Sector, (off+int64(len(b))+Sector-1)/Sector*Sector
	data := make([]byte, end-first)
	if _, err := r.ReadAt(data, first); err != nil {
		return 0, err
	}
	r.ops = append(r.ops, Op{first, data})
	return n, nil
}

// Sync records a flush.
func (r *recorder) Sync() error {
	r.ops = append(r.ops, Op{})
	return nil
}
