package main

import (
	"encoding/csv"
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

// importColumns are those of a file for node import.
var importColumns = []string{"name", "pool", "macs", "domain", "labels"}

func newNodeImportCommand(g *globals) *cobra.Command {
	var dryRun bool
	cmd := &cobra.Command{
		Use: "import FILE", Short: "Add many nodes from a CSV file",
		Long: `Adds the nodes of a CSV file ("-" is the standard input), as node add does. Its
first line names the columns: name and macs (several with spaces between) must
be there, pool ("default"), domain and labels (gpu=h100 zone=a) may be. The whole file is checked first.
A node that is there with the same MACs and pool is left as it is, so an import
that broke off is run once more.
` + exitCodes,
		Example: "  printf 'name,pool,macs,domain\\nn7,rack,52:54:00:12:34:56,nvl-07\\n' | pxeserver node import -",
		Args:    cli.OneArg("a CSV file, or -"),
		RunE: func(cmd *cobra.Command, args []string) error {
			in := cmd.InOrStdin()
			if args[0] != "-" {
				f, err := os.Open(args[0])
				if err != nil {
					return err
				}
				defer f.Close()
				in = f
			}
			rows, err := readImport(in)
			if err != nil {
				return &statusError{exitUsage, args[0] + ": " + err.Error()}
			}
			c, err := g.client()
			if err != nil {
				return err
			}
			return importNodes(cmd, c, rows, dryRun)
		},
	}
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say what would be added, add nothing")
	return cmd
}

// readImport reads and checks a whole file.
func readImport(in io.Reader) ([]api.NodeRequest, error) {
	r := csv.NewReader(in)
	r.TrimLeadingSpace, r.Comment = true, '#'
	head, err := r.Read()
	if err != nil {
		return nil, fmt.Errorf("its first line: %w", err)
	}
	at := map[string]int{}
	for i, h := range head {
		h = strings.ToLower(strings.TrimSpace(strings.TrimPrefix(h, "\ufeff")))
		if _, twice := at[h]; twice || !slices.Contains(importColumns, h) {
			return nil, fmt.Errorf("column %q: want each of %s at most once", h, strings.Join(importColumns, ", "))
		}
		at[h] = i
	}
	for _, need := range []string{"name", "macs"} {
		if _, ok := at[need]; !ok {
			return nil, fmt.Errorf("there is no column %q in its first line", need)
		}
	}
	var out []api.NodeRequest
	owner := map[string]string{} // of names and MACs
	for {
		rec, err := r.Read()
		if errors.Is(err, io.EOF) {
			return out, nil
		}
		if err != nil {
			return nil, err
		}
		line, _ := r.FieldPos(0)
		get := func(col string) string {
			if i, ok := at[col]; ok {
				return strings.TrimSpace(rec[i])
			}
			return ""
		}
		n := api.NodeRequest{Name: get("name"), Pool: or(get("pool"), "default")}
		if d := get("domain"); d != "" {
			n.Domain = &d
		}
		if n.Labels, err = fleet.ParseLabels(strings.Fields(get("labels"))); err != nil {
			return nil, fmt.Errorf("line %d: %w", line, err)
		}
		for _, m := range strings.Fields(get("macs")) {
			mac, err := fleet.ParseMAC(m)
			if err != nil {
				return nil, fmt.Errorf("line %d: %w", line, err)
			}
			n.MACs = append(n.MACs, string(mac))
		}
		if n.Name == "" || len(n.MACs) == 0 {
			return nil, fmt.Errorf("line %d: want a name and at least one MAC address", line)
		}
		for _, key := range append([]string{n.Name}, n.MACs...) {
			if o := owner[key]; o != "" {
				return nil, fmt.Errorf("line %d: %s is node %s's already", line, key, o)
			}
			owner[key] = n.Name
		}
		out = append(out, n)
	}
}

func importNodes(cmd *cobra.Command, c *api.Client, rows []api.NodeRequest, dryRun bool) error {
	all, err := c.Nodes(cmd.Context())
	if err != nil {
		return err
	}
	known := map[string]*fleet.Node{}
	for i := range all {
		known[all[i].Name] = &all[i]
	}
	added, same := 0, 0
	for _, n := range rows {
		if old := known[n.Name]; old != nil {
			if !isSameNode(old, n) {
				return refusedf("node %s is there with another pool or MACs; %d nodes were added before it", n.Name, added)
			}
			same++
			continue
		}
		added++
		if dryRun {
			fmt.Fprintf(cmd.OutOrStdout(), "would add %s to pool %s with %s\n", n.Name, n.Pool, strings.Join(n.MACs, " "))
			continue
		}
		if _, err := c.AddNode(cmd.Context(), n); err != nil {
			return fmt.Errorf("node %s: %w; %d nodes were added before it", n.Name, err, added-1)
		}
		if n.Domain != nil {
			if _, err := c.NodeAct(cmd.Context(), n.Name, "domain", api.NodeRequest{Domain: n.Domain}); err != nil {
				return fmt.Errorf("node %s: %w", n.Name, err)
			}
		}
	}
	if !dryRun {
		fmt.Fprintf(cmd.OutOrStdout(), "%d nodes added, %d were there\n", added, same)
	}
	return nil
}

func isSameNode(old *fleet.Node, n api.NodeRequest) bool {
	if old.Pool != n.Pool || len(old.MACs) != len(n.MACs) {
		return false
	}
	for _, m := range old.MACs {
		if !slices.Contains(n.MACs, string(m)) {
			return false
		}
	}
	return true
}
