//go:build linux

package installer

import (
	"errors"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/abslot/memesp"
	"github.com/turnout-project/turnout/internal/abslot/slottest"
	"github.com/turnout-project/turnout/internal/fleet"
)

func TestQuarantined(t *testing.T) {
	const failed, other = "aaaaaaaaaaaa", "bbbbbbbbbbbb"
	digest := "sha256:" + failed + strings.Repeat("0", 52)
	bad := abslot.SlotStatus{Slot: fleet.SlotA, State: fleet.SlotBad, Short: failed, Generation: 7, Reason: "tries used up"}
	empty := abslot.SlotStatus{Slot: fleet.SlotB, State: fleet.SlotEmpty}
	good := abslot.SlotStatus{Slot: fleet.SlotB, State: fleet.SlotGood, Short: other, Generation: 6}
	writing := abslot.SlotStatus{Slot: fleet.SlotA, State: fleet.SlotWriting}
	ban := []abslot.Ban{{Short: failed, Generation: 7, Reason: "tries used up"}}
	for _, tt := range []struct {
		name string
		a, b abslot.SlotStatus
		bans []abslot.Ban
		wish fleet.Desired
		want bool
	}{
		{"failed once under this wish", bad, empty, nil, fleet.Desired{Generation: 7}, false},
		{"failed once, and was half written again", writing, empty, ban, fleet.Desired{Generation: 7}, false},
		{"failed twice", bad, empty, nil, fleet.Desired{Generation: 6}, true},
		{"failed twice, and was half written again", writing, empty, ban, fleet.Desired{Generation: 6}, true},
		{"both bad", bad, abslot.SlotStatus{Slot: fleet.SlotB, State: fleet.SlotBad, Short: other, Generation: 9}, nil, fleet.Desired{Generation: 6}, true},
		{"a newer wish", bad, empty, ban, fleet.Desired{Generation: 8}, false},
		{"retried", bad, empty, ban, fleet.Desired{Generation: 8, Retry: true}, false},
		{"reinstalled by a server that lost its generations", bad, empty, ban, fleet.Desired{Generation: 2, Reinstall: true}, false},
		{"failed again after that retry", bad, empty, ban, fleet.Desired{Generation: 7, Retry: true}, true},
		{"failed again after that reinstallation", bad, empty, nil, fleet.Desired{Generation: 7, Reinstall: true}, true},
		{"a good slot to fall back to", bad, good, ban, fleet.Desired{Generation: 6}, false},
		{"another image failed", abslot.SlotStatus{Slot: fleet.SlotA, State: fleet.SlotBad, Short: other, Generation: 7}, empty, nil, fleet.Desired{Generation: 6}, false},
		{"cut installation", writing, empty, nil, fleet.Desired{Generation: 7}, false},
	} {
		tt.wish.Image = digest
		err := quarantined(abslot.Status{Slots: [2]abslot.SlotStatus{tt.a, tt.b}}, tt.bans, tt.wish)
		if errors.Is(err, errQuarantined) != tt.want || !tt.want && err != nil {
			t.Errorf("%s: %v, want a refusal: %v", tt.name, err, tt.want)
		}
		if err != nil && !strings.Contains(err.Error(), "slot A is ") {
			t.Errorf("%s: %q does not tell the state of the slots", tt.name, err)
		}
	}
}

// TestOnceMore: an image that fails every time is installed twice under one
// wish, also when the second installation is cut before it is armed.
func TestOnceMore(t *testing.T) {
	n := slottest.NewNode(&memesp.ESP{})
	im := slottest.NewImage("fails")
	wish := fleet.Desired{Image: "sha256:" + im.Short + strings.Repeat("0", 52), Generation: 3}
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	ctx := t.Context()
	judge := func() (uint64, error) {
		t.Helper()
		n.BootInstaller()
		st, err := n.Machine().Status(ctx)
		must(err)
		bans := n.Machine().Bans(ctx)
		return generation(st, bans, wish), quarantined(st, bans, wish)
	}
	for _, want := range []uint64{3, 4} {
		gen, err := judge()
		must(err)
		m := n.Machine()
		must(m.Begin(ctx, fleet.SlotA))
		again, err := judge() // the power was cut
		must(err)
		if gen != want || again != want {
			t.Fatalf("generation %d, after a cut %d, want %d", gen, again, want)
		}
		m = n.Machine()
		must(m.Begin(ctx, fleet.SlotA))
		n.Hashes[fleet.SlotA] = im.RootHash
		must(m.Stage(ctx, fleet.SlotA, im.Staged()))
		must(lift(ctx, m, im.Short))
		must(m.Arm(ctx, fleet.SlotA, gen, 1))
		_, err = n.Boot(ctx) // its only trial, which nobody confirms
		must(err)
	}
	if gen, err := judge(); !errors.Is(err, errQuarantined) {
		t.Errorf("a third installation, generation %d: %v, want it refused", gen, err)
	}
}
