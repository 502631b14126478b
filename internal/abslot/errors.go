package abslot

import (
	"errors"
	"fmt"
)

// Refusals. Every error of a Machine that refuses a transition wraps exactly
// one of these; nothing was changed when one is returned. None is cured by
// repeating the same call, except ErrBusy.
var (
	ErrBusy        = errors.New("another slot operation is running")
	ErrEvidence    = errors.New("evidence of the booted slot disagrees")
	ErrBooted      = errors.New("slot is the booted one")
	ErrUnconfirmed = errors.New("booted slot is not confirmed")
	ErrNotGood     = errors.New("slot is not good")
	ErrLastGood    = errors.New("no other good slot would remain")
	ErrState       = errors.New("slot is in the wrong state")
	ErrStale       = errors.New("request is out of date")
	ErrBanned      = errors.New("image failed on this node before")
	ErrSameImage   = errors.New("image is already in the other slot")
	ErrMismatch    = errors.New("slot does not hold the image")
	ErrUncounted   = errors.New("loader did not count this boot")
	ErrTorn        = errors.New("two file names share one UKI after an interrupted rename")
	ErrReadOnly    = errors.New("ESP is not writable")
	ErrNoSpace     = errors.New("ESP is full")
	ErrNotExist    = errors.New("no such file on the ESP")
	ErrExist       = errors.New("file name is taken on the ESP")
	ErrVerify      = errors.New("ESP does not show what was written")
)

// SpaceError says how much room a file needs and how much there is. It wraps
// ErrNoSpace.
type SpaceError struct {
	Where     string // mount point or image
	File      string
	NeedBytes int64
	FreeBytes int64
}

func (e *SpaceError) Error() string {
	return fmt.Sprintf("%s: no room for %s: need %d bytes, %d free; remove strange files from it, or reinstall with a larger ESP",
		e.Where, e.File, e.NeedBytes, e.FreeBytes)
}

// Unwrap makes errors.Is(err, ErrNoSpace) true.
func (e *SpaceError) Unwrap() error { return ErrNoSpace }
