package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/compat"
	"github.com/turnout-project/turnout/internal/egress"
	"github.com/turnout-project/turnout/internal/gpu"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/recipe"
)

type checkOptions struct {
	lock   string
	data   []string
	date   string
	output string
}

func newCheckCommand() *cobra.Command {
	var o checkOptions
	cmd := &cobra.Command{
		Use:   "check RECIPE",
		Short: "Say whether driver, kernel, CUDA, firmware and GPUs of a recipe fit together",
		Long: `Holds a recipe against what is known of GPU drivers: branches and their end of
life, architectures, boards, CUDA toolkits, MIG profiles, and combinations that
do not work; docs/compat.md explains every rule. Nothing is fetched.

Errors stop a build, warnings do not. Without --lock it takes the lock beside the
recipe if there is one; with a lock it knows the version of every package.
` + exitCodes,
		Example: `  imgbuild check recipes/nvidia-535-open.yaml
  imgbuild check recipes/mig-h100.yaml -o json
  imgbuild check recipes/hgx.yaml --date 2028-04-01     # how will it look then?`,
		Args: cli.OneArg("a recipe"),
		RunE: func(cmd *cobra.Command, args []string) error { return runCheck(cmd, o, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.lock, "lock", "", "lock file (default: the recipe's path with .lock.json, if it exists)")
	f.StringVar(&o.date, "date", "", "day to judge on, such as 2027-04-01 (default: today)")
	f.StringVarP(&o.output, "output", "o", "table", "table or json")
	addDataFlag(cmd, &o.data)
	return cmd
}

func addDataFlag(cmd *cobra.Command, data *[]string) {
	cmd.Flags().StringArrayVar(data, "compat-data", nil, "file with newer rows of the compatibility tables; may be given again")
}

func runCheck(cmd *cobra.Command, o checkOptions, path string) error {
	if o.output != "table" && o.output != "json" {
		return cli.Usagef(cmd, "--output %q: want table or json", o.output)
	}
	now := time.Now()
	if o.date != "" {
		var err error
		if now, err = time.Parse(time.DateOnly, o.date); err != nil {
			return cli.Usagef(cmd, "--date %q: want a day such as 2027-04-01", o.date)
		}
	}
	r, err := recipe.Load(path)
	if err != nil {
		return err
	}
	tables, err := readTables(o.data)
	if err != nil {
		return err
	}
	f, name, err := lockFor(r, o.lock)
	var stale *lock.StaleError
	if errors.As(err, &stale) && o.lock == "" {
		fmt.Fprintf(cmd.ErrOrStderr(), "imgbuild: judging the recipe alone: %v\n", stale)
		f, name = nil, ""
	} else if err != nil {
		return err
	}
	v := newVerdict(tables, r, f, now)
	v.Lock = name
	if o.output == "json" {
		e := json.NewEncoder(cmd.OutOrStdout())
		e.SetIndent("", " ")
		err = e.Encode(v)
	} else {
		err = v.print(cmd.OutOrStdout())
	}
	if err != nil {
		return err
	}
	return v.err()
}

// readTables returns the tables of this program with the files laid over them.
func readTables(files []string) (*compat.Tables, error) {
	t := compat.Default()
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err == nil {
			err = t.Lay(name, b)
		}
		if err != nil {
			return nil, &cli.UsageError{Msg: err.Error()}
		}
	}
	return t, nil
}

// lockFor reads the lock that was named, or the one beside the recipe if it
// is there; one that does not answer the recipe is a *lock.StaleError. name is "" when there is none.
func lockFor(r *recipe.Recipe, named string) (f *lock.File, name string, err error) {
	name = named
	if name == "" {
		name = defaultLock(r.Path)
	}
	f, err = readLock(name, r.Path)
	if named == "" && errors.Is(err, fs.ErrNotExist) {
		return nil, "", nil
	}
	if err != nil {
		return nil, "", err
	}
	return f, name, lock.Check(r, f)
}

// verdict is what check says.
type verdict struct {
	Recipe   string    `json:"recipe"`
	Lock     string    `json:"lock,omitempty"` // "" if only the recipe was judged
	Date     string    `json:"date"`
	Edition  string    `json:"edition"` // of the table of branches
	OK       bool      `json:"ok"`      // no errors
	Errors   int       `json:"errors"`
	Warnings int       `json:"warnings"`
	Findings []finding `json:"findings"`
}

// finding is one of its lines, with the place in the recipe.
type finding struct {
	compat.Finding
	File   string `json:"file,omitempty"`
	Line   int    `json:"line,omitempty"`
	Column int    `json:"column,omitempty"`
}

// newVerdict judges a recipe and its lock (nil if there is none).
func newVerdict(t *compat.Tables, r *recipe.Recipe, f *lock.File, now time.Time) *verdict {
	found := compat.Check(t, compat.FromRecipe(t, r, f, now))
	found = append(found, gpu.Lint(t, gpu.Pinned(t, r, f))...)
	found = append(found, egress.Lint(r)...)
	var accepts []compat.Accept
	for _, a := range r.Driver.Accept {
		accepts = append(accepts, compat.Accept(a))
	}
	v := &verdict{Recipe: r.Path, Date: now.Format(time.DateOnly), Edition: t.Edition, Findings: []finding{}}
	for _, x := range compat.ApplyAccepts(found, accepts) {
		entry := finding{Finding: x}
		if x.Field != "" {
			p := r.Place(x.Field)
			entry.File, entry.Line, entry.Column = p.File, p.Line, p.Column
		}
		switch x.Severity {
		case compat.Error:
			v.Errors++
		case compat.Warning:
			v.Warnings++
		}
		v.Findings = append(v.Findings, entry)
	}
	v.OK = v.Errors == 0
	return v
}

// print writes the verdict as a table.
func (v *verdict) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	if len(v.Findings) > 0 {
		fmt.Fprintln(t, "SEVERITY\tRULE\tPLACE\tFINDING")
	}
	for _, f := range v.Findings {
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", f.Severity, f.Rule, f.place(), f.Message)
		if f.Accepted != "" {
			f.Hint = "" // somebody did think of it
		}
		for _, more := range []struct{ what, text string }{{"do", f.Hint}, {"accepted", f.Accepted}, {"source", f.Source}} {
			if more.text != "" {
				fmt.Fprintf(t, "\t\t\t  %s: %s\n", more.what, more.text)
			}
		}
	}
	if err := t.Flush(); err != nil {
		return err
	}
	of := "the recipe alone; with a lock every package is judged"
	if v.Lock != "" {
		of = v.Lock
	}
	_, err := fmt.Fprintf(w, "%s: %s (judged on %s by %s, tables of edition %s)\n", v.Recipe, v.summary(), v.Date, of, v.Edition)
	return err
}

func (f finding) place() string {
	if f.Line == 0 {
		return "-"
	}
	return fmt.Sprintf("%s:%d:%d", f.File, f.Line, f.Column)
}

func (v *verdict) summary() string {
	if v.Errors+v.Warnings == 0 {
		return "fits together"
	}
	return count(v.Errors, "error") + ", " + count(v.Warnings, "warning")
}

func count(n int, what string) string {
	if n != 1 {
		what += "s"
	}
	return fmt.Sprintf("%d %s", n, what)
}

// incompatibleError says that what a recipe asks for does not fit together.
type incompatibleError struct{ verdict *verdict }

func (e *incompatibleError) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s does not fit together: %s; see `imgbuild check`", e.verdict.Recipe, e.verdict.summary())
	for _, f := range e.verdict.Findings {
		if f.Severity == compat.Error {
			fmt.Fprintf(&b, "\n  %s: %s [%s]", f.place(), f.Message, f.Rule)
			if f.Hint != "" {
				fmt.Fprintf(&b, " (%s)", f.Hint)
			}
		}
	}
	return b.String()
}

func (v *verdict) err() error {
	if v.OK {
		return nil
	}
	return &incompatibleError{v}
}

// checkBuild judges what is about to be built. Warnings go to note.
func checkBuild(data []string, r *recipe.Recipe, f *lock.File, note func(format string, args ...any)) error {
	tables, err := readTables(data)
	if err != nil {
		return err
	}
	v := newVerdict(tables, r, f, time.Now())
	for _, x := range v.Findings {
		if x.Severity == compat.Warning {
			note("warning: %s: %s [%s]", x.place(), x.Message, x.Rule)
		}
	}
	return v.err()
}
