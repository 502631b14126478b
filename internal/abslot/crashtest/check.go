package crashtest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/abslot/memesp"
	"github.com/turnout-project/turnout/internal/abslot/sdboot"
	"github.com/turnout-project/turnout/internal/abslot/slottest"
	"github.com/turnout-project/turnout/internal/disk/fatdir"
	"github.com/turnout-project/turnout/internal/fleet"
)

// SlotSector is where a test disk says what the verity trees of its slots
// hold: after the file system, one sector per slot with the root hash, so
// that writes to slots and writes to the ESP are recorded in one order.
func SlotSector(fatBytes int64, s fleet.Slot) int64 { return fatBytes + int64(s.Index())*Sector }

// SlotRecord returns the sector that says that a tree has that root hash.
func SlotRecord(hash string) []byte {
	b := make([]byte, Sector)
	copy(b, hash)
	return b
}

// Checker judges states.
type Checker struct {
	FATBytes int64
	Images   []slottest.Image // that may be on the disk
	// Visited counts states, Distinct those that differ in anything a loader
	// or the slot machine can see, Torn those that needed the repair, Recut
	// those that a cut of the repair left.
	Visited, Distinct, Torn, Recut int
	// OnDistinct, when set, is called for each distinct state.
	OnDistinct func(where string, s *State)
	seen       map[[32]byte]bool
}

// Check returns an error when a state breaks an invariant.
func (c *Checker) Check(where string, s *State) error {
	c.Visited++
	n, err := c.node(s)
	if err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	if c.seen == nil {
		c.seen = map[[32]byte]bool{}
	}
	if k := key(n); c.seen[k] {
		return nil
	} else {
		c.seen[k] = true
	}
	c.Distinct++
	if c.OnDistinct != nil {
		c.OnDistinct(where, s)
	}
	if err := c.settles(n); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	if err := c.goesOn(s); err != nil {
		return fmt.Errorf("%s: %w", where, err)
	}
	return nil
}

// node reads a state with fatdir into a simulated node.
func (c *Checker) node(s *State) (*slottest.Node, error) {
	v, err := fatdir.Open(s, 0)
	if err != nil {
		return nil, err
	}
	esp := &memesp.ESP{}
	for _, dir := range abslot.Folders {
		entries, err := v.List(dir)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			b, err := v.ReadFile(e)
			if err != nil {
				b = []byte(err.Error()) // unreadable is as good as damaged
			}
			if e.ReadOnly {
				return nil, fmt.Errorf("%s/%s is read-only: firmware cannot count it", dir, e.Name)
			}
			if err := esp.Put(context.Background(), dir+"/"+e.Name, bytes.NewReader(b), int64(len(b))); err != nil {
				return nil, err
			}
		}
	}
	n := slottest.NewNode(esp)
	for _, slot := range fleet.Slots {
		b := make([]byte, Sector)
		if _, err := s.ReadAt(b, SlotSector(c.FATBytes, slot)); err != nil && !errors.Is(err, io.EOF) {
			return nil, err
		}
		n.Hashes[slot] = strings.TrimRight(string(b), "\x00")
	}
	return n, nil
}

func key(n *slottest.Node) [32]byte {
	ctx, h := context.Background(), sha256.New()
	for _, dir := range abslot.Folders {
		files, _ := n.ESP.List(ctx, dir)
		for _, f := range files {
			fmt.Fprintf(h, "%s/%s %d\n", dir, f.Name, f.SizeBytes)
			if r, size, err := n.ESP.Open(ctx, dir+"/"+f.Name); err == nil {
				_, _ = io.Copy(h, io.NewSectionReader(r, 0, size))
				_ = r.Close()
			}
		}
	}
	fmt.Fprint(h, n.Hashes[fleet.SlotA], n.Hashes[fleet.SlotB])
	return [32]byte(h.Sum(nil))
}

// settles is I1 and I4: whatever the loader starts is a whole UKI whose image
// is whole in a slot; and without a confirm it ends, within as many boots as
// tries can be granted, on one that was confirmed.
func (c *Checker) settles(n *slottest.Node) error {
	names := linux(n)
	content := n.ESP.(*memesp.ESP).Files()
	aliases := map[string]string{} // name now -> name on the disk
	for _, f := range names {
		aliases[f] = f
	}
	var started string
	for range abslot.MaxTries + 1 {
		selected, ok := sdboot.Select(names)
		if !ok {
			return fmt.Errorf("nothing to boot among %q", names)
		}
		var after []string
		started, after, _ = sdboot.Boot(names)
		aliases[started], names = aliases[selected], after
		if err := c.whole(n, started, content[abslot.LinuxDir+"/"+aliases[started]]); err != nil {
			return err
		}
	}
	if x, err := abslot.ParseName(started); err != nil || x.Counted {
		return fmt.Errorf("without a confirm the node goes on starting %s (of %q)", started, names)
	}
	return nil
}

func (c *Checker) whole(n *slottest.Node, name string, uki []byte) error {
	for _, i := range c.Images {
		if bytes.Equal(i.UKI, uki) {
			if n.Hashes[fleet.SlotA] == i.RootHash || n.Hashes[fleet.SlotB] == i.RootHash {
				return nil
			}
			return fmt.Errorf("the loader starts %s, whose image %s is in no slot (%v)", name, i.Short, n.Hashes)
		}
	}
	return fmt.Errorf("the loader starts %s, which is no whole UKI", name)
}

func linux(n *slottest.Node) []string {
	names, _ := n.Entries(context.Background())
	return names
}

// goesOn is the way out: the node boots, repairs what the cut tore, confirms
// what it runs, and carries an update through.
func (c *Checker) goesOn(s *State) error {
	ctx := context.Background()
	before, err := c.node(s)
	if err != nil {
		return err
	}
	if err := c.cutRepair(s); err != nil {
		return fmt.Errorf("the repair is cut: %w", err)
	}
	if err := unshare(s); err != nil {
		return err
	}
	n, err := c.node(s)
	if err != nil {
		return err
	}
	if !slices.Equal(linux(n), linux(before)) {
		c.Torn++
		if err := c.settles(n); err != nil {
			return fmt.Errorf("after the repair: %w", err)
		}
	}
	if _, err := n.Boot(ctx); err != nil {
		return fmt.Errorf("booting: %w", err)
	}
	st, err := n.Machine().Status(ctx)
	if err == nil {
		err = st.Problem
	}
	if err != nil {
		return fmt.Errorf("after booting %s of %q: %w", n.Evidence.Entry, linux(n), err)
	}
	if err := n.Confirm(ctx); err != nil {
		return err
	}
	next := slottest.NewImage("after the cut")
	if err := n.Install(ctx, st.Booted.Other(), next, st.NextGeneration); err != nil {
		return fmt.Errorf("updating after the cut: %w", err)
	}
	if _, err := n.Boot(ctx); err != nil {
		return err
	}
	if n.Evidence.RootHash != next.RootHash {
		return fmt.Errorf("the update after the cut was not started: %q", linux(n))
	}
	return n.Confirm(ctx)
}
