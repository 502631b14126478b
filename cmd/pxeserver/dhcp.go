package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/netboot"
	"github.com/turnout-project/turnout/internal/pause"
)

func newDHCPCommand(g *globals) *cobra.Command {
	return group("dhcp", "Look at the DHCP server", newDHCPTraceCommand(g))
}

type traceOptions struct {
	mac, pcap string
	count     int
}

func newDHCPTraceCommand(g *globals) *cobra.Command {
	o := &traceOptions{}
	cmd := &cobra.Command{
		Use: "trace", Short: "Watch who asks the DHCP server what, gets what, and why",
		Long: `Shows every DHCP packet that reaches the server as it comes: who asked, what the
answer was and how it went, or why there was none. With --pcap packets and
answers are written to a file for Wireshark, too; their IP headers are made up
from the addresses. Ctrl-C ends it; a server that restarts is waited for.
` + exitCodes,
		Example: "  pxeserver dhcp trace\n  pxeserver dhcp trace --mac 52:54:00:12:34:56 --pcap n7.pcap",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			return runTrace(cmd, g, c, o)
		},
	}
	cmd.Flags().StringVar(&o.mac, "mac", "", "only of this machine")
	cmd.Flags().StringVar(&o.pcap, "pcap", "", "capture file to write")
	cmd.Flags().IntVar(&o.count, "count", 0, "end after so many packets; 0: go on")
	return cmd
}

func runTrace(cmd *cobra.Command, g *globals, c *api.Client, o *traceOptions) error {
	var capture *os.File
	if o.pcap != "" {
		f, err := os.OpenFile(o.pcap, os.O_CREATE|os.O_EXCL|os.O_WRONLY, 0o600)
		if errors.Is(err, os.ErrExist) {
			return refusedf("%s is there already; captures are not overwritten", o.pcap)
		}
		if err != nil {
			return err
		}
		defer f.Close()
		if err := netboot.PcapHeader(f); err != nil {
			return err
		}
		capture = f
	}
	seen := 0
	take := func(t api.BootTrace) error {
		if err := showTrace(cmd, g, t); err != nil {
			return err
		}
		if capture != nil {
			n := netboot.Trace{At: t.At, From: t.From, To: t.To, ReplyFrom: t.ReplyFrom, ReplyTo: t.ReplyTo, Request: t.Request, Reply: t.Reply}
			if err := n.Pcap(capture); err != nil {
				return err
			}
		}
		if seen++; seen == o.count {
			return errEnough
		}
		return nil
	}
	for {
		err := c.TraceBoot(cmd.Context(), o.mac, take)
		switch {
		case errors.Is(err, errEnough), cmd.Context().Err() != nil:
			return nil // told to stop
		case !errors.Is(err, api.ErrUnreachable) && api.StatusOf(err) < 500:
			return err
		}
		fmt.Fprintln(cmd.ErrOrStderr(), "pxeserver: "+err.Error()+"; trying again")
		if pause.For(cmd.Context(), time.Second) != nil {
			return nil // told to stop
		}
	}
}

func showTrace(cmd *cobra.Command, g *globals, t api.BootTrace) error {
	if g.output == "json" {
		return json.NewEncoder(cmd.OutOrStdout()).Encode(t)
	}
	_, err := fmt.Fprintln(cmd.OutOrStdout(), t.Text)
	return err
}

func newExplainCommand(g *globals) *cobra.Command {
	var q api.BootQuery
	cmd := &cobra.Command{
		Use: "explain", Short: "Say what a machine would be given to boot, and why",
		Long: `Asks the server what it would answer to a machine that boots from the network,
and why, without a packet and without counting it. The machine need not be
known.
` + exitCodes,
		Example: "  pxeserver explain --mac 52:54:00:12:34:56\n  pxeserver explain --mac 52:54:00:12:34:56 --arch arm64 --kind uefi-http",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if q.MAC == "" {
				return cli.Usagef(cmd, "say which machine: --mac 52:54:00:12:34:56")
			}
			c, err := g.client()
			if err != nil {
				return err
			}
			x, err := c.ExplainBoot(cmd.Context(), q)
			if err != nil {
				return err
			}
			return g.print(cmd, x, func(t *tabwriter.Writer) { showExplanation(t, x) })
		},
	}
	f := cmd.Flags()
	f.StringVar(&q.MAC, "mac", "", "its hardware address (needed)")
	f.StringVar(&q.Arch, "arch", "x64", "x64, arm64, bios, or a number of DHCP option 93")
	f.StringVar(&q.Kind, "kind", "", "which software asks: uefi-pxe, uefi-http, ipxe, u-boot, bios, nodeagent or os; none: UEFI or BIOS firmware that boots by PXE")
	f.StringVar(&q.Relay, "relay", "", "address of the DHCP relay it is behind")
	must(cmd.RegisterFlagCompletionFunc("arch", cobra.FixedCompletions([]string{"x64", "arm64", "bios"}, cobra.ShellCompDirectiveNoFileComp)))
	must(cmd.RegisterFlagCompletionFunc("kind", cobra.FixedCompletions([]string{"uefi-pxe", "uefi-http", "ipxe", "u-boot", "bios", "nodeagent", "os"}, cobra.ShellCompDirectiveNoFileComp)))
	return cmd
}

func showExplanation(t *tabwriter.Writer, x *api.BootExplanation) {
	row(t, "answer", x.Answer)
	row(t, "because", x.Why)
	row(t, "node", x.Node)
	if x.Silent {
		row(t, "DHCP", "would not answer it")
		return
	}
	if x.Download != "" {
		row(t, "loads", fmt.Sprintf("%s (%d bytes)", x.Download, x.Size))
		row(t, "reply", "profile "+or(x.Profile, "auto"))
	}
	keys := make([]string, 0, len(x.Reply))
	for k := range x.Reply {
		keys = append(keys, k)
	}
	slices.Sort(keys)
	for _, k := range keys {
		row(t, "  "+k, strings.TrimSpace(x.Reply[k]))
	}
}
