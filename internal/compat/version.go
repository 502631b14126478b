package compat

import (
	"cmp"
	"fmt"
	"strconv"
	"strings"
)

// Version is a version of NVIDIA's driver or of Linux, field by field:
// 535.261.03 is {535, 261, 3}. Inside a branch the order of versions is not
// the order of their dates.
type Version []int

// ParseVersion reads digits with dots between them.
func ParseVersion(s string) (Version, error) {
	var v Version
	for f := range strings.SplitSeq(s, ".") {
		n, err := strconv.ParseUint(f, 10, 31)
		if err != nil {
			return nil, fmt.Errorf("version %q: %q is not a number", s, f)
		}
		v = append(v, int(n))
	}
	return v, nil
}

// Compare returns -1, 0 or 1. Fields that one of them lacks count as 0.
func (v Version) Compare(w Version) int {
	for i := range max(len(v), len(w)) {
		if c := cmp.Compare(v.field(i), w.field(i)); c != 0 {
			return c
		}
	}
	return 0
}

func (v Version) field(i int) int {
	if i < len(v) {
		return v[i]
	}
	return 0
}

// Less tells whether version a is older than b. What cannot be read is older
// than nothing.
func Less(a, b string) bool {
	x, errA := ParseVersion(a)
	y, errB := ParseVersion(b)
	return errA == nil && errB == nil && x.Compare(y) < 0
}

// BranchOf returns the first field of a driver's version, 0 if it has none.
func BranchOf(version string) int {
	first, _, _ := strings.Cut(version, ".")
	n, err := strconv.Atoi(first)
	if err != nil {
		return 0
	}
	return n
}

// atLeast tells whether d is min or later; with only a branch known, whether
// the newest of it could be. Hence a branch alone is refused only when all of
// it is too old.
func (d Driver) atLeast(min string) bool {
	if d.Version != "" {
		return !Less(d.Version, min)
	}
	return d.Branch >= BranchOf(min)
}
