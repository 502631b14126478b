package abslot

import (
	"fmt"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Event is something that moves a slot from one state to another.
type Event string

// The events. EventLoad is the loader's, all others the agent's.
const (
	EventBegin   Event = "begin"   // its first byte is about to be written
	EventStage   Event = "stage"   // written, read back, UKI beside it
	EventArm     Event = "arm"     // the next boot shall try it
	EventCancel  Event = "cancel"  // not, after all
	EventLoad    Event = "load"    // the loader starts it and counts
	EventExhaust Event = "exhaust" // the loader passes it over: no tries left
	EventConfirm Event = "confirm" // healthy and attested
	EventCondemn Event = "condemn" // not to be started again
)

// next is the whole life of a slot. What is not in it is refused.
var next = map[fleet.SlotState]map[Event]fleet.SlotState{
	fleet.SlotEmpty:   {EventBegin: fleet.SlotWriting},
	fleet.SlotWriting: {EventBegin: fleet.SlotWriting, EventStage: fleet.SlotStaged},
	fleet.SlotStaged:  {EventBegin: fleet.SlotWriting, EventStage: fleet.SlotStaged, EventArm: fleet.SlotArmed},
	fleet.SlotArmed: {EventBegin: fleet.SlotWriting, EventLoad: fleet.SlotTrying, EventCondemn: fleet.SlotBad,
		EventCancel: fleet.SlotStaged}, // or back to good: what it was before
	fleet.SlotTrying: {EventBegin: fleet.SlotWriting, EventLoad: fleet.SlotTrying, EventExhaust: fleet.SlotBad,
		EventConfirm: fleet.SlotGood, EventCondemn: fleet.SlotBad},
	fleet.SlotGood: {EventBegin: fleet.SlotWriting, EventArm: fleet.SlotArmed, EventConfirm: fleet.SlotGood,
		EventCondemn: fleet.SlotBad, EventLoad: fleet.SlotGood},
	fleet.SlotBad: {EventBegin: fleet.SlotWriting, EventCondemn: fleet.SlotBad, EventLoad: fleet.SlotBad},
}

// Next returns the state that follows, or an error that wraps ErrState.
func Next(s fleet.SlotState, e Event) (fleet.SlotState, error) {
	if t, ok := next[s][e]; ok {
		return t, nil
	}
	return s, fmt.Errorf("%w: cannot %s a slot that is %s", ErrState, e, s)
}

// stateOf returns the state that a bootable name stands for, seen from
// outside: the booted slot on its last trial reads as bad here and is told
// apart by view.lastTrial.
func stateOf(n Name) fleet.SlotState {
	switch {
	case !n.Counted:
		return fleet.SlotGood
	case n.Left == 0:
		return fleet.SlotBad
	case n.Done == 0:
		return fleet.SlotArmed
	default:
		return fleet.SlotTrying
	}
}
