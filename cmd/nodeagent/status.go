//go:build linux

package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/health"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/node"
	"github.com/turnout-project/turnout/internal/node/bootinfo"
)

func newStatusCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show the slots of this node, the boot, and what the agent is doing",
		Long: `status reads the slots from the disk and the rest from what the service reported
last. It changes nothing and needs no server.

` + exitCodes,
		Example: "  nodeagent status\n  nodeagent status -o json",
		Args:    noArgs,
	}
	output := outputFlag(cmd)
	asJSON := cmd.Flags().Bool("json", false, "the same as -o json")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *asJSON {
			*output = "json"
		}
		return status(cmd.Context(), cmd.OutOrStdout(), *output)
	}
	return cmd
}

// statusView is what status prints.
type statusView struct {
	Boot    *bootinfo.Info     `json:"boot"`
	Slots   []fleet.SlotReport `json:"slots"` // Image is the short digest
	Problem string             `json:"problem,omitempty"`
	Agent   *node.View         `json:"agent,omitempty"`
}

func status(ctx context.Context, w io.Writer, output string) error {
	info, err := bootinfo.Read(bootinfo.Path)
	if err != nil {
		return err
	}
	m, err := openSlots(info, nil)
	if err != nil {
		return err
	}
	st, err := m.Status(ctx)
	if err != nil {
		return err
	}
	v := statusView{Boot: info, Slots: st.Report(), Agent: readView()}
	for i := range v.Slots {
		v.Slots[i].Image = st.Slots[i].Short
	}
	if st.Problem != nil {
		v.Problem = st.Problem.Error()
	}
	return printed(w, output, v, v.print)
}

// readView returns what the service showed last, nil if nothing.
func readView() *node.View {
	b, err := os.ReadFile(reportFile)
	if err != nil {
		return nil
	}
	v := &node.View{}
	if json.Unmarshal(b, v) != nil || v.Report == nil {
		return nil
	}
	return v
}

func (v statusView) print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SLOT\tSTATE\tIMAGE\tGENERATION\tTRIES\tREASON")
	for _, s := range v.Slots {
		mark := ""
		if s.Slot == v.Boot.Slot {
			mark = " (running)"
		}
		fmt.Fprintf(t, "%s%s\t%s\t%s\t%d\t%s\t%s\n", s.Slot, mark, s.State, v.image(s), s.Generation, tries(s), s.Reason)
	}
	fmt.Fprintf(t, "\nboot\tfrom %s, start %d without local health\n", v.Boot.BootPath, v.Boot.Starts)
	if v.Boot.Watchdog.Device != "" {
		fmt.Fprintf(t, "watchdog\t%s, %d s\n", v.Boot.Watchdog.Device, v.Boot.Watchdog.Seconds)
	}
	if v.Problem != "" {
		fmt.Fprintf(t, "problem\t%s\n", v.Problem)
	}
	v.printAgent(t)
	return t.Flush()
}

func (v statusView) printAgent(w io.Writer) {
	if v.Agent == nil {
		fmt.Fprintln(w, "agent\thas reported nothing yet; see `systemctl status turnout-nodeagent`")
		return
	}
	fmt.Fprintf(w, "agent\t%s\n", v.Agent.Report.Activity)
	if v.Agent.Server == "" {
		fmt.Fprintln(w, "server\tno session")
	} else {
		fmt.Fprintf(w, "server\t%s\n", v.Agent.Server)
	}
	switch x := v.Agent.Verdict; {
	case x == nil:
		fmt.Fprintln(w, "attestation\tnot judged in this boot")
	case x.Accepted:
		fmt.Fprintf(w, "attestation\taccepted: %s\n", x.Summary)
	default:
		fmt.Fprintf(w, "attestation\tREFUSED: %s\n", x.Summary)
	}
	for _, c := range v.Agent.Report.Health {
		fmt.Fprintf(w, "check %s\t%s\t%s\n", c.Name, c.Status, c.Detail)
	}
}

// image names what a slot holds, by the label the service knows.
func (v statusView) image(s fleet.SlotReport) string {
	if s.Image == "" {
		return "-"
	}
	if v.Agent != nil {
		if r := v.Agent.Report.Slot(s.Slot); r.Name != "" && manifest.Short(r.Image) == s.Image {
			return r.Name + " (" + s.Image + ")"
		}
	}
	return s.Image
}

func tries(s fleet.SlotReport) string {
	if s.State == fleet.SlotArmed || s.State == fleet.SlotTrying {
		return fmt.Sprintf("%d left", s.TriesLeft)
	}
	return "-"
}

// errUnhealthy is the failure of `nodeagent health` on an unhealthy node.
var errUnhealthy = errors.New("not healthy")

func newHealthCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "health",
		Short: "Run the image's health checks once and show the results",
		Long: `health runs every check of the image once, with its time limit, and prints the
results. Nothing follows from them: that is the service's affair. It fails when a
required check does not pass.

` + exitCodes,
		Example: "  nodeagent health\n  nodeagent health -o json",
		Args:    noArgs,
	}
	output := outputFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		_, identity, err := imageFiles()
		if err != nil {
			return err
		}
		r := health.Runner{Kernel: identity.Kernel.Release}
		results := r.Run(cmd.Context(), identity.Health.Checks)
		if err := printed(cmd.OutOrStdout(), *output, results, func(w io.Writer) error { return printChecks(w, results) }); err != nil {
			return err
		}
		if c, failed := fleet.FirstFailure(results); failed {
			return fmt.Errorf("%w: check %q %s: %s", errUnhealthy, c.Name, c.Status, c.Detail)
		}
		return nil
	}
	return cmd
}

func printChecks(w io.Writer, results []fleet.CheckResult) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "CHECK\tSTATUS\tCLASS\tMILLISECONDS\tDETAIL")
	for _, c := range results {
		fmt.Fprintf(t, "%s\t%s\t%s\t%d\t%s\n", c.Name, c.Status, c.Class, c.Millis, c.Detail)
	}
	return t.Flush()
}
