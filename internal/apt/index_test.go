package apt

import (
	"strings"
	"testing"
)

// FuzzParseStanza: whatever an index says, reading it ends in an error or in a
// package with what a lock needs of it.
func FuzzParseStanza(f *testing.F) {
	for text := range strings.SplitSeq(world(), "\n\n") {
		f.Add(text)
	}
	f.Add("Package: a\nVersion: 1\nFilename: ../../x\nSize: -1\nSHA256: x\n")
	f.Add("Package: a\n: b\n\tx\nDepends: a (>= 1) | b (, c:any [amd64] <!x>\nConflicts: (= 1)\n")
	f.Fuzz(func(t *testing.T, text string) {
		s, err := parseStanza(text, "http://archive.example/debian")
		if err != nil {
			return
		}
		if s.name == "" || s.version == "" || len(s.sha256) != 64 || !strings.HasPrefix(s.uri, "http://archive.example/debian/") {
			t.Errorf("%q gives %+v", text, s)
		}
		for _, r := range s.relations(s.depends, s.preDepends, s.conflicts, s.breaks) {
			if r.name == "" {
				t.Errorf("%q has a relation without a name", text)
			}
			_ = r.admits(s.version)
			_ = r.String()
		}
		_ = s.needs()
		_ = closure([]string{s.name}, []*stanza{s})
	})
}
