package imagediff

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"strings"
)

// WriteJSON writes the whole difference.
func (d *Diff) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", " ")
	e.SetEscapeHTML(false)
	return e.Encode(d)
}

// section is one list of a difference, ready to be written.
type section struct {
	title string
	lines []string
}

// sections are the lists that are not empty; of files, at most most (0: all).
func (d *Diff) sections(most int) []section {
	var all []section
	add := func(title string, lines []string) {
		if len(lines) > 0 {
			all = append(all, section{fmt.Sprintf("%s (%d)", title, len(lines)), lines})
		}
	}
	add("facts", lines(d.Facts))
	add("tools of the build host", lines(d.Tools))
	add("packages", lines(d.Packages))
	add("health checks", lines(d.Health))
	var modules, parts, files []string
	for _, m := range d.Modules {
		modules = append(modules, map[string]string{"added": "+ ", "removed": "- ", "changed": "! "}[m.Change]+m.Name)
	}
	for _, f := range d.Files {
		files = append(files, map[string]string{"added": "+ ", "removed": "- ", "changed": "! "}[f.Change]+f.String())
	}
	for _, p := range d.Parts {
		if p.Changed {
			parts = append(parts, fmt.Sprintf("! %s: %d → %d bytes (%+d)", p.Name, p.OldBytes, p.NewBytes, p.NewBytes-p.OldBytes))
		}
	}
	add("kernel configuration", cut(lines(d.Config), most))
	add("kernel modules", cut(modules, most))
	add("parts", parts)
	add("measurements", lines(d.Measurements))
	add("not compared", d.Unknown)
	add("files", files)
	if n := len(all); n > 0 && len(files) > 0 {
		all[n-1].lines = cut(files, most)
	}
	return all
}

// cut keeps the first lines of a long list.
func cut(lines []string, most int) []string {
	if most <= 0 || len(lines) <= most {
		return lines
	}
	return append(lines[:most:most], fmt.Sprintf("… and %d more; --all shows them", len(lines)-most))
}

func lines(cs []Change) []string {
	var ls []string
	for _, c := range cs {
		switch {
		case c.Old == "":
			ls = append(ls, "+ "+c.Name+" "+c.New)
		case c.New == "":
			ls = append(ls, "- "+c.Name+" "+c.Old)
		default:
			ls = append(ls, "! "+c.Name+" "+c.Old+" → "+c.New)
		}
	}
	return ls
}

// WriteText writes the difference for a terminal, at most most files and
// modules (0: all).
func (d *Diff) WriteText(w io.Writer, most int) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "- %s  %s\n+ %s  %s\n", d.Old.Label, d.Old.Digest, d.New.Label, d.New.Digest)
	if d.Same() {
		fmt.Fprintln(b, "the same image")
	}
	for _, s := range d.sections(most) {
		fmt.Fprintf(b, "\n%s\n", s.title)
		for _, l := range s.lines {
			fmt.Fprintf(b, "  %s\n", l)
		}
	}
	if d.First != "" {
		if d.Old.Lock == d.New.Lock {
			fmt.Fprintln(b, "\nboth are of one lock")
		}
		fmt.Fprintf(b, "\nfirst difference of the roots: %s\n", d.First)
	}
	return b.Flush()
}

// WriteMarkdown writes the difference for a pull request.
func (d *Diff) WriteMarkdown(w io.Writer, most int) error {
	b := bufio.NewWriter(w)
	fmt.Fprintf(b, "### %s → %s\n\n`%s` → `%s`\n", code(d.Old.Label), code(d.New.Label), d.Old.Digest, d.New.Digest)
	if d.Same() {
		fmt.Fprint(b, "\nThe same image.\n")
	}
	if d.First != "" {
		fmt.Fprintf(b, "\nFirst difference of the roots: `%s`\n", code(d.First))
	}
	for _, s := range d.sections(most) {
		fmt.Fprintf(b, "\n<details><summary>%s</summary>\n\n```diff\n", s.title)
		for _, l := range s.lines {
			fmt.Fprintln(b, code(l))
		}
		fmt.Fprint(b, "```\n\n</details>\n")
	}
	return b.Flush()
}

// code keeps a file name from ending the code it stands in.
func code(s string) string { return strings.NewReplacer("`", "'", "\n", " ").Replace(s) }
