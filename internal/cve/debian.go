package cve

import (
	"encoding/json"
	"fmt"
	"io"

	"github.com/turnout-project/turnout/internal/lock"
)

// trackerEntry is a vulnerability of a source package in Debian's tracker
// (security-tracker.debian.org/tracker/data/json).
type trackerEntry struct {
	Description string                     `json:"description"`
	Releases    map[string]*trackerRelease `json:"releases"`
}

type trackerRelease struct {
	Status       string `json:"status"` // "open", "resolved", "undetermined"
	FixedVersion string `json:"fixed_version"`
	Urgency      string `json:"urgency"`
}

// fromTracker reads a feed of Debian's tracker, which is large: entries of
// sources that the image lacks are skipped as they come.
func fromTracker(r io.Reader, have map[string][]*source, release string) ([]Finding, error) {
	d := json.NewDecoder(r)
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFeed, err)
	}
	var found []Finding
	known := false
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrFeed, err)
		}
		name, _ := key.(string)
		var entries map[string]trackerEntry
		if err := d.Decode(&entries); err != nil {
			return nil, fmt.Errorf("%w: source %q: %w", ErrFeed, name, err)
		}
		for id, e := range entries {
			r := e.Releases[release]
			if r == nil {
				continue
			}
			known = true
			for _, s := range have[name] {
				if f, affected := r.judge(s); affected {
					f.ID, f.Summary = id, e.Description
					found = append(found, f)
				}
			}
		}
	}
	if _, err := d.Token(); err != nil {
		return nil, fmt.Errorf("%w: it ends early: %w", ErrFeed, err)
	}
	if !known {
		return nil, fmt.Errorf("%w says nothing of release %q; name the image's with --release", ErrFeed, release)
	}
	return found, nil
}

// judge tells whether a source is affected in the release.
func (r *trackerRelease) judge(s *source) (Finding, bool) {
	f := Finding{Source: s.name, Version: s.version, Packages: s.packages, Urgency: r.Urgency}
	switch r.Status {
	case "resolved":
		// "0" means that the release was never affected.
		if r.FixedVersion == "" || r.FixedVersion == "0" || lock.CompareVersions(s.version, r.FixedVersion) >= 0 {
			return f, false
		}
		f.Status, f.Fixed = Fixable, r.FixedVersion
	default:
		f.Status, f.Undecided = Open, r.Status == "undetermined"
	}
	if r.Urgency == "unimportant" {
		f.Status = Ignored
	}
	return f, true
}
