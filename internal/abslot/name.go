package abslot

import (
	"fmt"
	"strconv"
	"strings"
)

// Limits of the file name grammar.
const (
	ShortLen      = 12             // hex digits of the image digest, as manifest.ShortLen
	MaxGeneration = 999_999_999    // nine digits, so that every name fits four directory slots
	MaxTries      = 9              // trial boots that can be granted
	condemnedDone = 50             // "tries done" of a slot that the agent condemned; no granted trial reaches it
	maxCounter    = 9999           // what the parser accepts for either counter
	efiSuffix     = ".efi"         // the loader looks at nothing else
	stagedSuffix  = ".new"         // complete, not armed
	tempSuffix    = ".tmp"         // may be incomplete
	retiredSuffix = ".old"         // was bootable, to be removed
	LinuxDir      = "EFI/Linux"    // folder of UKIs that systemd-boot starts
	TurnoutDir    = "turnout"      // folder of manifest copies and the journal
	journalFile   = "journal.json" // in TurnoutDir
)

// Name is the name of a bootable UKI in LinuxDir:
//
//	g<generation, at least six digits>-<short digest>[+<left>[-<done>]].efi
//
// Counted false means no counter: the slot is confirmed. Done is zero when
// the name carries no "-<done>"; the loader writes both from its first count.
type Name struct {
	Generation uint64
	Short      string // ShortLen lower-case hex digits
	Counted    bool
	Left, Done int // trial boots; zero unless Counted
}

// ParseName reads the file name of a bootable UKI. Letter case counts: FAT
// keeps the case it was given, and an 8.3 remnant of an interrupted rename
// must not pass. ParseName(s) succeeds only if String gives s back.
func ParseName(s string) (Name, error) {
	n, err := parseName(s)
	if err == nil && n.String() != s {
		err = fmt.Errorf("not in canonical form %q", n.String())
	}
	if err != nil {
		return Name{}, fmt.Errorf("UKI file name %q: %w", s, err)
	}
	return n, nil
}

func parseName(s string) (Name, error) {
	body, ok := strings.CutSuffix(s, efiSuffix)
	if !ok {
		return Name{}, fmt.Errorf("want suffix %s", efiSuffix)
	}
	stem, counters, counted := strings.Cut(body, "+")
	gen, short, ok := strings.Cut(stem, "-")
	if !ok || !strings.HasPrefix(gen, "g") {
		return Name{}, fmt.Errorf("want g<generation>-<digest>")
	}
	n := Name{Short: short, Counted: counted}
	if err := CheckShort(short); err != nil {
		return Name{}, err
	}
	g, err := strconv.ParseUint(gen[1:], 10, 64)
	if err != nil || g == 0 || g > MaxGeneration {
		return Name{}, fmt.Errorf("generation %q: want 1 to %d", gen[1:], MaxGeneration)
	}
	n.Generation = g
	if !counted {
		return n, nil
	}
	left, done, hasDone := strings.Cut(counters, "-")
	if n.Left, err = parseCounter(left); err != nil {
		return Name{}, err
	}
	if hasDone {
		if n.Done, err = parseCounter(done); err != nil {
			return Name{}, err
		}
	}
	return n, nil
}

func parseCounter(s string) (int, error) {
	v, err := strconv.ParseUint(s, 10, 32)
	if err != nil || v > maxCounter {
		return 0, fmt.Errorf("counter %q: want 0 to %d", s, maxCounter)
	}
	return int(v), nil
}

// CheckShort accepts ShortLen lower-case hex digits.
func CheckShort(s string) error {
	if len(s) != ShortLen || strings.Trim(s, "0123456789abcdef") != "" {
		return fmt.Errorf("short digest %q: want %d lower-case hexadecimal digits", s, ShortLen)
	}
	return nil
}

// Stem returns the name without counter and suffix; at most one file per stem
// may exist.
func (n Name) Stem() string { return fmt.Sprintf("g%06d-%s", n.Generation, n.Short) }

// ID returns what systemd-boot calls the entry: the name without counter.
func (n Name) ID() string { return n.Stem() + efiSuffix }

// String returns the file name.
func (n Name) String() string {
	switch {
	case !n.Counted:
		return n.ID()
	case n.Done == 0:
		return fmt.Sprintf("%s+%d%s", n.Stem(), n.Left, efiSuffix)
	default:
		return fmt.Sprintf("%s+%d-%d%s", n.Stem(), n.Left, n.Done, efiSuffix)
	}
}

// counted returns the name after one more trial boot.
func (n Name) counted() Name {
	return Name{Generation: n.Generation, Short: n.Short, Counted: true, Left: n.Left - 1, Done: n.Done + 1}
}

// armed, confirmed and condemned return the name after that transition.
func (n Name) armed(generation uint64, tries int) Name {
	return Name{Generation: generation, Short: n.Short, Counted: true, Left: tries}
}

func (n Name) confirmed() Name { return Name{Generation: n.Generation, Short: n.Short} }

func (n Name) condemned() Name {
	return Name{Generation: n.Generation, Short: n.Short, Counted: true, Left: 0, Done: max(condemnedDone, n.Done)}
}

// isBootable reports whether a loader would look at the file: FAT is not
// case-sensitive, and neither is systemd-boot about the suffix.
func isBootable(file string) bool {
	return len(file) >= len(efiSuffix) && strings.EqualFold(file[len(file)-len(efiSuffix):], efiSuffix)
}
