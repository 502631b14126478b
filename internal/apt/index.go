package apt

import (
	"fmt"
	"net/url"
	"os"
	"slices"
	"strconv"
	"strings"

	"github.com/turnout-project/turnout/internal/lock"
)

// stanza is one package of a Packages file.
type stanza struct {
	name, version, arch, source string
	essential                   bool
	uri                         string
	size                        int64
	sha256                      string
	depends, preDepends         string
	provides                    string
	conflicts, breaks           string
	text                        string // the whole stanza
}

func (s *stanza) locked(essential bool) lock.Package {
	source, version, _ := strings.Cut(s.source, " ") // "gcc-12 (12.2.0-14)" when the versions differ
	return lock.Package{Name: s.name, Version: s.version, Architecture: s.arch, Source: source, SourceVersion: strings.Trim(version, "()"),
		Essential: essential, URI: s.uri, SizeBytes: s.size, SHA256: s.sha256}
}

// needs returns what must be there before s can be configured: each item is
// a list of alternatives, by name.
func (s *stanza) needs() [][]string {
	var all [][]string
	for _, field := range []string{s.preDepends, s.depends} {
		for clause := range strings.SplitSeq(field, ",") {
			var alts []string
			for alt := range strings.SplitSeq(clause, "|") {
				if name := relationName(alt); name != "" {
					alts = append(alts, name)
				}
			}
			if len(alts) > 0 {
				all = append(all, alts)
			}
		}
	}
	return all
}

// relationName returns the name in "libc6:any (>= 2.36) [amd64]".
func relationName(relation string) string {
	relation = strings.TrimSpace(relation)
	if i := strings.IndexAny(relation, " (:["); i >= 0 {
		relation = relation[:i]
	}
	return relation
}

// index is all packages of the archives.
type index struct {
	stanzas   []*stanza
	byName    map[string][]*stanza // newest version first
	byURI     map[string]*stanza
	essential []string // names of essential packages
}

func readIndex(targets []target) (*index, error) {
	ix := &index{byName: map[string][]*stanza{}, byURI: map[string]*stanza{}}
	for _, t := range targets {
		b, err := os.ReadFile(t.packages)
		if err != nil {
			return nil, fmt.Errorf("index of %s %s: %w", t.uri, t.suite, err)
		}
		for text := range strings.SplitSeq(string(b), "\n\n") {
			if strings.TrimSpace(text) == "" {
				continue
			}
			s, err := parseStanza(text, t.uri)
			if err != nil {
				return nil, fmt.Errorf("index of %s %s: %w", t.uri, t.suite, err)
			}
			ix.add(s)
		}
	}
	for name, all := range ix.byName {
		slices.SortStableFunc(all, func(a, b *stanza) int { return lock.CompareVersions(b.version, a.version) })
		if all[0].essential {
			ix.essential = append(ix.essential, name)
		}
	}
	slices.Sort(ix.essential)
	return ix, nil
}

func (ix *index) add(s *stanza) {
	ix.stanzas = append(ix.stanzas, s)
	ix.byName[s.name] = append(ix.byName[s.name], s)
	ix.byURI[s.uri] = s
}

func parseStanza(text, archive string) (*stanza, error) {
	s := &stanza{text: text}
	var size, filename string
	fields := map[string]*string{"Package": &s.name, "Version": &s.version, "Architecture": &s.arch, "Source": &s.source,
		"Size": &size, "SHA256": &s.sha256, "Filename": &filename, "Depends": &s.depends, "Pre-Depends": &s.preDepends, "Provides": &s.provides,
		"Conflicts": &s.conflicts, "Breaks": &s.breaks}
	for line := range strings.SplitSeq(text, "\n") {
		name, value, ok := strings.Cut(line, ":")
		if !ok || line[0] == ' ' || line[0] == '\t' {
			continue
		}
		if f := fields[name]; f != nil {
			*f = strings.TrimSpace(value)
		} else if name == "Essential" {
			s.essential = strings.TrimSpace(value) == "yes"
		}
	}
	var err error
	if s.size, err = strconv.ParseInt(size, 10, 64); err != nil {
		return nil, fmt.Errorf("package %q: size %q", s.name, size)
	}
	if s.name == "" || s.version == "" || filename == "" || len(s.sha256) != 64 {
		return nil, fmt.Errorf("package %q %q lacks a name, version, file name or SHA-256", s.name, s.version)
	}
	s.uri = archive + "/" + filename
	return s, nil
}

// printed finds the packages in what apt prints with --print-uris, lines of
// 'uri' file-name size SHA256:hash.
func (ix *index) printed(out string) ([]*stanza, error) {
	var all []*stanza
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if len(f) != 4 || !strings.HasPrefix(f[0], "'") {
			return nil, fmt.Errorf("apt-get --print-uris: cannot read %q", strings.TrimSpace(line))
		}
		uri, err := url.PathUnescape(strings.Trim(f[0], "'"))
		if err != nil {
			return nil, fmt.Errorf("apt-get --print-uris: %w", err)
		}
		s := ix.byURI[uri]
		if s == nil {
			return nil, fmt.Errorf("apt-get --print-uris: %s is in no index", uri)
		}
		if f[3] != "SHA256:"+s.sha256 || f[2] != strconv.FormatInt(s.size, 10) {
			return nil, fmt.Errorf("apt-get --print-uris: %s is %s bytes %s, but the index says %d bytes %s", uri, f[2], f[3], s.size, s.sha256)
		}
		all = append(all, s)
	}
	return all, nil
}

// closure returns which of chosen are essential or needed, at any remove, to
// configure one that is.
func closure(essential []string, chosen []*stanza) map[string]bool {
	providers := map[string][]*stanza{}
	for _, s := range chosen {
		providers[s.name] = append(providers[s.name], s)
		for p := range strings.SplitSeq(s.provides, ",") {
			if name := relationName(p); name != "" {
				providers[name] = append(providers[name], s)
			}
		}
	}
	in := map[string]bool{}
	var visit func(name string)
	visit = func(name string) {
		for _, s := range providers[name] {
			if in[s.name] {
				continue
			}
			in[s.name] = true
			for _, alts := range s.needs() {
				for _, alt := range alts {
					visit(alt)
				}
			}
		}
	}
	for _, name := range essential {
		visit(name)
	}
	return in
}
