package main

import (
	"fmt"
	"os"
	"path/filepath"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

func newBMCUpdateCommand(g *globals) *cobra.Command {
	var file string
	var targets []string
	var yes bool
	var timeout time.Duration
	cmd := &cobra.Command{
		Use: "update NODE --file FILE", Short: "Have a node's BMC install a firmware file",
		Long: `Sends a firmware file to the node's BMC (Redfish UpdateService, pushed), which installs it, and
waits until it says that it is done. Most firmware works after the next power cycle only.

Firmware is no part of an image. A slot flip, a rollback or a reinstallation does not bring the old
version back: only another update does, if the maker allows a downgrade. It also changes what the
firmware measures into the TPM, so expect the node's baseline to be questioned after the next boot
(pxeserver baseline list). Cordon the node first. Needs an admin's token.

  pxeserver node cordon n1 --reason "BIOS 2.4"
  pxeserver bmc update n1 --file bios-2.4.bin --yes
  pxeserver power cycle n1 --yes && pxeserver bmc firmware n1
` + exitCodes,
		Args: cli.OneArg("a node"), ValidArgsFunction: g.completeNodes,
		RunE: func(cmd *cobra.Command, args []string) error {
			if file == "" {
				return cli.Usagef(cmd, "name the firmware file with --file")
			}
			f, err := os.Open(file)
			if err != nil {
				return &statusError{exitUsage, fmt.Sprintf("--file: %v", err)}
			}
			defer f.Close()
			c, err := g.client()
			if err != nil {
				return err
			}
			what := fmt.Sprintf("Firmware of node %s is replaced by %s. No slot flip takes that back.", args[0], filepath.Base(file))
			if err := confirm(cmd, yes, what); err != nil {
				return err
			}
			t, err := c.UpdateFirmware(cmd.Context(), args[0], filepath.Base(file), targets, f)
			if err != nil {
				return err
			}
			if t, err = waitTask(cmd, c, args[0], t, timeout); err != nil {
				return err
			}
			err = g.print(cmd, t, func(w *tabwriter.Writer) { row(w, args[0], t.State, t.Message) })
			if err == nil && t.Failed {
				err = fmt.Errorf("the update of node %s failed: %s: %s", args[0], t.State, or(t.Message, "the BMC does not say why"))
			}
			return err
		},
	}
	f := cmd.Flags()
	f.StringVar(&file, "file", "", "firmware file, as its maker ships it for Redfish")
	f.StringArrayVar(&targets, "target", nil, "Redfish path of the firmware to update; may be repeated; none leaves it to the BMC")
	f.BoolVarP(&yes, "yes", "y", false, "do not ask")
	f.DurationVar(&timeout, "timeout", time.Hour, "how long to wait for the BMC")
	return cmd
}

// taskEvery is the pause between two looks at a task.
const taskEvery = 3 * time.Second

// waitTask waits for the end of a task. A BMC that restarts itself does not
// answer for a while: that is waited out too.
func waitTask(cmd *cobra.Command, c *api.Client, node string, t *fleet.BMCTask, timeout time.Duration) (*fleet.BMCTask, error) {
	if t.Path == "" {
		fmt.Fprintln(cmd.ErrOrStderr(), "the BMC took the file and names no task to follow; look at `pxeserver bmc firmware "+node+"` later")
		return t, nil
	}
	last, end := -1, time.Now().Add(timeout)
	for {
		now, err := c.BMCTask(cmd.Context(), node, t.Path)
		if err == nil {
			t = now
			if t.Percent != last {
				last = t.Percent
				fmt.Fprintf(cmd.ErrOrStderr(), "%s: %s, %d %%\n", node, t.State, t.Percent)
			}
		}
		switch {
		case t.Done:
			return t, nil
		case cmd.Context().Err() != nil:
			return nil, cmd.Context().Err()
		case time.Now().After(end):
			return nil, fmt.Errorf("node %s: the BMC is not done after %s (%s); it goes on by itself: `pxeserver bmc firmware %s` shows what came of it", node, timeout, t.State, node)
		}
		select {
		case <-cmd.Context().Done():
		case <-time.After(taskEvery):
		}
	}
}
