package apt

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/recipe"
)

// update fetches and verifies the indexes.
func (a *root) update(ctx context.Context, r *recipe.Recipe) error {
	_, err := a.run(ctx, "apt-get", "-q", "update")
	var ce *commandError
	if !errors.As(err, &ce) {
		return err
	}
	return explainUpdate(r, ce)
}

// explainUpdate says what an operator can do about apt's words.
func explainUpdate(r *recipe.Recipe, ce *commandError) error {
	lines := complaints(ce.output)
	text := lines[0]
	i := sourceOf(r, text)
	field := fmt.Sprintf("base.sources[%d]", i)
	switch all := strings.Join(strings.Fields(ce.output), " "); {
	case strings.Contains(all, "is expired"):
		for _, l := range lines {
			if strings.Contains(l, "expired") {
				text = l
			}
		}
		return fmt.Errorf("the archive is out of date: %s; ask another mirror, check the clock, or name a snapshot, whose address has its time in it (/20260901T000000Z/)", text)
	case strings.Contains(all, "is not valid yet"):
		return fmt.Errorf("the archive is from the future: %s; check the clock of this host", text)
	case strings.Contains(all, "NO_PUBKEY"), strings.Contains(all, "is not signed"), strings.Contains(all, "BADSIG"), strings.Contains(all, "signatures were invalid"), strings.Contains(all, "signatures couldn't be verified"):
		return fmt.Errorf("the archive's signature does not hold with keyring %s: %s", r.Base.Keyring, text)
	case strings.Contains(all, "does not have a Release file") && strings.Contains(all, "404"):
		return r.Errorf(field+".suites", "", "archive %s: %s", r.Base.Sources[i].URI, text)
	}
	more := ""
	if n := len(lines) - 2; n > 0 { // the last only says that there were others
		more = fmt.Sprintf(" (and %d more)", n)
	}
	return fmt.Errorf("the indexes of the archives could not be fetched: %s%s", text, more)
}

// sourceOf returns which source of r a line of apt's is about.
func sourceOf(r *recipe.Recipe, text string) int {
	best := 0
	for i, s := range r.Base.Sources {
		uri := strings.TrimSuffix(s.URI, "/")
		if strings.Contains(text, uri+"/") || strings.Contains(text, uri+" ") {
			best = i
		}
	}
	return best
}

// target is one Packages file that apt has verified.
type target struct {
	uri      string // of the archive, without a "/" at the end
	suite    string
	packages string // path of the Packages file
	release  string // path of the InRelease file that vouches for it
}

// targets lists what update brought, and refuses a component that is not there.
func (a *root) targets(ctx context.Context, r *recipe.Recipe) ([]target, error) {
	out, err := a.run(ctx, "apt-get", "indextargets", "--format", "$(REPO_URI)\t$(RELEASE)\t$(COMPONENT)\t$(METAKEY)\t$(FILENAME)", "Created-By: Packages")
	if err != nil {
		return nil, err
	}
	found := map[[3]string]target{}
	for line := range strings.Lines(out) {
		f := strings.Split(strings.TrimSuffix(line, "\n"), "\t")
		if len(f) != 5 {
			return nil, fmt.Errorf("apt-get indextargets: cannot read %q", line)
		}
		t := target{uri: strings.TrimSuffix(f[0], "/"), suite: f[1], packages: f[4]}
		base, ok := strings.CutSuffix(f[4], "_"+strings.ReplaceAll(f[3], "/", "_"))
		if !ok {
			return nil, fmt.Errorf("apt-get indextargets: %s does not end in %s", f[4], f[3])
		}
		t.release = base + "_InRelease"
		found[[3]string{t.uri, t.suite, f[2]}] = t
	}
	var all []target
	for i, s := range r.Base.Sources {
		for _, suite := range s.Suites {
			for j, c := range s.Components {
				t, ok := found[[3]string{strings.TrimSuffix(s.URI, "/"), suite, c}]
				if !ok {
					return nil, r.Errorf(fmt.Sprintf("base.sources[%d].components[%d]", i, j), "",
						"suite %s of %s has no component %s for %s", suite, s.URI, c, r.Architecture)
				}
				all = append(all, t)
			}
		}
	}
	return all, nil
}

// describeIndexes fills in Indexes and SourceDateEpoch of f.
func describeIndexes(ctx context.Context, f *lock.File, targets []target, keyring string) error {
	seen := map[string]bool{}
	for _, t := range targets {
		if seen[t.release] {
			continue
		}
		seen[t.release] = true
		b, err := os.ReadFile(t.release)
		if err != nil {
			return fmt.Errorf("archive %s %s has no InRelease file: %w", t.uri, t.suite, err)
		}
		key, err := signers(ctx, t.release, keyring)
		if err != nil {
			return fmt.Errorf("archive %s %s: %w", t.uri, t.suite, err)
		}
		sum := sha256.Sum256(b)
		x := lock.Index{URI: t.uri, Suite: t.suite, Date: releaseField(b, "Date"), SHA256: hex.EncodeToString(sum[:]), Key: key}
		date, err := x.Time()
		if err != nil {
			return fmt.Errorf("archive %s %s: %w", t.uri, t.suite, err)
		}
		f.Indexes = append(f.Indexes, x)
		f.SourceDateEpoch = max(f.SourceDateEpoch, date.Unix())
	}
	return nil
}

// releaseField returns a one-line field of a Release file.
func releaseField(b []byte, name string) string {
	for line := range bytes.Lines(b) {
		if v, ok := bytes.CutPrefix(line, []byte(name+":")); ok {
			return string(bytes.TrimSpace(v))
		}
	}
	return ""
}

// signers returns the fingerprints of the keys of keyring that signed the
// file: apt has verified it, but does not tell by whom.
func signers(ctx context.Context, path, keyring string) (string, error) {
	binary, cleanup, err := binaryKeyring(keyring)
	if err != nil {
		return "", err
	}
	defer cleanup()
	cmd := exec.CommandContext(ctx, "gpgv", "--quiet", "--status-fd", "1", "--output", "/dev/null", "--keyring", binary, path)
	out, _ := cmd.Output() // a signature by a key outside the keyring makes it fail; what counts is VALIDSIG
	var keys []string
	for line := range strings.Lines(string(out)) {
		// [GNUPG:] VALIDSIG <key> <date> <time> <expires> <version> <reserved> <algorithm> <hash> <class> <primary key>
		if f := strings.Fields(line); len(f) >= 12 && f[1] == "VALIDSIG" && !slices.Contains(keys, f[11]) {
			keys = append(keys, f[11])
		}
	}
	if len(keys) == 0 {
		return "", fmt.Errorf("gpgv finds no valid signature by a key of %s", keyring)
	}
	slices.Sort(keys)
	return strings.Join(keys, ","), nil
}
