//go:build linux

package main

import (
	"context"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/node"
	"github.com/turnout-project/turnout/internal/node/bootinfo"
)

func newGuardCommand() *cobra.Command {
	return &cobra.Command{
		Use:    "guard",
		Hidden: true,
		Short:  "End a trial boot whose agent is not alive (a service)",
		Long: `guard is a service beside the agent. In a trial boot it resets the machine when the
agent gives no sign of life for 10 minutes, or for health.agent_silence of the
recipe. It leaves a confirmed slot alone.

` + exitCodes,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return guard(cmd.Context(), logTo(cmd.ErrOrStderr()))
		},
	}
}

func guard(ctx context.Context, log func(string, ...any)) error {
	info, err := bootinfo.Read(bootinfo.Path)
	if err != nil {
		return err
	}
	_, identity, err := imageFiles()
	if err != nil {
		return err
	}
	machine, err := openSlots(info, log)
	if err != nil {
		return err
	}
	return node.Guard{
		Report: reportFile, Silence: time.Duration(identity.Health.AgentSilence), Log: log,
		State: func(ctx context.Context) (fleet.SlotState, error) {
			st, err := machine.Status(ctx)
			if err != nil {
				return "", err
			}
			return st.Slot(info.Slot).State, nil
		},
		Reset: func(reason string) error {
			log("resetting: %s", reason)
			_ = os.WriteFile("/dev/kmsg", []byte("<3>turnout: "+reason+"\n"), 0) // for the console, if it can be had
			return reset()
		},
	}.Run(ctx)
}
