package cve

import (
	"archive/zip"
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/turnout-project/turnout/internal/lock"
)

// maxEntry bounds one file of a zip archive, in bytes.
const maxEntry = 16 << 20

// Check holds packages against the feed in a file: the JSON of Debian's
// security tracker, OSV as JSON (one entry, a list, or the answer of a query),
// or a zip archive of OSV files. release is Debian's code name.
func Check(feed string, packages []lock.Package, release string) ([]Finding, error) {
	f, err := os.Open(feed)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFeed, err)
	}
	defer func() { _ = f.Close() }() // read only
	found, err := check(f, sources(packages), release)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", feed, err)
	}
	sortFindings(found)
	return found, nil
}

func check(f *os.File, have map[string][]*source, release string) ([]Finding, error) {
	r := bufio.NewReaderSize(f, 1<<20)
	start, err := r.Peek(64 << 10)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: %w", ErrFeed, err)
	}
	switch {
	case bytes.HasPrefix(start, []byte("PK\x03\x04")):
		entries, err := readZip(f)
		if err != nil {
			return nil, err
		}
		return fromOSV(entries, have, release), nil
	case isOSV(start):
		raw, err := io.ReadAll(r)
		if err != nil {
			return nil, fmt.Errorf("%w: %w", ErrFeed, err)
		}
		entries, err := parseOSV(raw)
		if err != nil {
			return nil, err
		}
		return fromOSV(entries, have, release), nil
	case bytes.HasPrefix(bytes.TrimSpace(start), []byte("{")):
		return fromTracker(r, have, release)
	}
	return nil, fmt.Errorf("%w: neither the JSON of Debian's security tracker nor OSV", ErrFeed)
}

// isOSV looks at the start of a file: a list, or an object whose values are
// not all objects, as those of Debian's tracker are.
func isOSV(start []byte) bool {
	d := json.NewDecoder(bytes.NewReader(start))
	t, err := d.Token()
	if err != nil {
		return false
	}
	if t == json.Delim('[') {
		return true
	}
	if t != json.Delim('{') {
		return false
	}
	if _, err := d.Token(); err != nil { // the first key
		return false
	}
	value, err := d.Token()
	return err == nil && value != json.Delim('{')
}

// readZip reads the OSV files of an archive.
func readZip(f *os.File) ([]osvEntry, error) {
	st, err := f.Stat()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFeed, err)
	}
	z, err := zip.NewReader(f, st.Size())
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFeed, err)
	}
	var all []osvEntry
	for _, e := range z.File {
		if !strings.HasSuffix(e.Name, ".json") {
			continue
		}
		entries, err := readZipEntry(e)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", e.Name, err)
		}
		all = append(all, entries...)
	}
	if len(all) == 0 {
		return nil, fmt.Errorf("%w: the archive has no OSV entry", ErrFeed)
	}
	return all, nil
}

func readZipEntry(e *zip.File) ([]osvEntry, error) {
	r, err := e.Open()
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFeed, err)
	}
	raw, err := io.ReadAll(io.LimitReader(r, maxEntry))
	if err = errors.Join(err, r.Close()); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrFeed, err)
	}
	return parseOSV(raw)
}
