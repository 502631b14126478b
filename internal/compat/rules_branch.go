package compat

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Notice is how long before the end of life of a branch people are warned.
const Notice = 90 * 24 * time.Hour

func (c *checker) branchKnown() {
	n := c.in.Driver.Branch
	if n == 0 {
		return
	}
	b, ok := c.t.Branch(n)
	switch {
	case !ok:
		c.add(Warning, c.driverField(), "", "give newer tables with --compat-data", "branch R%d is in no table: nothing is known of its support", n)
	case len(b.EOL) == 0 && b.Ended == "":
		c.add(Warning, c.driverField(), b.Source, "look for its dates and give them with --compat-data", "the end of life of R%d is not known", n)
	}
}

func (c *checker) branchEOL() {
	b, ok := c.t.Branch(c.in.Driver.Branch)
	if !ok {
		return
	}
	switch b.Ended {
	case "yes":
		c.add(Error, c.driverField(), b.Source, c.successor(), "R%d is past its end of life (its date was not printed)", b.Branch)
		return
	case "assumed":
		c.add(Warning, c.driverField(), b.Source, c.successor(), "R%d is older than every branch that NVIDIA lists, and taken for ended", b.Branch)
		return
	}
	if len(b.EOL) == 0 {
		return
	}
	e := b.EOL[len(b.EOL)-1]
	end, err := e.Time()
	if err != nil || c.in.Now.IsZero() {
		return // validated when the tables were read
	}
	text := fmt.Sprintf("end of life of R%d: %s, says edition %s", b.Branch, e.Date, e.Edition)
	if o := otherDates(b.EOL); o != "" {
		text += " (" + o + ")"
	}
	switch {
	case !c.in.Now.Before(end):
		c.add(Error, c.driverField(), e.Source, c.successor(), "%s; it is over", text)
	case !c.in.Now.Add(Notice).Before(end):
		c.add(Warning, c.driverField(), e.Source, c.successor(), "%s; that is in %d days", text, int(end.Sub(c.in.Now)/(24*time.Hour)))
	}
}

// otherDates says what earlier editions printed, if it was something else.
func otherDates(es []EOL) string {
	var out []string
	last := es[len(es)-1].Date
	for _, e := range es[:len(es)-1] {
		if e.Date != last {
			out = append(out, fmt.Sprintf("edition %s said %s", e.Edition, e.Date))
		}
	}
	return strings.Join(out, ", ")
}

// successor names branches to move to: those with a date ahead of us that
// still drive all boards.
func (c *checker) successor() string {
	var names []string
	for _, b := range c.t.Branches {
		if b.Branch <= c.in.Driver.Branch || len(b.EOL) == 0 || b.Type == "NFB" {
			continue
		}
		if end, err := b.EOL[len(b.EOL)-1].Time(); err != nil || !c.in.Now.Add(Notice).Before(end) {
			continue
		}
		fits := true
		c.archs(func(_ Board, a Architecture) { fits = fits && (a.LastBranch == 0 || b.Branch <= a.LastBranch) })
		if fits {
			names = append(names, fmt.Sprintf("R%d (%s, until %s)", b.Branch, b.Type, b.EOL[len(b.EOL)-1].Date))
		}
	}
	if len(names) == 0 {
		return "no listed branch drives these boards for longer; with a reason it can be accepted in driver.accept"
	}
	return "move to " + strings.Join(names, " or ") + "; or accept it in driver.accept, with the reason"
}

func (c *checker) branchType() {
	if b, ok := c.t.Branch(c.in.Driver.Branch); ok && b.Type == "NFB" {
		c.add(Warning, c.driverField(), b.Source, "take a production or long-term branch for a fleet", "R%d is a new feature branch: short-lived, without a promised end of life", b.Branch)
	}
}

func (c *checker) knownBad() {
	for _, r := range c.t.KnownBad {
		if c.matches(r) {
			c.add(r.Severity, c.driverField(), r.Source, r.Hint, "known not to work: %s%s: %s", c.in.Driver, c.circumstances(r), r.Text)
		}
	}
}

// circumstances says what else of a row matched.
func (c *checker) circumstances(r KnownBad) string {
	s := ""
	if len(r.Boards) > 0 {
		s += " on " + list(r.Boards)
	}
	if r.KernelFrom != "" || len(r.Kernels) > 0 {
		kernel := c.in.Kernel.Version
		if kernel == "" {
			kernel = c.in.Kernel.Release
		}
		s += " with Linux " + kernel
	}
	return s
}

func (c *checker) matches(r KnownBad) bool {
	d := c.in.Driver
	switch {
	case d.Branch == 0,
		r.Branch != 0 && r.Branch != d.Branch,
		r.Version != "" && r.Version != d.Version,
		r.From != "" && (d.Version == "" || Less(d.Version, r.From)),
		r.Before != "" && (d.Version == "" || !Less(d.Version, r.Before)),
		r.Flavour != "" && r.Flavour != d.Flavour,
		len(r.Boards) > 0 && !slices.ContainsFunc(r.Boards, func(b string) bool { return slices.Contains(c.in.Boards, b) }):
		return false
	}
	return c.kernelMatches(r)
}

func (c *checker) kernelMatches(r KnownBad) bool {
	if slices.ContainsFunc(r.Kernels, func(start string) bool { return strings.HasPrefix(c.in.Kernel.Release, start) }) {
		return true
	}
	if r.KernelFrom == "" && r.KernelBefore == "" {
		return len(r.Kernels) == 0
	}
	v := c.in.kernelVersion()
	return v != "" && (r.KernelFrom == "" || !Less(v, r.KernelFrom)) && (r.KernelBefore == "" || Less(v, r.KernelBefore))
}
