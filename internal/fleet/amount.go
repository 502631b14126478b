package fleet

import (
	"fmt"
	"strconv"
	"strings"
)

// ParseAmount reads "3" or "25%". A percentage is between 0 and 100.
func ParseAmount(s string) (Amount, error) {
	text, isPercent := strings.CutSuffix(strings.TrimSpace(s), "%")
	n, err := strconv.Atoi(text)
	if err != nil || n < 0 || isPercent && n > 100 {
		return Amount{}, fmt.Errorf("amount %q: want a number of nodes such as 3, or a percentage such as 25%%", s)
	}
	if isPercent {
		return Amount{Percent: n}, nil
	}
	return Amount{Nodes: n}, nil
}

// Of returns the amount as a number out of total, rounded down: never more
// than was asked for.
func (a Amount) Of(total int) int {
	if a.Percent > 0 {
		return total * a.Percent / 100
	}
	return a.Nodes
}

// AtLeastOne is Of, but never 0: what limits how many nodes move at once
// must not stop a rollout of few nodes for ever (1 % of 5 is 1).
func (a Amount) AtLeastOne(total int) int { return max(1, a.Of(total)) }

// String writes what ParseAmount reads.
func (a Amount) String() string {
	if a.Percent > 0 {
		return strconv.Itoa(a.Percent) + "%"
	}
	return strconv.Itoa(a.Nodes)
}

// MarshalText implements encoding.TextMarshaler.
func (a Amount) MarshalText() ([]byte, error) { return []byte(a.String()), nil }

// UnmarshalText implements encoding.TextUnmarshaler.
func (a *Amount) UnmarshalText(b []byte) (err error) {
	*a, err = ParseAmount(string(b))
	return err
}
