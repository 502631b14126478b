//go:build linux

package boot

import (
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/node/slots"
)

// diskWait is how long the slot's disk may take to appear, and lateWait how
// long others may, once a Turnout disk is there that does not hold the slot.
const (
	diskWait = 60 * time.Second
	lateWait = 10 * time.Second
)

// errNoSlot is wrapped when the disk is there and neither slot has the root.
var errNoSlot = errors.New("no slot holds the root that this kernel was started for")

// candidate is a Turnout disk with what its slots claim to hold.
type candidate struct {
	disk *disk.Disk
	tops [2]string // root hashes in hex, "" for none
}

// place is a slot on a disk.
type place struct {
	disk *disk.Disk
	slot fleet.Slot
}

// choose finds the slot that holds rootHash. loaderPart is the GUID of the
// partition the loader came from, "" when it came over the network: it
// settles which disk is meant. Where it names none of the disks, all count.
func choose(cs []candidate, loaderPart, rootHash string) (place, error) {
	if len(cs) == 0 {
		return place{}, errors.New("no disk with a Turnout layout")
	}
	if own := ofLoader(cs, loaderPart); own != nil {
		cs = []candidate{*own}
	}
	var fit []place
	var seen []string
	for _, c := range cs {
		for _, s := range fleet.Slots {
			h := c.tops[s.Index()]
			seen = append(seen, fmt.Sprintf("%s slot %s: %s", c.disk.Path, s, orNothing(h)))
			if h == rootHash {
				fit = append(fit, place{c.disk, s})
				break // both slots of one disk: either will do, the agent reports it
			}
		}
	}
	switch len(fit) {
	case 0:
		return place{}, fmt.Errorf("%w: want root hash %s, found %s", errNoSlot, rootHash, strings.Join(seen, ", "))
	case 1:
		return fit[0], nil
	}
	return place{}, fmt.Errorf("root hash %s is on %s and on %s: take one of the disks out", rootHash, fit[0].disk.Path, fit[1].disk.Path)
}

// ofLoader returns the disk with the loader's partition, or nil.
func ofLoader(cs []candidate, guid string) *candidate {
	for i, c := range cs {
		for _, p := range c.disk.Partitions {
			if guid != "" && strings.EqualFold(p.GUID, guid) {
				return &cs[i]
			}
		}
	}
	return nil
}

func orNothing(h string) string {
	if h == "" {
		return "nothing"
	}
	return h
}

// findSlot waits for the disk of the slot. Where that is not found but it is
// clear which disk is meant, it returns that disk with an error that wraps
// errNoSlot.
func findSlot(ctx context.Context, loaderPart string, rootHash []byte) (place, error) {
	ctx, cancel := context.WithTimeout(ctx, diskWait)
	defer cancel()
	want := hex.EncodeToString(rootHash)
	var late <-chan time.Time
	for {
		cs, err := candidates(ctx)
		if err == nil {
			var p place
			if p, err = choose(cs, loaderPart, want); err == nil {
				return p, nil
			}
			if own := ofLoader(cs, loaderPart); own != nil && errors.Is(err, errNoSlot) {
				return place{disk: own.disk}, err
			}
			if late == nil && len(cs) > 0 {
				late = time.After(lateWait)
			}
		}
		select {
		case <-ctx.Done():
			return place{}, fmt.Errorf("after %s: %w", diskWait, err)
		case <-late:
			if len(cs) == 1 && errors.Is(err, errNoSlot) {
				return place{disk: cs[0].disk}, err
			}
			return place{}, err
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// candidates returns the Turnout disks whose partitions the kernel shows.
func candidates(ctx context.Context) ([]candidate, error) {
	disks, err := disk.Host{}.Find(ctx)
	if err != nil {
		return nil, err
	}
	var out []candidate
	for _, d := range disks {
		c := candidate{disk: d}
		dev, err := devicesOf(d)
		if err != nil {
			return nil, err
		}
		for i, v := range dev.Verities {
			if c.tops[i], err = slots.TreeHash(v); errors.Is(err, os.ErrNotExist) {
				return nil, fmt.Errorf("%s has not appeared", v)
			}
		}
		out = append(out, c)
	}
	return out, nil
}

// devicesOf returns the device nodes of a disk.
func devicesOf(d *disk.Disk) (slots.Devices, error) {
	var s slots.Devices
	var err error
	if s.ESP, err = d.PartitionPath(disk.LabelESP); err != nil {
		return s, err
	}
	for i, slot := range fleet.Slots {
		if s.Verities[i], err = d.PartitionPath(disk.VerityLabel(slot)); err != nil {
			return s, err
		}
	}
	return s, nil
}
