package judge

import (
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/tpm/eventlog"
	"github.com/turnout-project/turnout/internal/tpm/measure"
)

// digests are those of events that are the same on every machine.
type digests struct {
	calling, returning string
	separators         [2]string           // of zeros, of ones
	phases             map[string][][]byte // of a phase's words, and of what is left of them after the first ones
}

// known holds the digests of each bank that can be judged, computed once.
var known = func() map[string]digests {
	out := map[string]digests{}
	for _, bank := range measure.Banks {
		hash := func(s string) string { return string(eventlog.Hash(bank, []byte(s))) }
		d := digests{
			calling: hash(measure.ActionCalling), returning: hash(measure.ActionReturning),
			separators: [2]string{hash("\x00\x00\x00\x00"), hash("\xff\xff\xff\xff")},
			phases:     map[string][][]byte{},
		}
		for _, phase := range measure.Phases {
			words := measure.Words(phase)
			var left [][]byte
			for i := len(words) - 1; i >= 0; i-- {
				left = slices.Insert(left, 0, eventlog.Hash(bank, []byte(words[i])))
				d.phases[strings.Join(words[i:], ":")] = slices.Clone(left)
			}
		}
		out[bank] = d
	}
	return out
}()

// isSeparator reports whether a digest is that of a separator.
func (d digests) isSeparator(digest []byte) bool {
	return string(digest) == d.separators[0] || string(digest) == d.separators[1]
}
