package main

import (
	"encoding/json"
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/cas"
	"github.com/turnout-project/turnout/internal/lock"
)

func newStoreCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "store", Short: "Look at the store of packages and built parts, and make it smaller",
		Long: "The store holds downloaded packages by their SHA-256, and built parts by all their inputs.\nNothing in it is needed but to save time, with one exception: packages that the archive has\ndropped since. `imgbuild vendor` keeps those of a lock for good.\n" + exitCodes,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newStoreListCommand(), newStoreGCCommand())
	return cmd
}

// storeKind is one kind of what a store holds.
type storeKind struct {
	Kind   string    `json:"kind"` // "packages", "built parts"
	Count  int       `json:"count"`
	Bytes  int64     `json:"bytes"`
	Oldest time.Time `json:"oldest,omitzero"` // last use of the one that was not used for the longest time
}

func newStoreListCommand() *cobra.Command {
	var dir, output string
	cmd := &cobra.Command{
		Use: "list", Short: "Say what the store holds, and how large it is",
		Long:    "Counts packages and built parts, and says since when the oldest of them was not used.\n" + exitCodes,
		Example: "  imgbuild store list",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := cas.Open(dir)
			if err != nil {
				return err
			}
			es, err := s.Entries()
			if err != nil {
				return err
			}
			return showStore(cmd, output, es)
		},
	}
	addStoreFlag(cmd, &dir)
	cmd.Flags().StringVarP(&output, "output", "o", "text", "text or json")
	return cmd
}

func showStore(cmd *cobra.Command, output string, es []cas.Entry) error {
	kinds := []storeKind{{Kind: "packages"}, {Kind: "built parts"}}
	for _, e := range es {
		k := &kinds[1]
		if e.Blob {
			k = &kinds[0]
		}
		k.Count++
		k.Bytes += e.Size
		if k.Oldest.IsZero() || e.Used.Before(k.Oldest) {
			k.Oldest = e.Used
		}
	}
	switch output {
	case "json":
		enc := json.NewEncoder(cmd.OutOrStdout())
		enc.SetIndent("", "  ")
		return enc.Encode(kinds)
	case "text":
	default:
		return cli.Usagef(cmd, "--output %q: want text or json", output)
	}
	t := tabwriter.NewWriter(cmd.OutOrStdout(), 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "KIND\tCOUNT\tSIZE\tOLDEST USE")
	for _, k := range kinds {
		oldest := "-"
		if !k.Oldest.IsZero() {
			oldest = k.Oldest.Format(time.DateOnly)
		}
		fmt.Fprintf(t, "%s\t%d\t%s\t%s\n", k.Kind, k.Count, mebibytes(k.Bytes), oldest)
	}
	return t.Flush()
}

func mebibytes(n int64) string { return fmt.Sprintf("%d MiB", (n+1<<20-1)>>20) }

type gcOptions struct {
	dir      string
	unused   time.Duration
	packages bool
	locks    []string
	dryRun   bool
}

// leastUnused keeps what a build that runs now may be using.
const leastUnused = time.Hour

func newStoreGCCommand() *cobra.Command {
	var o gcOptions
	cmd := &cobra.Command{
		Use: "gc", Short: "Remove what was not used for long",
		Long: `Removes built parts that no build has used for --unused; making them anew takes
time and gives the same bytes. Packages stay, since the archive may have dropped
them: with --packages those go, too, that are as old and that no lock named by
--lock needs. It may be called while builds run.
` + exitCodes,
		Example: "  imgbuild store gc --dry-run\n  imgbuild store gc --unused 336h --packages --lock recipes/rack-base.lock.json",
		Args:    cli.NoArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return runGC(cmd, o) },
	}
	addStoreFlag(cmd, &o.dir)
	f := cmd.Flags()
	f.DurationVar(&o.unused, "unused", 30*24*time.Hour, "how long something must not have been used")
	f.BoolVar(&o.packages, "packages", false, "remove packages, too, but for those of --lock")
	f.StringArrayVar(&o.locks, "lock", nil, "lock whose packages stay; may be given again")
	f.BoolVar(&o.dryRun, "dry-run", false, "only say what would be removed")
	return cmd
}

func runGC(cmd *cobra.Command, o gcOptions) error {
	switch {
	case o.unused < leastUnused:
		return cli.Usagef(cmd, "--unused %s: want %s at least: a build may be using it", o.unused, leastUnused)
	case o.packages && len(o.locks) == 0:
		return cli.Usagef(cmd, "--packages would remove packages that the archive may have dropped: name with --lock the locks that are to be built again")
	}
	needed := map[string]bool{}
	for _, name := range o.locks {
		l, err := lock.Read(name)
		if err != nil {
			return err
		}
		for _, p := range slices.Concat(l.Packages, l.Tools, l.Build) {
			needed[p.SHA256] = true
		}
	}
	s, err := cas.Open(o.dir)
	if err != nil {
		return err
	}
	es, err := s.Entries()
	if err != nil {
		return err
	}
	return o.collect(cmd.OutOrStdout(), s, es, needed, time.Now().Add(-o.unused))
}

func (o gcOptions) collect(w io.Writer, s *cas.Store, es []cas.Entry, needed map[string]bool, before time.Time) error {
	var count int
	var bytes int64
	for _, e := range es {
		if !e.Used.Before(before) || e.Blob && (!o.packages || needed[e.Sum]) {
			continue
		}
		if !o.dryRun {
			if err := s.Remove(e); err != nil {
				return err
			}
		}
		count++
		bytes += e.Size
	}
	verb := "removed"
	if o.dryRun {
		verb = "would remove"
	}
	_, err := fmt.Fprintf(w, "%s %d of %d entries, %s\n", verb, count, len(es), mebibytes(bytes))
	return err
}
