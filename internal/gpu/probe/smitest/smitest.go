// Package smitest answers in the place of nvidia-smi with what real GPUs
// answered. Only tests use it.
package smitest

import (
	"fmt"
	"os"
	"regexp"
	"strings"
)

// Capture is the answers of one machine, see New.
type Capture struct {
	sections map[string]string
	phase    string            // "idle" or "load"
	edits    map[string]string // fields that answer otherwise
}

// New reads a capture. Phase is "idle" or "load".
func New(path, phase string) (*Capture, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	c := &Capture{sections: map[string]string{}, phase: phase, edits: map[string]string{}}
	heads := regexp.MustCompile(`(?m)^#{80}\n# (\S+ :: .*)\n# \$ .*\n#{80}\n`)
	at := heads.FindAllStringSubmatchIndex(string(b), -1)
	for i, m := range at {
		end := len(b)
		if i+1 < len(at) {
			end = at[i+1][0]
		}
		c.sections[string(b[m[2]:m[3]])] = string(b[m[1]:end])
	}
	if len(c.sections) == 0 {
		return nil, fmt.Errorf("%s holds no answers", path)
	}
	return c, nil
}

// Edit lets a field of --query-gpu answer otherwise, or, as "q:KEY" or
// "q:HEAD/KEY", a line of -q.
func (c *Capture) Edit(field, value string) { c.edits[field] = value }

// query is the answer to -q.
func (c *Capture) query() string {
	text := c.section(c.phase + " :: query (-q)")
	for field, v := range c.edits {
		key, ok := strings.CutPrefix(field, "q:")
		if !ok {
			continue
		}
		at := 0
		if head, rest, ok := strings.Cut(key, "/"); ok {
			key, at = rest, max(strings.Index(text, "    "+head+"\n"), 0)
		}
		line := regexp.MustCompile(`(?m)^( +` + regexp.QuoteMeta(key) + ` +: ).*$`)
		if m := line.FindStringSubmatchIndex(text[at:]); m != nil {
			text = text[:at+m[3]] + v + text[at+m[1]:]
		}
	}
	return text
}

// section returns what was answered to a call whose head begins with name.
func (c *Capture) section(name string) string {
	for head, text := range c.sections {
		if strings.HasPrefix(head, name) {
			return text
		}
	}
	return ""
}

// Answer returns what nvidia-smi prints for arguments, and whether it fails.
func (c *Capture) Answer(args []string) (out string, ok bool) {
	all := strings.Join(args, " ")
	switch {
	case all == "-L":
		return strings.TrimRight(c.section("capabilities :: list"), "\n") + "\n", true
	case all == "-q":
		return c.query(), true
	case strings.HasPrefix(all, "--query-gpu="):
		fields, _, _ := strings.Cut(strings.TrimPrefix(args[0], "--query-gpu="), " ")
		return c.row(strings.Split(fields, ","))
	}
	return "Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.\n", false
}

var (
	unit    = regexp.MustCompile(` \[[^\]]*\]$`)
	measure = regexp.MustCompile(`^(-?[0-9.]+) (MHz|W|MiB|%|us)$`)
)

// row answers as with --format=csv,noheader,nounits.
func (c *Capture) row(fields []string) (string, bool) {
	lines := strings.Split(c.section(c.phase+" :: query-gpu"), "\n")
	if len(lines) < 2 {
		return "", false
	}
	names, values := strings.Split(lines[0], ", "), strings.Split(lines[1], ", ")
	known := map[string]string{}
	for i, n := range names {
		if i < len(values) {
			known[unit.ReplaceAllString(strings.TrimSpace(n), "")] = measure.ReplaceAllString(strings.TrimSpace(values[i]), "$1")
		}
	}
	var out []string
	for _, f := range fields {
		v, ok := known[map[string]string{"clocks.sm": "clocks.current.sm", "clocks.gr": "clocks.current.graphics"}[f]]
		if !ok {
			v, ok = known[f]
		}
		if e, is := c.edits[f]; is {
			v, ok = e, true
		}
		if !ok {
			return fmt.Sprintf("Field %q is not a valid field to query.\n", f), false
		}
		out = append(out, v)
	}
	return strings.Join(out, ", ") + "\n", true
}

// env says to a test program that it is nvidia-smi.
const env = "TURNOUT_TEST_SMI"

// Command returns a command that answers as the capture at path. The test
// program that calls it calls Main first of all. Edits are "field=value".
func Command(path, phase string, edits ...string) []string {
	return []string{"/usr/bin/env", env + "=" + strings.Join(append([]string{path, phase}, edits...), "\n"), os.Args[0]}
}

// Main answers and ends the program if it was called by Command.
func Main() {
	what := strings.Split(os.Getenv(env), "\n")
	if len(what) < 2 {
		return
	}
	c, err := New(what[0], what[1])
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	for _, e := range what[2:] {
		field, v, _ := strings.Cut(e, "=")
		c.Edit(field, v)
	}
	out, ok := c.Answer(os.Args[1:])
	fmt.Print(out)
	if !ok {
		os.Exit(2)
	}
	os.Exit(0)
}
