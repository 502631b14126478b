package memesp_test

import (
	"testing"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/abslot/memesp"
	"github.com/turnout-project/turnout/internal/abslot/slottest"
)

func TestESP(t *testing.T) {
	var last *memesp.ESP
	slottest.Run(t, func(_ *testing.T, reopen bool) abslot.ESP {
		if !reopen {
			last = &memesp.ESP{CapacityBytes: 16 << 20}
		}
		return last
	})
}
