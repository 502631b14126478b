// Package compat knows which drivers, kernels, CUDA toolkits, GPU firmware and
// boards work together. The knowledge is data: tables in data/, each row with
// the source it was read in, which a file of newer rows can replace without
// a new program. The rules over it are pure and named; they fetch nothing and
// look at no machine, and the time is given to them.
//
// A table can say what is known not to work. That a driver compiles for a
// kernel is proven by the build, not by a table.
package compat

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Severity is how bad a finding is.
type Severity string

// The severities. An Error stops a build.
const (
	Error   Severity = "error"
	Warning Severity = "warning"
	Info    Severity = "info"
)

// Finding is what a rule has to say.
type Finding struct {
	Rule     string   `json:"rule"`
	Severity Severity `json:"severity"`
	Field    string   `json:"field,omitempty"` // of the recipe, "driver.version"; "" if it is of none
	Message  string   `json:"message"`
	Hint     string   `json:"hint,omitempty"`     // what to do about it
	Source   string   `json:"source,omitempty"`   // where the fact was read
	Accepted string   `json:"accepted,omitempty"` // the reason for which the recipe accepts it
}

// Input is what is judged. What is unknown is left empty and judged by no
// rule that would need it.
type Input struct {
	Now          time.Time
	Architecture string // of the machine: "amd64", "arm64"
	Kernel       Kernel
	Driver       Driver
	Boards       []string // every kind of GPU a node may have
	Platform     string
	Count        int // GPUs per node; 0 is unknown
	CUDA         []string
	// Components are the packages of the image and of its build root.
	// Locked tells that they are all there are, with their versions.
	Components    []Component
	Locked        bool
	CDMM          string            // "on", "off", "" unset
	NVReg         map[string]string // options of the nvidia module
	ModulesLoad   []string          // kernel modules that the image loads at boot by name
	InitrdModules []string          // and that its initrd loads
	Kubernetes    bool
	VGPU          VGPU
}

// Kernel is the pinned kernel.
type Kernel struct {
	Release string // uname -r, or a pattern of it: "6.1.0-50-amd64", "6.1.0-*-amd64"
	Version string // of its sources, "6.1.176"; "" if no lock says it
}

// Driver is the pinned driver. Branch is 0 when the image has none.
type Driver struct {
	Flavour string // "open", "proprietary"
	Branch  int
	Version string // "535.261.03"; "" when only the branch is known
}

func (d Driver) String() string {
	if d.Version == "" {
		return fmt.Sprintf("%s driver R%d", d.Flavour, d.Branch)
	}
	return fmt.Sprintf("%s driver %s", d.Flavour, d.Version)
}

// Component is a package that has to do with GPUs.
type Component struct {
	Package string
	Version string // of NVIDIA, "535.261.03"; "" when only the name is known
	Full    string // of Debian, "535.261.03-1"
	Field   string // of the recipe that asks for it; "" for a dependency
	Build   bool   // in the build root only
}

// VGPU is which end of NVIDIA vGPU the image is.
type VGPU struct {
	Role  string // "host", "guest", "" neither
	Peers []string
}

// Check applies every rule and returns what they found, errors first.
func Check(t *Tables, in Input) []Finding {
	c := &checker{t: t, in: in}
	for _, b := range in.Boards {
		if row, ok := t.Board(b); ok {
			c.boards = append(c.boards, row)
		}
	}
	for _, r := range rules {
		c.rule = r.name
		r.run(c)
	}
	Sort(c.found)
	return c.found
}

// Sort puts errors before warnings before notes, and keeps the order else.
func Sort(fs []Finding) {
	weight := map[Severity]int{Error: 0, Warning: 1, Info: 2}
	slices.SortStableFunc(fs, func(a, b Finding) int { return cmp.Compare(weight[a.Severity], weight[b.Severity]) })
}

// checker is one run of Check.
type checker struct {
	t      *Tables
	in     Input
	boards []Board // those of in.Boards that the tables know
	rule   string
	found  []Finding
}

func (c *checker) add(s Severity, field, source, hint, format string, args ...any) {
	c.found = append(c.found, Finding{Rule: c.rule, Severity: s, Field: field, Source: source, Hint: hint, Message: fmt.Sprintf(format, args...)})
}

// driverField is where the recipe says what is wrong with the driver.
func (c *checker) driverField() string {
	if c.in.Driver.Version == "" {
		return "driver.branch"
	}
	return "driver.version"
}

// Failed tells whether an error is among fs.
func Failed(fs []Finding) bool {
	return slices.ContainsFunc(fs, func(f Finding) bool { return f.Severity == Error })
}

// Accept is a rule whose findings the recipe lives with, and why.
type Accept struct{ Rule, Reason string }

// ApplyAccepts turns accepted errors into warnings. Only rules of policy can
// be accepted: no reason makes a module of the wrong flavour load. An
// acceptance that can do nothing is an error itself.
func ApplyAccepts(fs []Finding, as []Accept) []Finding {
	out := slices.Clone(fs)
	for i, a := range as {
		field := fmt.Sprintf("driver.accept[%d].rule", i)
		r, known := Rule(a.Rule)
		switch {
		case !known:
			out = append(out, Finding{Rule: "accept", Severity: Error, Field: field, Message: fmt.Sprintf("there is no rule %q", a.Rule), Hint: "the rules of policy are " + strings.Join(policies(), ", ")})
			continue
		case !r.Policy:
			out = append(out, Finding{Rule: "accept", Severity: Error, Field: field, Message: fmt.Sprintf("rule %s cannot be accepted: what it finds does not work", a.Rule), Hint: "the rules of policy are " + strings.Join(policies(), ", ")})
			continue
		}
		used := false
		for j := range out {
			if f := &out[j]; f.Rule == a.Rule {
				used = true
				f.Accepted = a.Reason
				if f.Severity == Error {
					f.Severity = Warning
				}
			}
		}
		if !used {
			out = append(out, Finding{Rule: "accept", Severity: Info, Field: field, Message: fmt.Sprintf("rule %s finds nothing; the acceptance can go", a.Rule)})
		}
	}
	Sort(out)
	return out
}
