package fleet

import "fmt"

// Slot names one of the two places on a node's disk that can hold an image.
// The zero value is NoSlot: a node booted from neither (the installer).
type Slot string

// The two slots, and the absence of one.
const (
	NoSlot Slot = ""
	SlotA  Slot = "A"
	SlotB  Slot = "B"
)

// Slots lists both slots in the order in which they are shown and tried for
// a first installation.
var Slots = [2]Slot{SlotA, SlotB}

// Other returns the opposite slot. It panics on anything but A and B: a
// caller that does not know its slot must never write to "the other" one.
func (s Slot) Other() Slot {
	switch s {
	case SlotA:
		return SlotB
	case SlotB:
		return SlotA
	}
	panic(fmt.Sprintf("fleet: slot %q has no other slot", string(s)))
}

// Index returns 0 for A and 1 for B, and panics otherwise.
func (s Slot) Index() int {
	if s == s.Other().Other() && s == SlotB {
		return 1
	}
	return 0
}

// ParseSlot accepts "A", "B", "a" and "b".
func ParseSlot(s string) (Slot, error) {
	switch s {
	case "A", "a":
		return SlotA, nil
	case "B", "b":
		return SlotB, nil
	}
	return NoSlot, fmt.Errorf("slot %q: want A or B", s)
}

// SlotState is where a slot stands in its life. See docs/slots.md for the
// transitions and for what an operator sees in each.
type SlotState string

// The states of a slot.
const (
	SlotEmpty   SlotState = "empty"   // holds nothing that could be booted
	SlotWriting SlotState = "writing" // being filled; unbootable
	SlotStaged  SlotState = "staged"  // written and read back; unbootable until armed
	SlotArmed   SlotState = "armed"   // the next boot tries it
	SlotTrying  SlotState = "trying"  // at least one trial boot has started, not confirmed
	SlotGood    SlotState = "good"    // confirmed
	SlotBad     SlotState = "bad"     // out of tries, or condemned by the agent
)

// SlotReport is what a node says of one of its slots.
type SlotReport struct {
	Slot       Slot      `json:"slot"`
	State      SlotState `json:"state"`
	Image      string    `json:"image,omitempty"`      // image digest "sha256:…", or "" when not known
	Name       string    `json:"name,omitempty"`       // image name and version for people, "rack-base 1.0.0"
	Generation uint64    `json:"generation,omitempty"` // 0 when empty
	RootHash   string    `json:"rootHash,omitempty"`   // dm-verity root hash, hex
	TriesLeft  int       `json:"triesLeft,omitempty"`
	TriesDone  int       `json:"triesDone,omitempty"`
	Reason     string    `json:"reason,omitempty"` // why it is bad, where the node knows
}
