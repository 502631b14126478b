package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/config"
)

// globals are the flags of every command.
type globals struct {
	config, server, ca, token string
	cert                      string
	output                    string
}

func (g *globals) addFlags(cmd *cobra.Command) {
	f := cmd.PersistentFlags()
	f.StringVar(&g.config, "config", os.Getenv("TURNOUT_CONFIG"), "configuration of the server; commands take address, CA and token from it (TURNOUT_CONFIG, ./pxeserver.yaml, /etc/turnout/pxeserver.yaml)")
	f.StringVar(&g.server, "server", os.Getenv("TURNOUT_SERVER"), "https URL of the server (TURNOUT_SERVER)")
	f.StringVar(&g.ca, "ca", os.Getenv("TURNOUT_CA"), "certificate of the server's CA, PEM (TURNOUT_CA)")
	f.StringVar(&g.token, "token-file", os.Getenv("TURNOUT_TOKEN_FILE"), "file with the operator's token (TURNOUT_TOKEN_FILE)")
	f.StringVar(&g.cert, "client-cert", os.Getenv("TURNOUT_CLIENT_CERT"), "file with the operator's certificate and key, PEM, in place of a token (TURNOUT_CLIENT_CERT)")
	f.StringVarP(&g.output, "output", "o", "table", "table, wide (more columns), json or yaml")
	must(cmd.RegisterFlagCompletionFunc("output", cobra.FixedCompletions(outputs, cobra.ShellCompDirectiveNoFileComp)))
}

func must(err error) {
	if err != nil {
		panic(err) // a flag that does not exist: a fault of this program
	}
}

// configFile is the configuration that was named, else the first that is
// there, else "".
func (g *globals) configFile() string {
	if g.config != "" {
		return g.config
	}
	for _, p := range []string{"pxeserver.yaml", "/etc/turnout/pxeserver.yaml"} {
		if _, err := os.Stat(p); err == nil {
			return p
		}
	}
	return ""
}

// load reads the configuration that was named, or the first that is there.
func (g *globals) load() (*config.Config, error) {
	if f := g.configFile(); f != "" {
		return config.Load(f)
	}
	return nil, &statusError{exitUsage, "no configuration: name one with --config, or make one with `pxeserver init`"}
}

// client makes the client for a command. What flags and environment do not
// say comes from the configuration.
func (g *globals) client() (*api.Client, error) {
	server, ca, token := g.server, g.ca, g.token
	if server == "" || ca == "" || token == "" && g.cert == "" {
		c, err := g.load()
		if err != nil && g.config == "" && (server != "" || ca != "" || token != "" || g.cert != "") {
			return nil, &statusError{exitUsage, "to reach a server elsewhere give all of --server, --ca, and --token-file or --client-cert"}
		}
		if err != nil {
			return nil, err
		}
		server, ca, token = or(server, c.NodeAPI()), or(ca, c.CAFile()), or(token, c.TokenFile())
	}
	caPEM, err := os.ReadFile(ca)
	if err != nil {
		return nil, &statusError{exitUsage, fmt.Sprintf("server CA: %v", err)}
	}
	if g.cert != "" && g.token == "" {
		pair, err := os.ReadFile(g.cert)
		if err != nil {
			return nil, &statusError{exitUsage, fmt.Sprintf("operator's certificate: %v", err)}
		}
		c, err := api.NewCertClient(server, caPEM, pair)
		if err != nil {
			return nil, &statusError{exitUsage, fmt.Sprintf("%s: %v", g.cert, err)}
		}
		return c, nil
	}
	tok, err := os.ReadFile(token)
	if err != nil {
		return nil, &statusError{exitUsage, fmt.Sprintf("operator's token: %v", err)}
	}
	c, err := api.NewClient(server, caPEM, string(tok))
	if err != nil {
		return nil, &statusError{exitUsage, err.Error()}
	}
	return c, nil
}

func or(a, b string) string {
	if a != "" {
		return a
	}
	return b
}

// confirm asks before an act that is hard to take back. Where nobody can
// answer it wants --yes.
func confirm(cmd *cobra.Command, yes bool, what string) error {
	if yes {
		return nil
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s Go on? [y/N] ", what)
	line, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
	if err != nil && line == "" {
		return refusedf("nobody answered; say --yes to go on without being asked")
	}
	switch strings.ToLower(strings.TrimSpace(line)) {
	case "y", "yes":
		return nil
	}
	return refusedf("not done")
}

// The completions ask the server; without one there are none.

func (g *globals) completeNodes(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var out []string
	if c, err := g.client(); err == nil {
		nodes, _ := c.Nodes(cmd.Context())
		for _, n := range nodes {
			out = append(out, n.Name+"\t"+string(n.State)+" in "+n.Pool)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func (g *globals) completePools(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var out []string
	if c, err := g.client(); err == nil {
		pools, _ := c.Pools(cmd.Context())
		for _, p := range pools {
			out = append(out, p.Name)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func (g *globals) completeImages(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var out []string
	if c, err := g.client(); err == nil {
		images, _ := c.Images(cmd.Context())
		for _, i := range images {
			out = append(out, i.Digest+"\t"+i.Name+" "+i.Version)
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}

func (g *globals) completeRollouts(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var out []string
	if c, err := g.client(); err == nil {
		rs, _ := c.RolloutSummaries(cmd.Context())
		for _, r := range rs {
			out = append(out, r.ID+"\t"+string(r.State))
		}
	}
	return out, cobra.ShellCompDirectiveNoFileComp
}
