// Package cve holds the packages of an image against what is known of their
// vulnerabilities: the JSON file of Debian's security tracker, or
// vulnerabilities in the OSV format. It fetches nothing; feeds are files.
package cve

import (
	"cmp"
	"errors"
	"regexp"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/lock"
)

// ErrFeed is wrapped by errors of a feed that cannot be read as either format.
var ErrFeed = errors.New("vulnerability feed")

// Finding is one vulnerability of one source package of an image.
type Finding struct {
	ID        string   `json:"id"` // "CVE-2024-1234"
	Source    string   `json:"source"`
	Version   string   `json:"version"`         // of the source, in the image
	Fixed     string   `json:"fixed,omitempty"` // first version without it; "" if there is none yet
	Urgency   string   `json:"urgency,omitempty"`
	Status    Status   `json:"status"`
	Packages  []string `json:"packages"` // of the image, built from the source
	Summary   string   `json:"summary,omitempty"`
	Undecided bool     `json:"undecided,omitempty"` // nobody has said yet whether the version is affected
}

// Status is what an operator can do about a finding.
type Status string

// What there is of Status.
const (
	Fixable Status = "fixable"     // a newer package is without it
	Open    Status = "open"        // there is no fix yet
	Ignored Status = "unimportant" // the distribution counts it as no risk
)

// source is a source package of the image.
type source struct {
	name, version string
	packages      []string
}

var (
	binaryRebuild = regexp.MustCompile(`\+b[0-9]+$`)
	signedLinux   = regexp.MustCompile(`^linux-signed-[a-z0-9]+$`)
)

// sources groups packages by their source, by name and version.
func sources(packages []lock.Package) map[string][]*source {
	all := map[string][]*source{}
	for _, p := range packages {
		name, version := cmp.Or(p.Source, p.Name), cmp.Or(p.SourceVersion, binaryRebuild.ReplaceAllString(p.Version, ""))
		if signedLinux.MatchString(name) {
			// Vulnerabilities are filed for linux, whose version the packages have.
			name, version = "linux", p.Version
		}
		i := slices.IndexFunc(all[name], func(s *source) bool { return s.version == version })
		if i < 0 {
			i = len(all[name])
			all[name] = append(all[name], &source{name: name, version: version})
		}
		all[name][i].packages = append(all[name][i].packages, p.Name)
	}
	return all
}

// releases are the versions of base-files by Debian's code names.
var releases = map[string]string{"11": "bullseye", "12": "bookworm", "13": "trixie", "14": "forky"}

// Release guesses Debian's code name from the packages of an image; "" if
// they do not tell.
func Release(packages []lock.Package) string {
	p, _ := lock.Find(packages, "base-files")
	major := strings.TrimRight(p.Version[:strings.IndexAny(p.Version+".", ".+")], "~")
	return releases[major]
}

// sortFindings orders findings by what they ask for: fixable ones first, then
// by urgency, then by name.
func sortFindings(fs []Finding) {
	rank := map[Status]int{Fixable: 0, Open: 1, Ignored: 2}
	slices.SortFunc(fs, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(rank[a.Status], rank[b.Status]), cmp.Compare(urgency(b.Urgency), urgency(a.Urgency)),
			cmp.Compare(a.Source, b.Source), cmp.Compare(a.ID, b.ID), cmp.Compare(a.Version, b.Version))
	})
}

// urgency ranks the words of Debian's tracker; one not assigned yet may turn
// out to be anything.
func urgency(word string) int {
	return map[string]int{"unimportant": -1, "low": 1, "medium": 2, "": 3, "not yet assigned": 3, "high": 4}[strings.TrimRight(word, "*")]
}
