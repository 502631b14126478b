package main

import (
	"crypto/ed25519"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/nodereport"
)

const reportLong = `Writes down what is known of a node, or of the nodes of a rack or pool, so that new hardware is
accepted or refused by facts: its TPM and who vouches for it, Secure Boot, attestation, image,
health, firmware against the recipe's pins and its peers, inventory, burn-in. The server signs it.

A rack is what ` + "`node domain`" + ` says, else the part of the name before the last hyphen: r7-n03
stands in r7. -o html is one page that loads nothing and can be printed; -o json the same for
programs. Without -o a table of the facts is shown.

Required facts that do not hold, or are not known, refuse a node; then the exit status is 3. Facts:
seen, tpm, ek-certificate, attestation, secure-boot, image, health, firmware-pins, firmware-peers,
gpus, bmc, burn-in.
`

func newNodeReportCommand(g *globals) *cobra.Command {
	var q api.ReportQuery
	var file string
	cmd := &cobra.Command{
		Use: "report NODE|--rack R|--pool P", Short: "Accept or refuse hardware by facts, signed",
		Long:    reportLong + exitCodes,
		Example: "  pxeserver node report r7-n03\n  pxeserver node report --rack r7 --require tpm,attestation,secure-boot,burn-in -o html --file r7.html",
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) > 1 || (len(args) == 1) == (q.Rack != "" || q.Pool != "") || q.Rack != "" && q.Pool != "" {
				return cli.Usagef(cmd, "want one of a node, --rack and --pool")
			}
			return nil
		},
		ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 1 {
				q.Node = args[0]
			}
			c, err := g.client()
			if err != nil {
				return err
			}
			raw, err := c.Report(cmd.Context(), q)
			if err != nil {
				return err
			}
			return g.writeReport(cmd, raw, file)
		},
	}
	f := cmd.Flags()
	f.StringVar(&q.Rack, "rack", "", "the nodes of this rack or failure domain")
	f.StringVar(&q.Pool, "pool", "", "the nodes of this pool")
	f.StringSliceVar(&q.Require, "require", nil, "facts that must hold (default "+strings.Join(nodereport.DefaultRequire, ",")+")")
	f.StringVar(&file, "file", "", "write to this file in place of the standard output")
	must(cmd.RegisterFlagCompletionFunc("pool", g.completePools))
	return cmd
}

// writeReport shows a report in the form that -o asks for.
func (g *globals) writeReport(cmd *cobra.Command, raw []byte, file string) error {
	s, err := nodereport.Parse(raw)
	if err != nil {
		return err
	}
	r, err := s.Read()
	if err != nil {
		return err
	}
	var out []byte
	switch g.output {
	case "html":
		out, err = nodereport.HTML(s)
	case "table", "":
		if file != "" {
			return cli.Usagef(cmd, "--file wants -o html or -o json")
		}
		err = g.print(cmd, r, func(t *tabwriter.Writer) { showReportFacts(t, r) })
	default:
		if file == "" {
			err = g.print(cmd, s, func(t *tabwriter.Writer) { showReportFacts(t, r) })
			break
		}
		out, err = json.MarshalIndent(s, "", "  ")
		out = append(out, '\n')
	}
	if err != nil {
		return err
	}
	if out != nil && file != "" {
		err = os.WriteFile(file, out, 0o644) //nolint:gosec // to be handed over
	} else if out != nil {
		_, err = cmd.OutOrStdout().Write(out)
	}
	if err == nil && !r.Accepted {
		return refusedf("%s is not accepted: %s", r.Title, few(r.Refused))
	}
	return err
}

func showReportFacts(t *tabwriter.Writer, r *nodereport.Report) {
	for _, n := range r.Nodes {
		verdict := "accepted"
		if !n.Accepted {
			verdict = "REFUSED"
		}
		fmt.Fprintf(t, "%s, pool %s: %s\n", n.Name, n.Pool, verdict)
		for _, f := range n.Facts {
			required := ""
			if f.Required {
				required = "required"
			}
			row(t, " ", string(f.State), required, f.ID, f.Text)
		}
	}
}

func newReportCommand(g *globals) *cobra.Command {
	return group("report", "Verify reports of nodes", newReportVerifyCommand(g), newReportKeyCommand(g))
}

func newReportKeyCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "key", Short: "Show the key that verifies this server's reports",
		Long: "Writes the public key (PEM), to be kept where reports are verified without the server.\n" + exitCodes,
		Args: cli.NoArgs, Example: "  pxeserver report key > report.pub",
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			k, err := c.ReportKey(cmd.Context())
			if err != nil {
				return err
			}
			if g.output == "table" || g.output == "" {
				_, err = fmt.Fprint(cmd.OutOrStdout(), k.PEM)
				return err
			}
			return g.print(cmd, k, func(t *tabwriter.Writer) { row(t, k.ID) })
		},
	}
}

func newReportVerifyCommand(g *globals) *cobra.Command {
	var keys []string
	cmd := &cobra.Command{
		Use: "verify FILE", Short: "Check that a report is what a server signed",
		Long: `Checks the signature of a report (JSON or HTML) by a key that ` + "`report key`" + ` wrote, or by the
server's own if no key is given. Of a page it also checks that what it shows is what is signed.
It does not look at the nodes again: a report is as of its time.
` + exitCodes,
		Args: cli.OneArg("a file"), Example: "  pxeserver report verify r7.html\n  pxeserver report verify r7.html --key report.pub",
		RunE: func(cmd *cobra.Command, args []string) error {
			b, err := os.ReadFile(args[0])
			if err != nil {
				return &statusError{exitUsage, err.Error()}
			}
			ks, err := g.reportKeys(cmd, keys)
			if err != nil {
				return err
			}
			s, pageErr := nodereport.Parse(b)
			if s == nil || pageErr != nil && !errors.Is(pageErr, nodereport.ErrPage) {
				return refusedf("%s: %v", args[0], pageErr)
			}
			r, err := s.Verify(ks)
			if err != nil {
				return refusedf("%s: %v", args[0], err)
			}
			if pageErr != nil {
				return refusedf("%s: %v; or another version of Turnout made the page. What is inside is genuine: take -o json of it", args[0], pageErr)
			}
			verdict := "accepted"
			if !r.Accepted {
				verdict = "not accepted: " + few(r.Refused)
			}
			fmt.Fprintf(cmd.OutOrStdout(), "genuine, by key %s: %s, %s, as of %s\n", s.Key, r.Title, verdict, r.At.Format("2006-01-02 15:04:05 UTC"))
			return nil
		},
	}
	cmd.Flags().StringArrayVar(&keys, "key", nil, "public key (PEM) in place of asking the server; may be repeated")
	return cmd
}

// reportKeys reads the keys that were named, or asks the server for its own.
func (g *globals) reportKeys(cmd *cobra.Command, files []string) ([]ed25519.PublicKey, error) {
	var out []ed25519.PublicKey
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			return nil, &statusError{exitUsage, "--key: " + err.Error()}
		}
		ks, err := manifest.ParsePublicKeys(b)
		if err != nil {
			return nil, &statusError{exitUsage, fmt.Sprintf("--key: %s: %v", f, err)}
		}
		out = append(out, ks...)
	}
	if len(files) > 0 {
		return out, nil
	}
	c, err := g.client()
	if err != nil {
		return nil, err
	}
	k, err := c.ReportKey(cmd.Context())
	if err != nil {
		return nil, err
	}
	return manifest.ParsePublicKeys([]byte(k.PEM))
}
