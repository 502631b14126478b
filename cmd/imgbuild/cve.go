package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/cve"
	"github.com/turnout-project/turnout/internal/image"
)

type cveOptions struct {
	feed, release, output string
	ignore                []string
	fixable, all          bool
}

func newCVECommand() *cobra.Command {
	var o cveOptions
	cmd := &cobra.Command{
		Use:   "cve IMAGE --feed FILE",
		Short: "List known vulnerabilities of an image's packages",
		Long: `Holds the packages of an image against a file of known vulnerabilities:

  Debian   the JSON of the security tracker (security-tracker.debian.org/tracker/data/json)
  OSV      JSON of one entry or a list of them, or a zip archive of entries

Packages are looked up by their source and its version. A vulnerability counts
unless Debian calls it unimportant, or --ignore names it; with --fixable, only
if a newer package is without it. What counts is listed; --all lists the rest
too. Nothing is fetched, and nothing is said of what came after the feed.

IMAGE is a folder that build wrote, or FOLDER@DIGEST.

Exit status: 0 nothing counts; 1 failed; 2 the command line is wrong, or the
feed cannot be read; 3 a part of the image is damaged; 4 something counts.`,
		Example: `  imgbuild cve images/rack-base --feed debian.json
  imgbuild cve images/rack-base --feed debian.json --fixable --ignore CVE-2011-3374 -o json`,
		Args: cli.OneArg("the folder of an image"),
		RunE: func(cmd *cobra.Command, args []string) error { return runCVE(cmd, o, args[0]) },
	}
	f := cmd.Flags()
	f.StringVar(&o.feed, "feed", "", "file of known vulnerabilities")
	f.StringVar(&o.release, "release", "", "Debian's code name (default: that of the image's base-files)")
	f.StringVarP(&o.output, "output", "o", "text", "text or json")
	f.StringArrayVar(&o.ignore, "ignore", nil, "vulnerability that does not count; may be given again")
	f.BoolVar(&o.fixable, "fixable", false, "count only what a newer package is without")
	f.BoolVar(&o.all, "all", false, "list what does not count, too")
	return cmd
}

func runCVE(cmd *cobra.Command, o cveOptions, arg string) error {
	if o.feed == "" {
		return cli.Usagef(cmd, "name the file of known vulnerabilities with --feed")
	}
	if o.output != "text" && o.output != "json" {
		return cli.Usagef(cmd, "--output %q: want text or json", o.output)
	}
	l, img, err := openImage(arg)
	if err != nil {
		return err
	}
	packages, err := image.PackageList(l, img)
	if err != nil {
		return err
	}
	if o.release == "" {
		if o.release = cve.Release(packages); o.release == "" {
			return cli.Usagef(cmd, "the image's base-files tells no release; name it with --release")
		}
	}
	found, err := cve.Check(o.feed, packages, o.release)
	if err != nil {
		return fmt.Errorf("%w: %w", image.ErrOptions, err)
	}
	counted := slices.DeleteFunc(slices.Clone(found), func(f cve.Finding) bool { return !o.counts(f) })
	listed := counted
	if o.all {
		listed = found
	}
	if err := writeFindings(cmd.OutOrStdout(), o.output, listed); err != nil {
		return err
	}
	if o.output == "text" {
		fmt.Fprintf(cmd.OutOrStdout(), "%s: %d vulnerabilities count, %d do not, of %d packages of %s\n",
			img.Manifest.Label(), len(counted), len(found)-len(counted), len(packages), o.release)
	}
	if len(counted) > 0 {
		return foundError{exitVulnerable}
	}
	return nil
}

// counts tells whether a finding makes the image one to be replaced.
func (o *cveOptions) counts(f cve.Finding) bool {
	return f.Status != cve.Ignored && !slices.Contains(o.ignore, f.ID) && (!o.fixable || f.Status == cve.Fixable)
}

func writeFindings(w io.Writer, output string, fs []cve.Finding) error {
	if output == "json" {
		e := json.NewEncoder(w)
		e.SetIndent("", " ")
		e.SetEscapeHTML(false)
		return e.Encode(slices.Concat([]cve.Finding{}, fs))
	}
	if len(fs) == 0 {
		return nil
	}
	t := tabwriter.NewWriter(w, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "VULNERABILITY\tSOURCE\tVERSION\tFIXED IN\tURGENCY\tPACKAGES")
	for _, f := range fs {
		fixed := f.Fixed
		switch {
		case f.Undecided:
			fixed = "(undecided)"
		case fixed == "":
			fixed = "-"
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t%s\n", f.ID, f.Source, f.Version, fixed, f.Urgency, few(f.Packages))
	}
	return t.Flush()
}

// few names the first packages of a long list.
func few(names []string) string {
	const most = 3
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
}
