package node

import (
	"fmt"
	"slices"
	"testing"

	"github.com/turnout-project/turnout/internal/efivar"
	"github.com/turnout-project/turnout/internal/fleet"
)

// TestKeepEntry: a firmware that keeps dropping the boot entry is given it
// twice, over all boots; an unconfirmed slot touches no variable.
func TestKeepEntry(t *testing.T) {
	const there, missing = efivar.EntryThere, efivar.EntryMissing
	tests := []struct {
		name  string
		file  string
		boots []efivar.EntryState // as the firmware shows it at each
		err   error
		want  []bool // calls: is it a write?
	}{
		{"there", "g000001-aaaaaaaaaaaa.efi", []efivar.EntryState{there, there}, nil, []bool{false, false}},
		{"dropped once", "g000001-aaaaaaaaaaaa.efi", []efivar.EntryState{missing, there, missing, there}, nil, []bool{false, true, false, false, true, false}},
		{"dropped each time", "g000001-aaaaaaaaaaaa.efi", []efivar.EntryState{missing, missing, missing, missing}, nil, []bool{false, true, false, true, false, false}},
		{"no EFI variables", "g000001-aaaaaaaaaaaa.efi", []efivar.EntryState{""}, efivar.ErrNotExist, []bool{false}},
		{"unconfirmed", "g000001-aaaaaaaaaaaa+1-1.efi", []efivar.EntryState{missing}, nil, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r := newRig(t, fleet.SlotA, tt.file, "")
			var calls []bool
			state := efivar.EntryState("")
			r.cfg.BootEntry = func(write bool) (efivar.EntryState, uint16, error) {
				calls = append(calls, write)
				if tt.err != nil {
					return "", 0, fmt.Errorf("boot entries: %w", tt.err)
				}
				return state, 4, nil
			}
			for _, state = range tt.boots {
				a, err := New(r.cfg)
				if err != nil {
					t.Fatal(err)
				}
				a.keepEntry(t.Context())
			}
			if !slices.Equal(calls, tt.want) {
				t.Errorf("calls (is it a write?) %v, want %v\n%s", calls, tt.want, r.logged())
			}
		})
	}
}
