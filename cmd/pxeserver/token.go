package main

import (
	"bytes"
	"fmt"
	"os"
	"regexp"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/google/renameio/v2"
	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/config"
	"github.com/turnout-project/turnout/internal/server"
)

func newTokenCommand(g *globals) *cobra.Command {
	cmd := group("token", "Let operators in, and out", newTokenListCommand(g), newTokenAddCommand(g), newTokenRemoveCommand(g))
	cmd.Aliases = []string{"user"}
	return cmd
}

// operator is a line of the token file.
type operator struct {
	Name string `json:"name"`
	Role string `json:"role"`
	By   string `json:"by"` // "token" or "certificate"
}

func readOperators(c *config.Config) (text []byte, ops []operator, err error) {
	if text, err = os.ReadFile(c.Tokens); err != nil {
		return nil, nil, fmt.Errorf("operators' tokens: %w", err)
	}
	if _, err := server.ParseTokens(text); err != nil {
		return nil, nil, err
	}
	for line := range strings.Lines(string(text)) {
		if f := strings.Fields(line); len(f) == 3 && !strings.HasPrefix(f[0], "#") {
			by := "token"
			if strings.HasPrefix(f[2], "cert:") {
				by = "certificate"
			}
			ops = append(ops, operator{f[0], f[1], by})
		}
	}
	return text, ops, nil
}

const tokenWhere = "Run it on the server: the token file belongs to it, and holds hashes only. Where several\nservers share a fleet, give each the same file.\n"

func newTokenListCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List operators and their roles",
		Long: "Lists who has a token or a client certificate, and what it allows: a viewer looks, an operator acts, an admin also\nclears TPMs. " + tokenWhere + exitCodes,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.load()
			if err != nil {
				return err
			}
			_, ops, err := readOperators(c)
			if err != nil {
				return err
			}
			return g.print(cmd, ops, func(t *tabwriter.Writer) {
				row(t, "NAME", "ROLE", "BY")
				for _, o := range ops {
					row(t, o.Name, o.Role, o.By)
				}
			})
		},
	}
}

// operatorName is what an operator may be called: it stands in events.
var operatorName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9._@-]{0,63}$`)

func newTokenAddCommand(g *globals) *cobra.Command {
	var role, file, own string
	var asCert bool
	var life time.Duration
	cmd := &cobra.Command{
		Use: "add NAME", Short: "Make a token or a client certificate for an operator",
		Long: `Makes a token, writes its hash into the token file, and prints it once, or writes
it to --file. A running server takes it in on reload (systemctl reload pxeserver,
or SIGHUP). Events name who did what as operator:NAME.

--certificate makes a key and a client certificate instead, in one PEM file for
commands' --client-cert; it ends by itself after --life. --use-certificate takes
one that the operator has, of any CA: only its public key is written down, the
private one may stay in a token or a smart card.
` + tokenWhere + exitCodes,
		Example: "  pxeserver token add alice --role operator --file alice.token\n  pxeserver token add bob --role operator --certificate --file bob.pem",
		Args:    cli.OneArg("the operator's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !operatorName.MatchString(args[0]) {
				return cli.Usagef(cmd, "name %q: want letters, digits and . _ @ -", args[0])
			}
			if !slices.Contains([]string{"viewer", "operator", "admin"}, role) {
				return cli.Usagef(cmd, "--role %q: want viewer, operator or admin", role)
			}
			if asCert && file == "" || asCert && own != "" || own != "" && file != "" {
				return cli.Usagef(cmd, "want --certificate with --file for what is made, or --use-certificate alone")
			}
			if life <= 0 {
				return cli.Usagef(cmd, "--life %s: want more than nothing", life)
			}
			c, err := g.load()
			if err != nil {
				return err
			}
			return addToken(cmd, c, args[0], file, func() (string, string, error) {
				switch {
				case asCert:
					pair, line, err := server.NewCertificate(args[0], role, time.Now(), life)
					return string(pair), line, err
				case own != "":
					b, err := os.ReadFile(own)
					if err != nil {
						return "", "", err
					}
					line, err := server.CertificateLine(args[0], role, b)
					return "", line, err
				}
				token, line := server.NewToken(args[0], role)
				return token + "\n", line, nil
			})
		},
	}
	cmd.Flags().StringVar(&role, "role", "viewer", "viewer (looks), operator (acts) or admin (also clears TPMs)")
	cmd.Flags().StringVar(&file, "file", "", "write the token, or the certificate with its key, to this new file, mode 0600")
	cmd.Flags().BoolVar(&asCert, "certificate", false, "make a client certificate rather than a token")
	cmd.Flags().DurationVar(&life, "life", 365*24*time.Hour, "how long that certificate is good")
	cmd.Flags().StringVar(&own, "use-certificate", "", "let in who has the key of this certificate (PEM)")
	must(cmd.RegisterFlagCompletionFunc("role", cobra.FixedCompletions([]string{"viewer", "operator", "admin"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

// addToken lets an operator in by what make returns: what to hand over ("" for
// nothing), and its line.
func addToken(cmd *cobra.Command, c *config.Config, name, file string, make func() (secret, line string, err error)) error {
	text, ops, err := readOperators(c)
	if err != nil {
		return err
	}
	if slices.ContainsFunc(ops, func(o operator) bool { return o.Name == name }) {
		return refusedf("%s has a token or a certificate already; take it away first: pxeserver token remove %s", name, name)
	}
	secret, line, err := make()
	if err != nil {
		return err
	}
	if file != "" {
		f, err := os.OpenFile(file, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if err != nil {
			return err
		}
		if _, err := f.WriteString(secret); err != nil {
			f.Close()
			return err
		}
		if err := f.Close(); err != nil {
			return err
		}
	}
	if len(text) > 0 && !bytes.HasSuffix(text, []byte("\n")) {
		text = append(text, '\n')
	}
	if err := writeTokens(c, append(text, line...)); err != nil {
		return err
	}
	if file == "" {
		fmt.Fprint(cmd.OutOrStdout(), secret)
	}
	fmt.Fprintf(cmd.ErrOrStderr(), "%s is let in as %s once the server has reloaded\n", name, strings.Fields(line)[1])
	return nil
}

// writeTokens replaces the token file, which keeps its owner and mode.
func writeTokens(c *config.Config, text []byte) error {
	if err := renameio.WriteFile(c.Tokens, text, 0o600, renameio.WithExistingPermissions()); err != nil {
		return fmt.Errorf("operators' tokens: %w", err)
	}
	return keepOwner(c)
}

func newTokenRemoveCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "remove NAME", Aliases: []string{"rm", "revoke"}, Short: "Take an operator's token or certificate away",
		Long:    "Takes an operator's token or certificate, and the console sessions that it opened, away once the server has\nreloaded. " + tokenWhere + exitCodes,
		Example: "  pxeserver token remove alice",
		Args:    cli.OneArg("the operator's name"),
		ValidArgsFunction: func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective) {
			var out []string
			if c, err := g.load(); err == nil {
				_, ops, _ := readOperators(c) //nolint:errcheck // then there is nothing to complete
				for _, o := range ops {
					out = append(out, o.Name+"\t"+o.Role)
				}
			}
			return out, cobra.ShellCompDirectiveNoFileComp
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.load()
			if err != nil {
				return err
			}
			text, _, err := readOperators(c)
			if err != nil {
				return err
			}
			var kept []byte
			for line := range strings.Lines(string(text)) {
				if f := strings.Fields(line); len(f) != 3 || f[0] != args[0] {
					kept = append(kept, line...)
				}
			}
			if len(kept) == len(text) {
				return fmt.Errorf("nobody is called %q; see pxeserver token list", args[0])
			}
			if err := writeTokens(c, kept); err != nil {
				return err
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "%s is out once the server has reloaded\n", args[0])
			return nil
		},
	}
}
