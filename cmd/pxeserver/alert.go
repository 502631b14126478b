package main

import (
	"crypto/x509"
	"fmt"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/alert"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/config"
)

// alertHooks reads the files that the configuration's webhooks name.
func alertHooks(c *config.Config) ([]alert.Hook, error) {
	var out []alert.Hook
	for _, a := range c.Alerts {
		h := alert.Hook{Name: a.Name, URL: a.URL, Kinds: a.Kinds}
		var err error
		if h.Secret, err = alert.ReadSecret(a.Secret); err != nil {
			return nil, fmt.Errorf("alerts: %s: %w", a.Name, err)
		}
		if a.CA != "" {
			b, err := os.ReadFile(a.CA)
			if err != nil {
				return nil, fmt.Errorf("alerts: %s: %w", a.Name, err)
			}
			if h.CA = x509.NewCertPool(); !h.CA.AppendCertsFromPEM(b) {
				return nil, fmt.Errorf("alerts: %s: %s holds no certificate in PEM form", a.Name, a.CA)
			}
		}
		out = append(out, h)
	}
	return out, nil
}

func newAlertCommand(g *globals) *cobra.Command {
	return group("alert", "Webhooks that are told of events", newAlertListCommand(g), newAlertTestCommand(g))
}

func newAlertListCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List webhooks, and how far each is",
		Long: "Lists the webhooks of the server's configuration: where they are, the last delivery that was\ntaken, what fails, and how many events were given up.\n" + exitCodes,
		Args: cli.NoArgs, Example: "  pxeserver alert list",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			all, err := c.Webhooks(cmd.Context())
			if err != nil {
				return err
			}
			return g.print(cmd, all, func(t *tabwriter.Writer) { showWebhooks(t, all) })
		},
	}
}

func showWebhooks(t *tabwriter.Writer, all []api.Webhook) {
	row(t, "NAME", "HOST", "LAST TAKEN", "GIVEN UP", "KINDS", "FAILING")
	for _, w := range all {
		failing := ""
		if w.Tries > 0 {
			failing = fmt.Sprintf("%d tries: %s", w.Tries, w.Failing)
		}
		row(t, w.Name, w.Host, ago(w.Last), strconv.FormatInt(w.Dropped, 10), strings.Join(w.Kinds, " "), failing)
	}
}

func newAlertTestCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "test NAME", Short: "Send a webhook a test",
		Long: "Sends a signed delivery with \"test\": true, once, and says what came of it.\n" + exitCodes,
		Args: cli.OneArg("the name of a webhook"), Example: "  pxeserver alert test pager",
		ValidArgsFunction: func(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
			var out []string
			if c, err := g.client(); err == nil {
				all, _ := c.Webhooks(cmd.Context())
				for _, w := range all {
					out = append(out, w.Name+"\t"+w.Host)
				}
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			w, err := c.TestWebhook(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%s took it\n", w.Host)
			return nil
		},
	}
}
