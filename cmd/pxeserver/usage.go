package main

import (
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/usage"
)

func newUsageCommand(g *globals) *cobra.Command {
	return group("usage", "What GPUs are used for, and by whom", newUsageExportCommand(g))
}

func newUsageExportCommand(g *globals) *cobra.Command {
	var from, to, by, pool string
	cmd := &cobra.Command{
		Use: "export --from TIME --to TIME", Short: "Export for how long GPUs and their instances were occupied",
		Long: `Sums, by period, pool, profile ("gpu" is a whole one) and tenant, for how many hours devices were
occupied, and of that how many weighted by load; and for how many they were free, or not known because
their node was silent. Times are of one device: two GPUs for half an hour are 1. What nobody saw, for
a server that was away, is in no column.

TIME is a day (2026-03-01, UTC) or a time (2026-03-01T12:00:00+01:00); whole hours are counted, from
--from up to, not including, --to. Hours are kept for 400 days. -o csv is for spreadsheets.
` + exitCodes,
		Example: "  pxeserver usage export --from 2026-03-01 --to 2026-04-01 --by month -o csv",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			begin, err := moment(from)
			if err != nil {
				return cli.Usagef(cmd, "--from: %v", err)
			}
			end, err := moment(to)
			if err != nil {
				return cli.Usagef(cmd, "--to: %v", err)
			}
			if err := usage.By(by).Check(); err != nil {
				return cli.Usagef(cmd, "--by: %v", err)
			}
			c, err := g.client()
			if err != nil {
				return err
			}
			rows, err := c.Usage(cmd.Context(), begin, end, by, pool)
			if err != nil {
				return err
			}
			if g.output == "csv" {
				return usage.CSV(cmd.OutOrStdout(), rows)
			}
			return g.print(cmd, rows, func(t *tabwriter.Writer) { showUsage(t, rows) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&from, "from", "", "begin")
	f.StringVar(&to, "to", "", "end, not included")
	f.StringVar(&by, "by", "day", "hour, day, month (of UTC) or all")
	f.StringVar(&pool, "pool", "", "only this pool")
	must(cmd.RegisterFlagCompletionFunc("pool", g.completePools))
	must(cmd.RegisterFlagCompletionFunc("by", cobra.FixedCompletions([]string{"hour", "day", "month", "all"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// moment reads a day or a time.
func moment(s string) (time.Time, error) {
	if t, err := time.Parse(time.DateOnly, s); err == nil {
		return t, nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, fmt.Errorf("%q: want a day such as 2026-03-01, or a time such as 2026-03-01T12:00:00Z", s)
	}
	return t, nil
}

func showUsage(t *tabwriter.Writer, rows []fleet.UsageRow) {
	row(t, "FROM", "POOL", "PROFILE", "TENANT", "OCCUPIED", "LOAD", "FREE", "UNKNOWN")
	h := func(f float64) string { return fmt.Sprintf("%.2f h", f) }
	for _, r := range rows {
		row(t, r.From.Format("2006-01-02 15:04"), r.Pool, r.Profile, r.Tenant, h(r.Occupied), h(r.Load), h(r.Free), h(r.Unknown))
	}
}
