package abslot_test

import (
	"testing"

	"github.com/turnout-project/turnout/internal/abslot"
)

func TestParseName(t *testing.T) {
	const d = "0123456789ab"
	good := map[string]abslot.Name{
		"g000001-" + d + ".efi":            {Generation: 1, Short: d},
		"g000007-" + d + "+3.efi":          {Generation: 7, Short: d, Counted: true, Left: 3},
		"g000007-" + d + "+2-1.efi":        {Generation: 7, Short: d, Counted: true, Left: 2, Done: 1},
		"g000007-" + d + "+0-3.efi":        {Generation: 7, Short: d, Counted: true, Done: 3},
		"g000007-" + d + "+0.efi":          {Generation: 7, Short: d, Counted: true},
		"g123456789-" + d + "+0-50.efi":    {Generation: 123456789, Short: d, Counted: true, Done: 50},
		"g1000000-" + d + "+9999-9999.efi": {Generation: 1000000, Short: d, Counted: true, Left: 9999, Done: 9999},
	}
	for s, want := range good {
		got, err := abslot.ParseName(s)
		if err != nil || got != want || got.String() != s {
			t.Errorf("ParseName(%q) = %+v, %v; want %+v", s, got, err, want)
		}
	}
	for _, s := range []string{
		"", ".efi", "x.efi", "G00000~1.EFI", "g000001-" + d, "g000001-" + d + ".EFI", "g000001-" + d + ".new",
		"g1-" + d + ".efi", "g0000001-" + d + ".efi", "g000000-" + d + ".efi", "g1000000000-" + d + ".efi", "g-1-" + d + ".efi",
		"g000001-0123456789AB.efi", "g000001-0123456789a.efi", "g000001-0123456789abc.efi", "g000001-" + d + "+.efi",
		"g000001-" + d + "+3-.efi", "g000001-" + d + "+3-0.efi", "g000001-" + d + "+03.efi", "g000001-" + d + "+3+2.efi",
		"g000001-" + d + "+-1.efi", "g000001-" + d + "+10000.efi", "g000001-" + d + "+1-10000.efi", " g000001-" + d + ".efi",
		"g+00001-" + d + ".efi", "g000001-" + d + "+1-+1.efi",
	} {
		if got, err := abslot.ParseName(s); err == nil {
			t.Errorf("ParseName(%q) = %+v; want an error", s, got)
		}
	}
}

func FuzzParseName(f *testing.F) {
	for _, s := range []string{"g000007-0123456789ab+2-1.efi", "g1000000-0123456789ab.efi", "G00000~1.EFI"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		n, err := abslot.ParseName(s)
		if err != nil {
			if n != (abslot.Name{}) {
				t.Errorf("ParseName(%q) = %+v with error %v", s, n, err)
			}
			return
		}
		if n.String() != s {
			t.Errorf("ParseName(%q).String() = %q", s, n.String())
		}
	})
}

// Keep is a strict order on all names that can meet.
func TestKeep(t *testing.T) {
	const a = "aaaaaaaaaaaa"
	order := []string{ // best first
		"g000004-" + a + ".old", a + ".new",
		"g000004-" + a + "+0-50.efi",
		"g000006-" + a + "+2.efi", "g000004-" + a + ".efi", "g000004-" + a + "+0-2.efi", "g000004-" + a + "+1-1.efi", "g000004-" + a + "+2.efi",
		"journal.json", "G00000~1.EFI", a + ".tmp",
	}
	for i, x := range order {
		for j, y := range order {
			if got := abslot.Keep(x, y); got != (i < j) {
				t.Errorf("Keep(%q, %q) = %v; want %v", x, y, got, i < j)
			}
		}
	}
}
