package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

func newNodeCommand(g *globals) *cobra.Command {
	return group("node", "Look at nodes, let them in, leave them alone",
		newNodeListCommand(g), newNodeShowCommand(g), newNodeConsoleCommand(g), newNodeAddCommand(g), newNodeImportCommand(g), newNodeApproveCommand(g),
		newNodeCordonCommand(g), newNodeUncordonCommand(g), newNodeUnbanCommand(g), newNodeDomainCommand(g), newNodeLabelCommand(g), newNodeRevokeCommand(g), newNodeClearTPMCommand(g), newNodeRemoveCommand(g), newNodeReportCommand(g))
}

func newNodeListCommand(g *globals) *cobra.Command {
	var pool, state, selector string
	cmd := &cobra.Command{
		Use: "list", Aliases: []string{"ls"}, Short: "List nodes",
		Long: "Lists nodes by name: standing, slot and image, health, attestation in this boot, and\nwhen each was last heard of.\n" + exitCodes,
		Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			sel, err := selectorOf(cmd, selector)
			if err != nil {
				return err
			}
			c, err := g.client()
			if err != nil {
				return err
			}
			nodes, err := c.Nodes(cmd.Context())
			if err != nil {
				return err
			}
			nodes = slices.DeleteFunc(nodes, func(n fleet.Node) bool {
				return !sel.Matches(n.Labels) || pool != "" && n.Pool != pool || state != "" && string(n.State) != state
			})
			ns := imageNames(cmd, c)
			return g.print(cmd, nodes, func(t *tabwriter.Writer) {
				head := []string{"NAME", "POOL", "STATE", "SLOT", "IMAGE", "HEALTH", "ATTESTED", "ACTIVITY", "SEEN"}
				if g.isWide() {
					head = append(head, "OTHER SLOT", "WANTED", "KERNEL", "DRIVER", "DOMAIN", "LABELS", "MODEL", "MACS")
				}
				row(t, head...)
				for i := range nodes {
					n := &nodes[i]
					slot, image, activity := "", "", ""
					if r := n.Reported; r != nil {
						activity = r.Activity
						if r.Booted != fleet.NoSlot {
							s := r.Slot(r.Booted)
							slot, image = string(r.Booted)+" "+string(s.State), or(ns.of(s.Image), s.Name)
						}
					}
					cells := []string{n.Name, n.Pool, string(n.State), slot, image, health(n.Reported), attested(n), activity, age(n.LastSeen)}
					if g.isWide() {
						cells = append(cells, wideCells(n, ns)...)
					}
					row(t, cells...)
				}
			})
		},
	}
	cmd.Flags().StringVar(&pool, "pool", "", "only nodes of this pool")
	selectorFlag(cmd, &selector, "only nodes")
	cmd.Flags().StringVar(&state, "state", "", "only nodes in this state: pending, approved, cordoned, quarantined")
	must(cmd.RegisterFlagCompletionFunc("pool", g.completePools))
	return cmd
}

// wideCells are a node's cells that only a wide table has.
func wideCells(n *fleet.Node, ns names) []string {
	macs := make([]string, len(n.MACs))
	for i, m := range n.MACs {
		macs[i] = string(m)
	}
	other, kernel, driver, model := "", "", "", ""
	if r := n.Reported; r != nil {
		kernel, driver = r.Kernel, r.Versions["driver"]
		if r.Booted != fleet.NoSlot {
			s := r.Slot(r.Booted.Other())
			other = string(s.State) + " " + or(ns.of(s.Image), s.Name)
		}
		if i := r.Inventory; i != nil {
			model = strings.TrimSpace(i.Vendor + " " + i.Product)
		}
	}
	return []string{strings.TrimSpace(other), ns.of(n.Desired.Image), kernel, driver, n.Domain, fleet.LabelText(n.Labels), model, strings.Join(macs, " ")}
}

func newNodeShowCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "show NODE", Short: "Show everything about a node",
		Long: "Shows a node: identity, what is wanted of it, its slots, its checks, its attestation, the\nimages that are banned on it, and its inventory.\n" + exitCodes,
		Args: cli.OneArg("a node"), ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			n, err := c.Node(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			ns := imageNames(cmd, c)
			return g.print(cmd, n, func(t *tabwriter.Writer) { showNode(t, n, ns) })
		},
	}
}

func showNode(t *tabwriter.Writer, n *fleet.Node, ns names) {
	macs := make([]string, len(n.MACs))
	for i, m := range n.MACs {
		macs[i] = string(m)
	}
	row(t, "name", n.Name)
	row(t, "pool", n.Pool)
	row(t, "state", strings.TrimSuffix(string(n.State)+": "+n.Reason, ": "))
	row(t, "MACs", strings.Join(macs, " "))
	if len(n.Labels) > 0 {
		row(t, "labels", fleet.LabelText(n.Labels))
	}
	row(t, "TPM", n.EKHash)
	row(t, "last seen", ago(n.LastSeen))
	if d := n.Desired; d.Image != "" {
		how := ""
		if d.Reinstall {
			how = ", written anew"
		}
		row(t, "wanted", fmt.Sprintf("%s, generation %d%s: %s", ns.of(d.Image), d.Generation, how, d.Reason))
	}
	if r := n.Reported; r != nil {
		showReport(t, r, ns)
	}
	if v := n.Verdict; v != nil {
		row(t, "attestation", attested(n)+", "+ago(v.At)+": "+v.Summary)
	}
	if !n.Verified.IsZero() {
		row(t, "last verified", ago(n.Verified))
	}
	if n.Failure != nil {
		row(t, "last failure", fmt.Sprintf("%s, generation %d, %s: %s", ns.of(n.Failure.Image), n.Failure.Generation, ago(n.Failure.At), n.Failure))
	}
	for _, b := range n.Banned {
		row(t, "banned", ns.of(b.Image)+", "+ago(b.At)+": "+b.Reason)
	}
}

func showReport(t *tabwriter.Writer, r *fleet.Report, ns names) {
	booted := string(r.Stage)
	if r.Booted != fleet.NoSlot {
		booted = "slot " + string(r.Booted) + " from " + or(r.BootPath, "?") + ", kernel " + or(r.Kernel, "?") + ", boot " + r.BootID
	}
	row(t, "runs", booted)
	row(t, "does", r.Activity)
	for _, s := range r.Slots {
		row(t, "slot "+string(s.Slot), slotText(s, ns))
	}
	row(t, "health", health(r))
	for _, c := range r.Health {
		row(t, "  "+c.Name, strings.TrimSuffix(fmt.Sprintf("%s (%s): %s", c.Status, c.Class, c.Detail), ": "))
	}
	if i := r.Inventory; i != nil {
		row(t, "machine", strings.TrimSpace(i.Vendor+" "+i.Product+" "+i.Serial))
		row(t, "BIOS", i.BIOSVersion)
		row(t, "CPU", fmt.Sprintf("%s, %d CPUs, %d GiB", i.CPU, i.CPUs, i.MemoryBytes>>30))
		row(t, "TPM chip", i.TPM)
		for _, d := range i.Disks {
			row(t, "disk "+d.Name, fmt.Sprintf("%s %s, %d GB", d.Model, d.Serial, d.SizeBytes/1e9))
		}
		for _, d := range i.NICs {
			row(t, "NIC "+d.Name, string(d.MAC)+" "+d.Driver)
		}
	}
}

func newNodeAddCommand(g *globals) *cobra.Command {
	var r api.NodeRequest
	var labels []string
	cmd := &cobra.Command{
		Use: "add NODE", Short: "Make a node known before it is seen",
		Long:    "Adds a node by its MAC addresses, approved at once. The first TPM that enrols with one of\nthem is bound to it; any other is refused from then on.\n" + exitCodes,
		Example: "  pxeserver node add n7 --pool rack --mac 52:54:00:12:34:56",
		Args:    cli.OneArg("the new node's name"),
		RunE: func(cmd *cobra.Command, args []string) error {
			var err error
			if r.Labels, err = fleet.ParseLabels(labels); err != nil {
				return cli.Usagef(cmd, "--label: %v", err)
			}
			c, err := g.client()
			if err != nil {
				return err
			}
			r.Name = args[0]
			n, err := c.AddNode(cmd.Context(), r)
			return g.done(cmd, n, err, "node %s added", args[0])
		},
	}
	cmd.Flags().StringVar(&r.Pool, "pool", "default", "pool of the node")
	cmd.Flags().StringArrayVar(&labels, "label", nil, "KEY=VALUE, see node label (repeat)")
	cmd.Flags().StringArrayVar(&r.MACs, "mac", nil, "MAC address, in any spelling (repeat)")
	must(cmd.RegisterFlagCompletionFunc("pool", g.completePools))
	return cmd
}

func newNodeApproveCommand(g *globals) *cobra.Command {
	var r api.NodeRequest
	cmd := &cobra.Command{
		Use: "approve NODE", Short: "Let a pending node in",
		Long:    "Approves a node that waits, optionally under a new name and in another pool. It goes on by\nitself: enrols with the TPM it has shown, and installs its pool's image.\n" + exitCodes,
		Example: "  pxeserver node approve new-3f2a9c01 --name n1 --pool rack",
		Args:    cli.OneArg("a node"), ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.act(cmd, args, "approve", r, "node %s approved")
		},
	}
	cmd.Flags().StringVar(&r.Name, "name", "", "new name")
	cmd.Flags().StringVar(&r.Pool, "pool", "", "pool; none: the one it is in")
	must(cmd.RegisterFlagCompletionFunc("pool", g.completePools))
	return cmd
}

func newNodeCordonCommand(g *globals) *cobra.Command {
	var r api.NodeRequest
	cmd := &cobra.Command{
		Use: "cordon NODE…", Short: "Have rollouts leave nodes alone",
		Long: "Cordons nodes: rollouts skip them. What runs goes on.\n" + exitCodes,
		Args: cli.SomeArgs("a node"), ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.act(cmd, args, "cordon", r, "node %s cordoned")
		},
	}
	cmd.Flags().StringVar(&r.Reason, "reason", "", "why, for the history")
	return cmd
}

func newNodeUncordonCommand(g *globals) *cobra.Command {
	return &cobra.Command{
		Use: "uncordon NODE…", Short: "Take cordon or quarantine back",
		Long: "Makes cordoned or quarantined nodes take part in rollouts again.\n" + exitCodes,
		Args: cli.SomeArgs("a node"), ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.act(cmd, args, "uncordon", api.NodeRequest{}, "node %s takes part again")
		},
	}
}

func newNodeUnbanCommand(g *globals) *cobra.Command {
	var r api.NodeRequest
	cmd := &cobra.Command{
		Use: "unban NODE…", Short: "Allow an image that failed on a node again",
		Long: "An image that failed on a node is banned there: it is not sent again until someone says\nso. This is how.\n" + exitCodes,
		Args: cli.SomeArgs("a node"), ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			return g.act(cmd, args, "unban", r, "node %s: ban lifted")
		},
	}
	cmd.Flags().StringVar(&r.Image, "image", "", "image; none: all that are banned there")
	must(cmd.RegisterFlagCompletionFunc("image", g.completeImages))
	return cmd
}

func newNodeClearTPMCommand(g *globals) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "clear-tpm NODE", Short: "Forget a node's TPM, after its board was replaced",
		Long: "Forgets which TPM a node has. Its certificate is worth nothing from now on, and the next\nTPM that enrols with one of the node's MAC addresses becomes the node's. Needs role admin.\n" + exitCodes,
		Args: cli.OneArg("a node"), ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := confirm(cmd, yes, "The next TPM that shows a MAC address of "+args[0]+" becomes "+args[0]+"."); err != nil {
				return err
			}
			return g.act(cmd, args, "cleartpm", api.NodeRequest{}, "node %s: TPM forgotten")
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func newNodeRemoveCommand(g *globals) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "remove NODE…", Aliases: []string{"rm"}, Short: "Forget nodes",
		Long: "Forgets nodes and their TPMs. A machine that is still there is discovered anew, pending. A\nnode that is removed while a rollout moves it counts as failed there.\n" + exitCodes,
		Args: cli.SomeArgs("a node"), ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			if err := confirm(cmd, yes, "Forget "+strings.Join(args, ", ")+"?"); err != nil {
				return err
			}
			for _, a := range args {
				if err := c.RemoveNode(cmd.Context(), a); err != nil {
					return err
				}
				fmt.Fprintf(cmd.OutOrStdout(), "node %s removed\n", a)
			}
			return nil
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	return cmd
}

func newReimageCommand(g *globals) *cobra.Command {
	var yes bool
	var r api.NodeRequest
	cmd := &cobra.Command{
		Use: "reimage NODE…", Short: "Write an image anew",
		Long: `Asks nodes to write an image anew, their pool's or the one named.

A node that runs writes its other slot, tries it, and confirms it or falls
back, as in a rollout. A node that boots the network, because its disk is lost
or its BMC was told to, gets the installer and is set up from nothing: what is on its disk is erased,
even if others left it there. The installer tells what that was
(pxeserver events, install.disk). --disk names one of several disks.
` + exitCodes,
		Args: cli.SomeArgs("a node"), ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			if err := confirm(cmd, yes, "Write an image anew on "+strings.Join(args, ", ")+"?"); err != nil {
				return err
			}
			return g.act(cmd, args, "reimage", r, "node %s will be written anew")
		},
	}
	cmd.Flags().BoolVar(&r.Retry, "retry", false, "although the image is banned on the node: your word that it may work now")
	cmd.Flags().StringVar(&r.Image, "image", "", `image: digest, its first digits, or "name version"; none: the pool's`)
	cmd.Flags().StringVar(&r.Disk, "disk", "", "pattern of the disk: its name (nvme0n1), serial number, or name below /dev/disk/by-id")
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	must(cmd.RegisterFlagCompletionFunc("image", g.completeImages))
	return cmd
}

// act does one thing to each node. It stops at the first that is refused.
func (g *globals) act(cmd *cobra.Command, nodes []string, act string, r api.NodeRequest, said string) error {
	c, err := g.client()
	if err != nil {
		return err
	}
	return g.each(cmd.Context(), nodes, func(ctx context.Context, name string) error {
		n, err := c.NodeAct(ctx, name, act, r)
		if n != nil && err == nil {
			name = n.Name
		}
		return g.done(cmd, n, err, said, name)
	})
}

func (g *globals) each(ctx context.Context, names []string, fn func(context.Context, string) error) error {
	for _, n := range names {
		if err := fn(ctx, n); err != nil {
			return err
		}
	}
	return nil
}

// done says that something was done, or writes what came of it as JSON.
func (g *globals) done(cmd *cobra.Command, v any, err error, said string, args ...any) error {
	if err != nil {
		return err
	}
	return g.print(cmd, v, func(t *tabwriter.Writer) { fmt.Fprintf(t, said+"\n", args...) })
}
