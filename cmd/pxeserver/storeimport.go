package main

import (
	"fmt"
	"maps"
	"slices"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/internal/store/postgres"
	"github.com/turnout-project/turnout/internal/store/sqlite"
)

func newStoreCommand(g *globals) *cobra.Command {
	return group("store", "Look after where fleet state is kept", newStoreImportCommand(g))
}

func newStoreImportCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "import [FILE]", Short: "Move a fleet from its file into a database",
		Long: `Copies the fleet state of a SQLite file, that of data_dir if none is named, into the
empty PostgreSQL database that the configuration names as store. No server may
run. All of it is copied, or nothing; the file stays as it is. Nodes need not
enrol again: the CA is the same.
` + exitCodes,
		Example: "  pxeserver store import",
		Args:    cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.load()
			if err != nil {
				return err
			}
			if c.Store == "" {
				return refusedf("the configuration names no database: set store, see docs/high-availability.md")
			}
			file := c.StateFile()
			if len(args) == 1 {
				file = args[0]
			}
			unlock, err := lockDir(c.DataDir)
			if err != nil {
				return err
			}
			defer unlock()
			password, err := c.StoreSecret()
			if err != nil {
				return &statusError{exitUsage, err.Error()}
			}
			from, err := sqlite.Tables(cmd.Context(), file)
			if err != nil {
				return err
			}
			defer from.Close()
			counts, err := postgres.Import(cmd.Context(), c.Store, password, from)
			if err != nil {
				return err
			}
			return g.print(cmd, counts, func(t *tabwriter.Writer) {
				row(t, "TABLE", "ROWS")
				for _, name := range slices.Sorted(maps.Keys(counts)) {
					row(t, name, fmt.Sprint(counts[name]))
				}
			})
		},
	}
}
