package uki

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strings"
)

// ErrNoSection is wrapped by errors about a section that is not there.
var ErrNoSection = errors.New("no such section")

// maxText bounds the sections that are read as text.
const maxText = 64 << 10

// Sections lists the section table of a PE file in file order, reading only
// its headers.
func Sections(r io.ReaderAt) ([]SectionInfo, error) {
	h, err := readHeader(r)
	if err != nil {
		return nil, err
	}
	return h.sections, nil
}

// ReadSection returns the contents of the named section as they lie in memory:
// VirtualSize bytes, zero-filled where the file holds fewer. Sections of more
// than limit bytes are an error.
func ReadSection(r io.ReaderAt, name string, limit int64) ([]byte, error) {
	ss, err := Sections(r)
	if err != nil {
		return nil, err
	}
	for _, s := range ss {
		if s.Name != name {
			continue
		}
		if int64(s.VirtualSize) > limit {
			return nil, fmt.Errorf("section %s has %d bytes, at most %d are read", name, s.VirtualSize, limit)
		}
		b := make([]byte, s.VirtualSize)
		stored := b[:min(s.VirtualSize, s.Size)]
		if n, err := r.ReadAt(stored, int64(s.Offset)); n < len(stored) {
			return nil, fmt.Errorf("reading section %s: %w", name, err)
		}
		return b, nil
	}
	return nil, fmt.Errorf("%w: %s", ErrNoSection, name)
}

// Cmdline returns the kernel command line of a UKI without trailing white
// space, reading only headers and that section.
func Cmdline(r io.ReaderAt) (string, error) {
	b, err := ReadSection(r, ".cmdline", maxText)
	if err != nil {
		return "", err
	}
	return strings.TrimRight(string(b), "\x00\n\r\t "), nil
}

// StubVersion returns the version that systemd's stub and loader carry in
// ".sdmagic", such as "252.39-1~deb12u2".
func StubVersion(r io.ReaderAt) (string, error) {
	b, err := ReadSection(r, ".sdmagic", maxText)
	if err != nil {
		return "", err
	}
	// "#### LoaderInfo: systemd-stub 252.39-1~deb12u2 ####"
	f := strings.Fields(string(bytes.TrimRight(b, "\x00")))
	if len(f) != 5 || f[1] != "LoaderInfo:" || !strings.HasPrefix(f[2], "systemd-") {
		return "", fmt.Errorf("section .sdmagic says %q, want the name and version of systemd-stub or systemd-boot", b)
	}
	return f[3], nil
}
