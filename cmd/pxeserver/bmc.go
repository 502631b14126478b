package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

func newBMCCommand(g *globals) *cobra.Command {
	return group("bmc", "Make BMCs known and ask them",
		newBMCSetCommand(g), newBMCListCommand(g), newBMCShowCommand(g), newBMCRemoveCommand(g),
		newBMCInventoryCommand(g), newBMCFirmwareCommand(g), newBMCSensorsCommand(g), newBMCBootCommand(g), newBMCUpdateCommand(g))
}

func newBMCSetCommand(g *globals) *cobra.Command {
	var r api.BMCRequest
	var passwordFile, caFile string
	cmd := &cobra.Command{
		Use: "set NODE", Short: "Say how a node's BMC is reached",
		Long: `Makes known the Redfish address of a node's BMC, a user and a password. The password is
read from --password-file, or a line of standard input; the server keeps it encrypted and shows it
to nobody. What is left out stays as it was.

The BMC is known by the SHA-256 of its certificate (--pin), or by a CA (--bmc-ca). Leave both out
the first time: the refusal names the certificate that the BMC showed. Compare it with what the
BMC itself shows before you pin it.

The server logs in to try the settings, and refuses a BMC that looks after another machine than
the node, as far as UUID, serial number or MAC addresses tell. Needs an admin's token.

  pxeserver bmc set n1 --address 10.0.9.1 --user turnout --password-file bmc.pw
  pxeserver bmc set n1 --address 10.0.9.1 --user turnout --password-file bmc.pw --pin 4f1c…
` + exitCodes,
		Args: cli.OneArg("a node"), ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			if r.Password, err = readPassword(cmd, passwordFile, r.URL != "" || r.User != ""); err != nil {
				return err
			}
			if caFile != "" {
				b, err := os.ReadFile(caFile)
				if err != nil {
					return &statusError{exitUsage, fmt.Sprintf("--bmc-ca: %v", err)}
				}
				r.CA = string(b)
			}
			b, err := c.SetBMC(cmd.Context(), args[0], r)
			if err != nil {
				return err
			}
			return g.print(cmd, b, func(t *tabwriter.Writer) { showBMC(t, b) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&r.URL, "address", "", "address of the BMC: HOST, HOST:PORT or an https URL")
	f.StringVar(&r.User, "user", "", "user on the BMC; one with the role Operator will do, Administrator for updates")
	f.StringVar(&passwordFile, "password-file", "", "file with the password; - is standard input")
	f.StringVar(&r.Pin, "pin", "", "SHA-256 of the BMC's certificate, 64 hex digits")
	f.StringVar(&caFile, "bmc-ca", "", "CA of the BMC's certificate, PEM, in place of --pin")
	f.StringVar(&r.System, "system", "", "Redfish ID of the machine, where the BMC has several")
	f.BoolVar(&r.NoCheck, "no-check", false, "do not speak to the BMC now")
	return cmd
}

// readPassword reads one line. It asks only if a new BMC is likely.
func readPassword(cmd *cobra.Command, file string, isNew bool) (string, error) {
	switch {
	case file == "" && !isNew:
		return "", nil
	case file == "":
		return "", cli.Usagef(cmd, "give the password with --password-file (- is standard input)")
	case file == "-":
		line, err := bufio.NewReader(cmd.InOrStdin()).ReadString('\n')
		if err != nil && line == "" {
			return "", &statusError{exitUsage, "no password on standard input"}
		}
		return strings.TrimRight(line, "\r\n"), nil
	}
	b, err := os.ReadFile(file)
	if err != nil {
		return "", &statusError{exitUsage, fmt.Sprintf("--password-file: %v", err)}
	}
	return strings.TrimRight(string(b), "\r\n"), nil
}

func showBMC(t *tabwriter.Writer, b *api.BMC) {
	row(t, "node", b.Node)
	row(t, "address", b.URL)
	row(t, "user", b.User)
	how := "pinned " + b.Pin
	if b.Pin == "" {
		how = "by a CA"
	}
	row(t, "certificate", how)
	row(t, "system", or(b.System, "the only one"))
}

func newBMCListCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List the nodes whose BMC is known",
		Long: "Lists by node how BMCs are reached. Passwords are never shown.\n" + exitCodes,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			all, err := c.BMCs(cmd.Context())
			if err != nil {
				return err
			}
			return g.print(cmd, all, func(t *tabwriter.Writer) {
				row(t, "NODE", "ADDRESS", "USER", "SYSTEM")
				for _, b := range all {
					row(t, b.Node, b.URL, b.User, b.System)
				}
			})
		},
	}
}

// ofNode makes a command that asks about one node and shows the answer.
func ofNode[T any](g *globals, use, short, long string, ask func(c *api.Client, cmd *cobra.Command, node string) (T, error), table func(t *tabwriter.Writer, v T)) *cobra.Command {
	return &cobra.Command{
		Use: use + " NODE", Short: short, Long: long + "\n\n  pxeserver bmc " + use + " n1\n" + exitCodes,
		Args: cli.OneArg("a node"), ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			v, err := ask(c, cmd, args[0])
			if err != nil {
				return err
			}
			return g.print(cmd, v, func(t *tabwriter.Writer) { table(t, v) })
		},
	}
}

func newBMCShowCommand(g *globals) *cobra.Command {
	return ofNode(g, "show", "Show how a node's BMC is reached", "Shows address, user and how the certificate is known. The password is never shown.",
		func(c *api.Client, cmd *cobra.Command, node string) (*api.BMC, error) {
			return c.BMC(cmd.Context(), node)
		}, showBMC)
}

func newBMCRemoveCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "remove NODE", Short: "Forget a node's BMC and its password",
		Long: "Forgets how the BMC is reached, with the password. Needs an admin's token.\n" + exitCodes,
		Args: cli.OneArg("a node"), ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			return c.RemoveBMC(cmd.Context(), args[0])
		},
	}
}

func newBMCInventoryCommand(g *globals) *cobra.Command {
	return ofNode(g, "inventory", "Show what a machine is, in its BMC's words", "Asks the BMC, which answers while the machine is off, too.",
		func(c *api.Client, cmd *cobra.Command, node string) (*fleet.Machine, error) {
			return c.Machine(cmd.Context(), node)
		},
		func(t *tabwriter.Writer, m *fleet.Machine) {
			row(t, "machine", strings.TrimSpace(m.Vendor+" "+m.Model))
			row(t, "serial", m.Serial)
			row(t, "UUID", m.UUID)
			row(t, "power", m.Power)
			row(t, "health", m.Health)
			row(t, "BIOS", m.BIOSVersion)
			row(t, "BMC", strings.TrimSpace(m.BMC.Model+" "+m.BMC.Firmware)+", Redfish "+m.BMC.Redfish)
			row(t, "memory", fmt.Sprintf("%g GiB", m.MemoryGiB))
			for _, p := range m.Processors {
				row(t, p.Kind, strings.TrimSuffix(p.ID+": "+p.Model+", "+p.Health, ", "))
			}
			for _, mac := range m.MACs {
				row(t, "MAC", string(mac))
			}
			row(t, "allowed for", strings.Join(m.Quirks, ", "))
		})
}

func newBMCFirmwareCommand(g *globals) *cobra.Command {
	return ofNode(g, "firmware", "Show the versions of a node's firmware", "Asks the BMC for its firmware inventory: BIOS, BMC, NICs, GPUs, as far as it knows them.",
		func(c *api.Client, cmd *cobra.Command, node string) ([]fleet.Firmware, error) {
			return c.Firmware(cmd.Context(), node)
		},
		func(t *tabwriter.Writer, fw []fleet.Firmware) {
			row(t, "ID", "NAME", "VERSION", "UPDATE")
			for _, f := range fw {
				can := ""
				if f.Updateable {
					can = "by Redfish"
				}
				row(t, f.ID, f.Name, f.Version, can)
			}
		})
}

func newBMCSensorsCommand(g *globals) *cobra.Command {
	return ofNode(g, "sensors", "Show the sensors of a node", "Asks the BMC for temperatures, fans, power and voltages.",
		func(c *api.Client, cmd *cobra.Command, node string) ([]fleet.Sensor, error) {
			return c.Sensors(cmd.Context(), node)
		},
		func(t *tabwriter.Writer, all []fleet.Sensor) {
			row(t, "KIND", "SENSOR", "READING", "CRITICAL", "HEALTH")
			for _, s := range all {
				critical := ""
				if s.Critical != nil {
					critical = fmt.Sprintf("%g %s", *s.Critical, s.Unit)
				}
				row(t, s.Kind, s.Name, strings.TrimSpace(fmt.Sprintf("%g %s", s.Reading, s.Unit)), critical, s.Health)
			}
		})
}

func newBMCBootCommand(g *globals) *cobra.Command {
	targets := []string{string(fleet.BootPXE), string(fleet.BootHTTP), string(fleet.BootDisk), string(fleet.BootNone)}
	return &cobra.Command{
		Use: "boot NODE pxe|http|disk|none", Short: "Set what a node boots next time, once",
		Long: `Sets the boot override of the node's BMC for one boot; none takes it back. The node is not
restarted: see ` + "`pxeserver power cycle`" + `.

  pxeserver bmc boot n1 pxe && pxeserver power cycle n1
` + exitCodes,
		Args: func(cmd *cobra.Command, args []string) error {
			if len(args) != 2 {
				return cli.Usagef(cmd, "want a node and one of %s", strings.Join(targets, ", "))
			}
			return nil
		},
		ValidArgsFunction: func(cmd *cobra.Command, args []string, more string) ([]string, cobra.ShellCompDirective) {
			if len(args) == 1 {
				return targets, cobra.ShellCompDirectiveNoFileComp
			}
			return g.completeNodes(cmd, args, more)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			return c.BootOnce(cmd.Context(), args[0], fleet.BootTarget(args[1]))
		},
	}
}
