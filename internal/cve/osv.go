package cve

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/lock"
)

// osvEntry is a vulnerability in the OSV format (ossf.github.io/osv-schema).
type osvEntry struct {
	ID        string        `json:"id"`
	Aliases   []string      `json:"aliases"`
	Upstream  []string      `json:"upstream"`
	Summary   string        `json:"summary"`
	Withdrawn string        `json:"withdrawn"`
	Affected  []osvAffected `json:"affected"`
}

type osvAffected struct {
	Package  struct{ Ecosystem, Name string } `json:"package"`
	Ranges   []osvRange                       `json:"ranges"`
	Versions []string                         `json:"versions"`
	Specific struct {
		Urgency string `json:"urgency"`
	} `json:"ecosystem_specific"`
}

type osvRange struct {
	Type   string     `json:"type"`
	Events []osvEvent `json:"events"`
}

type osvEvent struct {
	Introduced   string `json:"introduced"`
	Fixed        string `json:"fixed"`
	LastAffected string `json:"last_affected"`
}

// parseOSV reads one vulnerability, a list of them, or {"vulns": [...]}.
func parseOSV(raw []byte) ([]osvEntry, error) {
	var all []osvEntry
	var err error
	switch {
	case strings.HasPrefix(strings.TrimSpace(string(raw[:min(len(raw), 64)])), "["):
		err = json.Unmarshal(raw, &all)
	default:
		var one struct {
			osvEntry
			Vulns []osvEntry `json:"vulns"`
		}
		if err = json.Unmarshal(raw, &one); err == nil {
			if all = one.Vulns; one.ID != "" {
				all = append(all, one.osvEntry)
			}
		}
	}
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFeed, err)
	}
	for _, e := range all {
		if e.ID == "" {
			return nil, fmt.Errorf("%w: an OSV entry has no id", ErrFeed)
		}
	}
	return all, nil
}

// fromOSV holds OSV entries against the sources of an image.
func fromOSV(entries []osvEntry, have map[string][]*source, release string) []Finding {
	ecosystems := []string{"Debian"}
	for number, name := range releases {
		if name == release {
			ecosystems = append(ecosystems, "Debian:"+number)
		}
	}
	found := map[string]Finding{} // by id, source and version: an entry may name a package more than once
	for _, e := range entries {
		if e.Withdrawn != "" {
			continue
		}
		for _, a := range e.Affected {
			if !slices.Contains(ecosystems, a.Package.Ecosystem) {
				continue
			}
			for _, s := range have[a.Package.Name] {
				if fixed, affected := a.judge(s.version); affected {
					f := Finding{ID: e.name(), Source: s.name, Version: s.version, Packages: s.packages, Summary: e.Summary,
						Urgency: a.Specific.Urgency, Fixed: fixed, Status: Open}
					if fixed != "" {
						f.Status = Fixable
					}
					if f.Urgency == "unimportant" {
						f.Status = Ignored
					}
					found[f.ID+" "+s.name+" "+s.version] = f
				}
			}
		}
	}
	return slices.Collect(maps.Values(found))
}

// name is the number that people look for: that of the CVE, if the entry has
// one.
func (e *osvEntry) name() string {
	for _, id := range slices.Concat([]string{e.ID}, e.Aliases, e.Upstream) {
		if strings.HasPrefix(id, "CVE-") {
			return id
		}
	}
	return e.ID
}

// judge tells whether a version is affected, and the first one that is not.
func (a *osvAffected) judge(version string) (fixed string, affected bool) {
	affected = slices.Contains(a.Versions, version)
	for _, r := range a.Ranges {
		if r.Type != "ECOSYSTEM" {
			continue
		}
		f, in := r.judge(version)
		if in {
			fixed, affected = f, true
		}
	}
	return fixed, affected
}

// judge follows the events of a range in the order of their versions.
func (r *osvRange) judge(version string) (fixed string, affected bool) {
	events := slices.Clone(r.Events)
	slices.SortStableFunc(events, func(x, y osvEvent) int { return compareEvent(x.at(), y.at()) })
	for _, e := range events {
		switch {
		case e.Introduced != "" && compareEvent(version, e.Introduced) >= 0:
			affected, fixed = true, ""
		case e.Fixed != "" && compareEvent(version, e.Fixed) >= 0:
			affected = false
		case e.Fixed != "" && affected && fixed == "":
			fixed = e.Fixed
		case e.LastAffected != "" && compareEvent(version, e.LastAffected) > 0:
			affected = false
		}
	}
	return fixed, affected
}

func (e osvEvent) at() string { return cmp.Or(e.Introduced, e.Fixed, e.LastAffected) }

// compareEvent compares versions; "0" comes before all of them.
func compareEvent(a, b string) int {
	if a == "0" || b == "0" {
		return cmp.Compare(len(strings.Trim(a, "0")), len(strings.Trim(b, "0")))
	}
	return lock.CompareVersions(a, b)
}
