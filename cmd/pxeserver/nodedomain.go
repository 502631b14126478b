package main

import (
	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
)

func newNodeDomainCommand(g *globals) *cobra.Command {
	var domain string
	cmd := &cobra.Command{
		Use: "domain NODE… --set DOMAIN", Short: "Say which nodes fail together",
		Long: `Gives nodes a failure domain: a rack, a power feed, an NVLink domain, by any name.
A rollout with --by-domain starts the nodes of one domain together, so that it
is out once rather than again and again. --set "" takes it away.
` + exitCodes,
		Example: "  pxeserver node domain n1 n2 n3 n4 --set nvl-07",
		Args:    cli.SomeArgs("a node"), ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			if !cmd.Flags().Changed("set") {
				return cli.Usagef(cmd, "say which domain: --set DOMAIN")
			}
			return g.act(cmd, args, "domain", api.NodeRequest{Domain: &domain}, "node %s has its domain")
		},
	}
	cmd.Flags().StringVar(&domain, "set", "", "name of the failure domain (needed)")
	return cmd
}
