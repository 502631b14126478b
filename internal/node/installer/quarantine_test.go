//go:build linux

package installer

import (
	"errors"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/abslot"
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
		{"failed under this wish", bad, empty, nil, fleet.Desired{Generation: 7}, true},
		{"failed, and was half written again", writing, empty, ban, fleet.Desired{Generation: 7}, true},
		{"failed under a generation of the node's own", bad, empty, nil, fleet.Desired{Generation: 3}, true},
		{"both bad", bad, abslot.SlotStatus{Slot: fleet.SlotB, State: fleet.SlotBad, Short: other, Generation: 9}, nil, fleet.Desired{Generation: 7}, true},
		{"a newer wish", bad, empty, ban, fleet.Desired{Generation: 8}, false},
		{"retried", bad, empty, ban, fleet.Desired{Generation: 8, Retry: true}, false},
		{"reinstalled by a server that lost its generations", bad, empty, ban, fleet.Desired{Generation: 2, Reinstall: true}, false},
		{"failed again after that retry", bad, empty, ban, fleet.Desired{Generation: 7, Retry: true}, true},
		{"failed again after that reinstallation", bad, empty, nil, fleet.Desired{Generation: 7, Reinstall: true}, true},
		{"a good slot to fall back to", bad, good, ban, fleet.Desired{Generation: 7}, false},
		{"another image failed", abslot.SlotStatus{Slot: fleet.SlotA, State: fleet.SlotBad, Short: other, Generation: 7}, empty, nil, fleet.Desired{Generation: 7}, false},
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
