package main

import (
	"fmt"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

func newPowerCommand(g *globals) *cobra.Command {
	return group("power", "Switch nodes on and off through their BMCs",
		newPowerActCommand(g, fleet.PowerOn, "Switch nodes on", "", ""),
		newPowerActCommand(g, fleet.PowerOff, "Switch nodes off at once", "lose power at once", `

With --graceful the operating system is asked to shut down in its own time.`),
		newPowerActCommand(g, fleet.PowerCycle, "Cycle the power of nodes", "lose power for a moment", `

A node that is off is switched on. Nothing is asked of the operating system.`),
		newPowerStatusCommand(g))
}

// powerAtOnce is how many BMCs are spoken to at a time.
const powerAtOnce = 16

// powerResult is what came of one node.
type powerResult struct {
	Node  string `json:"node"`
	State string `json:"state,omitempty"`
	Error string `json:"error,omitempty"`
}

func newPowerActCommand(g *globals, act fleet.PowerAct, short, danger, more string) *cobra.Command {
	var pool, reason string
	var yes, graceful bool
	cmd := &cobra.Command{
		Use: string(act) + " NODE…|--pool POOL", Short: short,
		Long: short + ` through their BMCs, which ` + "`pxeserver bmc set`" + ` has made known. Nodes of a pool are
started together; use it with care where power is short. What is done is an event of each node.` + more + `

  pxeserver power ` + string(act) + ` n1 n2
  pxeserver power ` + string(act) + ` --pool rack --yes
` + exitCodes,
		Args: nodesOrPool(&pool), ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, names, err := g.chosen(cmd, args, pool)
			if err != nil {
				return err
			}
			if danger != "" && !graceful {
				if err := confirm(cmd, yes, fmt.Sprintf("%d node(s) will %s: %s.", len(names), danger, few(names))); err != nil {
					return err
				}
			}
			req := api.PowerRequest{Act: act, Reason: reason}
			if graceful {
				req.Act = fleet.PowerShutdown
			}
			return g.power(cmd, names, func(name string) (*api.Power, error) { return c.SetPower(cmd.Context(), name, req) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&pool, "pool", "", "the nodes of this pool")
	f.StringVar(&reason, "reason", "", "why, for the events")
	if danger != "" {
		f.BoolVarP(&yes, "yes", "y", false, "do not ask")
	}
	if act == fleet.PowerOff {
		f.BoolVar(&graceful, "graceful", false, "ask the operating system to shut down")
	}
	must(cmd.RegisterFlagCompletionFunc("pool", g.completePools))
	return cmd
}

func newPowerStatusCommand(g *globals) *cobra.Command {
	var pool string
	cmd := &cobra.Command{
		Use: "status NODE…|--pool POOL", Short: "Say which nodes have power",
		Long: `Asks the BMC of each node.

  pxeserver power status --pool rack
` + exitCodes,
		Args: nodesOrPool(&pool), ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, names, err := g.chosen(cmd, args, pool)
			if err != nil {
				return err
			}
			return g.power(cmd, names, func(name string) (*api.Power, error) { return c.Power(cmd.Context(), name) })
		},
	}
	cmd.Flags().StringVar(&pool, "pool", "", "the nodes of this pool")
	must(cmd.RegisterFlagCompletionFunc("pool", g.completePools))
	return cmd
}

// chosen makes the client, and names the nodes that were named, or those of
// the pool.
func (g *globals) chosen(cmd *cobra.Command, args []string, pool string) (*api.Client, []string, error) {
	c, err := g.client()
	if err != nil {
		return nil, nil, err
	}
	names, err := namesOf(cmd, c, args, pool)
	return c, names, err
}

// power does something for each node, shows what came of it, and fails if one
// failed.
func (g *globals) power(cmd *cobra.Command, names []string, do func(name string) (*api.Power, error)) error {
	out := make([]powerResult, len(names))
	var mu sync.Mutex
	var failed []string
	var last error
	var eg errgroup.Group
	eg.SetLimit(powerAtOnce)
	for i, name := range names {
		eg.Go(func() error {
			p, err := do(name)
			if err != nil {
				mu.Lock()
				failed, last = append(failed, name), err
				mu.Unlock()
				out[i] = powerResult{Node: name, Error: text(err)}
				return nil
			}
			out[i] = powerResult{Node: name, State: p.State}
			return nil
		})
	}
	_ = eg.Wait() // errors are in out
	err := g.print(cmd, out, func(t *tabwriter.Writer) {
		row(t, "NODE", "POWER", "ERROR")
		for _, r := range out {
			row(t, r.Node, r.State, strings.ReplaceAll(r.Error, "\n", ";"))
		}
	})
	switch {
	case err != nil:
		return err
	case len(failed) == 1 && len(names) == 1:
		return last
	case len(failed) > 0:
		slices.Sort(failed)
		return fmt.Errorf("%d of %d nodes failed: %s", len(failed), len(names), few(failed))
	}
	return nil
}

// nodesOrPool wants either nodes or --pool.
func nodesOrPool(pool *string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if (len(args) > 0) == (*pool != "") {
			return cli.Usagef(cmd, "want either nodes or --pool")
		}
		return nil
	}
}

// namesOf returns the nodes that are meant.
func namesOf(cmd *cobra.Command, c *api.Client, args []string, pool string) ([]string, error) {
	if pool == "" {
		return args, nil
	}
	nodes, err := c.Nodes(cmd.Context())
	if err != nil {
		return nil, err
	}
	var names []string
	for _, n := range nodes {
		if n.Pool == pool && n.State != fleet.NodePending {
			names = append(names, n.Name)
		}
	}
	if names == nil {
		return nil, refusedf("pool %q has no nodes", pool)
	}
	return names, nil
}

// few names some of many.
func few(names []string) string {
	const most = 8
	if len(names) <= most {
		return strings.Join(names, ", ")
	}
	return strings.Join(names[:most], ", ") + fmt.Sprintf(" and %d more", len(names)-most)
}
