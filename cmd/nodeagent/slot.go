//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/node"
	"github.com/turnout-project/turnout/internal/node/bootinfo"
)

func newSlotCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "slot",
		Short: "Look at this node's slots, flip it, confirm a slot: for a technician at the console",
		Long: `slot is for the technician at a node's console, with or without a server. What it
does is told to the server when there is one.

` + exitCodes,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newSlotStatusCommand(), newSlotFlipCommand(), newSlotConfirmCommand(), newSlotLogCommand())
	return cmd
}

// outputFlag adds -o to a command that prints data.
func outputFlag(cmd *cobra.Command) *string {
	return cmd.Flags().StringP("output", "o", "table", "table or json")
}

// printed writes v as JSON, or lets table write it for people.
func printed(w io.Writer, output string, v any, table func(w io.Writer) error) error {
	switch output {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", " ")
		return e.Encode(v)
	case "table":
		return table(w)
	}
	return usageError{fmt.Errorf("--output %q: want table or json", output)}
}

func newSlotStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "status", Example: "  nodeagent slot status -o json", Short: "Show the slots and what the agent is doing (as `nodeagent status`)",
		Long: "status reads the slots from the disk. It changes nothing and needs no server.\n\n" + exitCodes,
		Args: noArgs,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return status(cmd.Context(), cmd.OutOrStdout(), *output)
	}
	return cmd
}

func newSlotFlipCommand() *cobra.Command {
	var reason string
	var stay bool
	cmd := &cobra.Command{
		Use: "flip", Short: "Boot the other, confirmed slot",
		Long: `flip boots the other slot, which must be confirmed; needs root, and no server. The
slot that runs now is not touched, and is gone back to when the other one does
not come up. After the reboot the other slot is on trial until it is confirmed:
by the agent when checks and attestation pass, without a server by ` + "`nodeagent\nslot confirm`" + `, or by itself if the image allows that (health.confirm_offline).

The machine reboots at once. Where the agent's service does not run, --stay
leaves the reboot to you.

` + exitCodes,
		Example: "  nodeagent slot flip --reason \"GPU 3 hangs since the update\"",
		Args:    noArgs,
	}
	cmd.Flags().StringVar(&reason, "reason", "no reason given", "why, for the history")
	cmd.Flags().BoolVar(&stay, "stay", false, "do not reboot, where the service does not do it")
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, err := node.Orders{Socket: node.OrderSocket}.Flip(cmd.Context(), node.FlipOrder{Reason: reason})
		alone := errors.Is(err, node.ErrNoService)
		if alone {
			r, err = flipAlone(cmd.Context(), reason, cmd.ErrOrStderr())
		}
		if err != nil {
			return err
		}
		if err := printed(cmd.OutOrStdout(), *output, r, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "slot %s, %s, is booted next, as generation %d\n", r.Slot, r.Image, r.Generation)
			return err
		}); err != nil || !alone || stay {
			return err
		}
		return reboot(cmd.Context(), logTo(cmd.ErrOrStderr()))
	}
	return cmd
}

// flipAlone arms the other slot where no service does.
func flipAlone(ctx context.Context, reason string, errs io.Writer) (node.FlipResult, error) {
	info, err := bootinfo.Read(bootinfo.Path)
	if err != nil {
		return node.FlipResult{}, err
	}
	trust, identity, err := imageFiles()
	if err != nil {
		return node.FlipResult{}, err
	}
	machine, err := openSlots(info, nil)
	if err != nil {
		return node.FlipResult{}, err
	}
	return node.ArmFlip(ctx, node.Config{Info: info, Trust: trust, Identity: identity, Slots: machine, Dir: agentDir, Log: logTo(errs)}, reason)
}

func newSlotConfirmCommand() *cobra.Command {
	var o node.ConfirmOrder
	cmd := &cobra.Command{
		Use: "confirm", Short: "Confirm the slot that runs, on your word",
		Long: `confirm makes the slot that runs good although no server has judged it: for a node
whose network is down. Its health checks must have passed for the whole soak, and
its attestation must not have been refused; --force does without both. It needs
root and the agent's service.

` + exitCodes,
		Example: "  nodeagent slot confirm --reason \"uplink is down, checks pass\"",
		Args:    noArgs,
	}
	cmd.Flags().StringVar(&o.Reason, "reason", "no reason given", "why, for the history")
	cmd.Flags().BoolVar(&o.Force, "force", false, "although checks do not pass or attestation was refused")
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		s, err := node.Orders{Socket: node.OrderSocket}.Confirm(cmd.Context(), o)
		if errors.Is(err, node.ErrNoService) {
			return fmt.Errorf("%w: start it (systemctl start turnout-nodeagent); it knows whether this boot is healthy", err)
		}
		if err != nil {
			return err
		}
		return printed(cmd.OutOrStdout(), *output, s, func(w io.Writer) error {
			_, err := fmt.Fprintf(w, "slot %s is confirmed\n", s.Slot)
			return err
		})
	}
	return cmd
}

// slotLog is what `slot log` prints.
type slotLog struct {
	Bans  []abslot.Ban     `json:"bans"`
	Lines []node.StoryLine `json:"lines"`
}

func newSlotLogCommand() *cobra.Command {
	var last int
	cmd := &cobra.Command{
		Use: "log", Short: "Show what the agent did on this node, and the images that failed here",
		Long: `log shows what the agent has done and found, by this node's clock, the newest last,
and the images that are banned here. It is kept on the state partition and needs
no server. A line of = separates boots.

` + exitCodes,
		Example: "  nodeagent slot log --last 20",
		Args:    noArgs,
	}
	cmd.Flags().IntVar(&last, "last", 100, "how many of the newest lines; 0: all")
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		info, err := bootinfo.Read(bootinfo.Path)
		if err != nil {
			return err
		}
		l := slotLog{}
		if l.Lines, err = node.ReadStory(agentDir, last); err != nil {
			return err
		}
		machine, err := openSlots(info, nil)
		if err != nil {
			return err
		}
		l.Bans = machine.Bans(cmd.Context())
		return printed(cmd.OutOrStdout(), *output, l, l.print)
	}
	return cmd
}

func (l slotLog) print(w io.Writer) error {
	boot := ""
	for _, x := range l.Lines {
		if boot != "" && boot != x.BootID {
			fmt.Fprintln(w, "=")
		}
		boot = x.BootID
		fmt.Fprintf(w, "%s  %-20s %s\n", x.At.Local().Format("2006-01-02 15:04:05"), x.Kind, x.Message)
	}
	for _, b := range l.Bans {
		fmt.Fprintf(w, "banned here: image %s, generation %d: %s\n", b.Short, b.Generation, b.Reason)
	}
	if len(l.Lines)+len(l.Bans) == 0 {
		fmt.Fprintln(w, "nothing has been told yet")
	}
	return nil
}

func newAttestCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "attest", Short: "Have the server judge this boot now, and show the verdict",
		Long: `attest proves by the TPM, now, what this node has booted, and shows the server's
verdict. It needs root, the agent's service and its session with the server, and
fails when the verdict is a refusal.

` + exitCodes,
		Example: "  nodeagent attest -o json",
		Args:    noArgs,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		v, err := node.Orders{Socket: node.OrderSocket}.Attest(cmd.Context())
		if err != nil {
			return err
		}
		if err := printed(cmd.OutOrStdout(), *output, v, func(w io.Writer) error { return printVerdict(w, v) }); err != nil {
			return err
		}
		if !v.Accepted {
			return errors.New("attestation was refused")
		}
		return nil
	}
	return cmd
}

func printVerdict(w io.Writer, v *fleet.Verdict) error {
	word := "REFUSED"
	if v.Accepted {
		word = "accepted"
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintf(t, "attestation\t%s: %s\n", word, v.Summary)
	for _, f := range v.Findings {
		fmt.Fprintf(t, "%s\tPCR %d: %s\n", f.Kind, f.PCR, f.Detail)
		if f.Expected != "" || f.Seen != "" {
			fmt.Fprintf(t, "\texpected %s\n\tseen     %s\n", f.Expected, f.Seen)
		}
	}
	return t.Flush()
}
