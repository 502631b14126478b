package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/buildinfo"
	"github.com/turnout-project/turnout/internal/fleet"
)

func newEventsCommand(g *globals) *cobra.Command {
	var q api.EventQuery
	var follow bool
	cmd := &cobra.Command{
		Use: "events", Short: "Show what happened, and with --follow what happens",
		Long:    "Prints the fleet's history, the newest lines of it: when, who, which node, what. With\n-o json it is one JSON object a line.\n" + exitCodes,
		Example: "  pxeserver events --follow\n  pxeserver events --node n1 --kind rollout. --last 100",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			return runEvents(cmd, g, c, q, follow)
		},
	}
	f := cmd.Flags()
	f.BoolVarP(&follow, "follow", "f", false, "go on as things happen; a server that restarts is waited for")
	f.StringVar(&q.Node, "node", "", "only of this node")
	f.StringVar(&q.Kind, "kind", "", `only kinds that start so, such as "rollout."`)
	f.IntVar(&q.Limit, "last", 50, "how many of the newest lines; 0 with --follow: only what is new")
	must(cmd.RegisterFlagCompletionFunc("node", g.completeNodes))
	return cmd
}

func runEvents(cmd *cobra.Command, g *globals, c *api.Client, q api.EventQuery, follow bool) error {
	q.Last = true
	none := q.Limit == 0 // but where the history ends must be known
	q.Limit = max(q.Limit, 1)
	ev, err := c.Events(cmd.Context(), q)
	if err != nil {
		return err
	}
	if !none {
		err = g.printEvents(cmd.OutOrStdout(), ev)
	}
	if err != nil || !follow {
		return err
	}
	q.Last, q.Limit, q.Wait = false, 0, 30*time.Second
	for {
		if len(ev) > 0 {
			q.After = ev[len(ev)-1].ID
		}
		ev, err = c.Events(cmd.Context(), q)
		if cmd.Context().Err() != nil {
			return nil // told to stop
		}
		if errors.Is(err, api.ErrUnreachable) || api.StatusOf(err) >= 500 {
			select { // it restarts
			case <-time.After(time.Second):
			case <-cmd.Context().Done():
			}
			continue
		}
		if err != nil {
			return err
		}
		if err := g.printEvents(cmd.OutOrStdout(), ev); err != nil {
			return err
		}
	}
}

func (g *globals) printEvents(w io.Writer, ev []fleet.Event) error {
	for _, e := range ev {
		var err error
		switch g.output {
		case "json":
			err = json.NewEncoder(w).Encode(e)
		case "yaml":
			err = writeYAML(w, []fleet.Event{e}) // a list of one: all together are one list
		default:
			_, err = fmt.Fprintf(w, "%s  %-16s %-8s %-24s %s\n", e.At.Local().Format("2006-01-02 15:04:05"), e.Actor, or(e.Node, "-"), e.Kind, e.Message)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func newVersionCommand(g *globals) *cobra.Command {
	var remote bool
	cmd := &cobra.Command{
		Use: "version", Short: "Print the version of pxeserver",
		Long: "Prints the version of this program, and with --remote that of the server.\n" + exitCodes,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprintln(cmd.OutOrStdout(), "pxeserver "+buildinfo.Long())
			if !remote {
				return nil
			}
			c, err := g.client()
			if err != nil {
				return err
			}
			v, err := c.Version(cmd.Context())
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), "server    "+v.Version)
			}
			return err
		},
	}
	cmd.Flags().BoolVar(&remote, "remote", false, "ask the server too")
	return cmd
}
