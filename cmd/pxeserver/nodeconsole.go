package main

import (
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/pause"
)

func newNodeConsoleCommand(g *globals) *cobra.Command {
	var follow bool
	var bytes int
	cmd := &cobra.Command{
		Use: "console NODE", Short: "Show the end of a node's serial console",
		Long: `Shows the last lines of a node's serial console, as the site's console server
(conserver, ipmitool, a BMC's own) keeps it in the files that console_logs of
the server's configuration names. Commands to a terminal are left out.
` + exitCodes,
		Example:           "  pxeserver node console r1-n07\n  pxeserver node console r1-n07 --follow",
		Args:              cli.OneArg("a node"),
		ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			return showConsole(cmd, g, c, args[0], bytes, follow)
		},
	}
	cmd.Flags().BoolVarP(&follow, "follow", "f", false, "go on as lines come")
	cmd.Flags().IntVar(&bytes, "bytes", 16<<10, "how much of it, at most 1048576")
	return cmd
}

func showConsole(cmd *cobra.Command, g *globals, c *api.Client, node string, bytes int, follow bool) error {
	l, err := c.ConsoleLog(cmd.Context(), node, bytes)
	if err != nil {
		return err
	}
	if g.output == "json" && !follow {
		return g.print(cmd, l, nil)
	}
	fmt.Fprint(cmd.OutOrStdout(), l.Text)
	for follow {
		if err := pause.For(cmd.Context(), time.Second); err != nil {
			return nil // told to stop
		}
		next, err := c.ConsoleLog(cmd.Context(), node, 1<<20)
		switch {
		case errors.Is(err, api.ErrUnreachable) || api.StatusOf(err) >= 500: // it restarts
		case err != nil:
			return err
		case next.Size != l.Size:
			fmt.Fprint(cmd.OutOrStdout(), newLines(l, next))
			l = next
		}
	}
	return nil
}

// newLines is what came to a log since it was last seen: all of it if it was
// begun anew.
func newLines(old, now *api.ConsoleLog) string {
	last := old.Text[strings.LastIndexByte(strings.TrimSuffix(old.Text, "\n"), '\n')+1:]
	if now.Size < old.Size || last == "" {
		return now.Text
	}
	tail := old.Text[max(0, len(old.Text)-256):]
	if i := strings.LastIndex(now.Text, tail); i >= 0 {
		return now.Text[i+len(tail):]
	}
	return now.Text
}
