package apt

import (
	"fmt"
	"strings"

	"github.com/turnout-project/turnout/internal/lock"
)

// explain notes the reason for each package that came, went or moved, unless
// it is known.
func (m *mover) explain(before, after map[string]*stanza, loaded []*stanza) {
	for name, s := range after {
		if o := before[name]; (o == nil || o.sha256 != s.sha256) && m.why[name] == "" {
			m.why[name] = m.because(name, before, loaded)
		}
	}
	for name := range before {
		if after[name] == nil && m.why[name] == "" {
			m.why[name] = m.because(name, nil, loaded)
		}
	}
}

// because says which of the loaded packages needs name, or does not go with
// it. before is what was installed; nil when name is removed.
func (m *mover) because(name string, before map[string]*stanza, loaded []*stanza) string {
	fallback := ""
	for _, s := range loaded {
		if s.name == name {
			continue
		}
		for _, rel := range s.relations(s.conflicts, s.breaks) {
			if rel.name == name && (before == nil || before[name] != nil && rel.admits(before[name].version)) {
				return fmt.Sprintf("%s %s does not go with %s", s.name, s.version, rel)
			}
		}
		if before == nil {
			continue
		}
		for _, rel := range s.relations(s.depends, s.preDepends) {
			switch {
			case rel.name != name && !providedBy(m.ix.byName[name], rel.name):
			case before[name] == nil || rel.name == name && !rel.admits(before[name].version):
				return fmt.Sprintf("%s %s needs %s", s.name, s.version, rel)
			case fallback == "":
				fallback = fmt.Sprintf("%s %s needs %s", s.name, s.version, rel)
			}
		}
	}
	switch {
	case fallback != "":
		return fallback
	case before == nil:
		return "nothing needs it any longer"
	}
	return "forced by dependencies"
}

func providedBy(ss []*stanza, name string) bool {
	for _, s := range ss {
		for p := range strings.SplitSeq(s.provides, ",") {
			if relationName(p) == name {
				return true
			}
		}
	}
	return false
}

// relation is one alternative of a dependency (Debian policy 7.1).
type relation struct{ name, op, version string }

func (r relation) String() string {
	if r.op == "" {
		return r.name
	}
	return fmt.Sprintf("%s (%s %s)", r.name, r.op, r.version)
}

// admits tells whether version is one that the relation names.
func (r relation) admits(version string) bool {
	c := lock.CompareVersions(version, r.version)
	switch r.op {
	case "=":
		return c == 0
	case "<<":
		return c < 0
	case "<=", "<":
		return c <= 0
	case ">=", ">":
		return c >= 0
	case ">>":
		return c > 0
	}
	return true
}

// relations parses fields such as Depends; alternatives are told apart no more
// than clauses.
func (s *stanza) relations(fields ...string) []relation {
	var all []relation
	for _, field := range fields {
		for alt := range strings.FieldsFuncSeq(field, func(c rune) bool { return c == ',' || c == '|' }) {
			r := relation{name: relationName(alt)}
			if r.name == "" {
				continue
			}
			if _, rest, ok := strings.Cut(alt, "("); ok {
				rest, _, _ = strings.Cut(rest, ")")
				rest = strings.TrimSpace(rest)
				n := strings.IndexFunc(rest, func(c rune) bool { return !strings.ContainsRune("<>=", c) })
				if n > 0 {
					r.op, r.version = rest[:n], strings.TrimSpace(rest[n:])
				}
			}
			all = append(all, r)
		}
	}
	return all
}
