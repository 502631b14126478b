//go:build linux

// Command nodeagent is Turnout on a node: the first process of its initrds,
// where it installs the machine or starts a slot, and a service of the
// started system, where it attests, runs the image's health checks, and
// confirms the slot or goes back to the other one.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/man"
	"github.com/turnout-project/turnout/internal/buildinfo"
	"github.com/turnout-project/turnout/internal/node/boot"
)

func main() {
	if os.Getpid() == 1 && os.Args[0] == "/init" {
		boot.Main()
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Exit statuses.
const (
	exitOK      = 0
	exitFailure = 1
	exitUsage   = 2
)

const exitCodes = `EXIT STATUS
  0  success
  1  failure, told on standard error
  2  wrong usage
Any other status must be treated as failure.`

// usageError is an error in how the program was called.
type usageError struct{ error }

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := newRootCommand()
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	err := cmd.ExecuteContext(ctx)
	if err == nil || errors.Is(err, context.Canceled) {
		return exitOK
	}
	fmt.Fprintf(stderr, "nodeagent: error: %v\n", err)
	var usage usageError
	var unknown unknownError
	switch {
	case errors.As(err, &usage):
		return exitUsage
	case errors.As(err, &unknown):
		return exitUnknown
	}
	return exitFailure
}

func newRootCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "nodeagent",
		Short: "Run a node of a Turnout rack: install, attest, check, confirm or fall back",
		Long: `nodeagent is Turnout on a node. There is nothing to configure: the image carries
whom to trust and what to check, and the server says which image is wanted.

  nodeagent status            which slots there are, which one runs, and why
  nodeagent slot flip         boot the other slot, with or without a server
  nodeagent slot log          what happened on this node
  nodeagent health            run the image's health checks once, now
  nodeagent attest            have the server judge this boot now
  nodeagent gpu check         are the GPUs what the image says?
  systemctl status nodeagent  what the agent is doing (it runs as "nodeagent run")

As /init of an initrd the same program starts a slot or installs the machine.

` + exitCodes,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          noArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w; see `%s --help`", err, cmd.CommandPath())}
	})
	cmd.AddCommand(newRunCommand(), newGuardCommand(), newStatusCommand(), newSlotCommand(), newHealthCommand(), newAttestCommand(), newGPUCommand(), newCheckCommand(), newVersionCommand(), man.Command())
	return cmd
}

// noArgs refuses arguments, and unknown commands with them.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) > 0 {
		return usageError{fmt.Errorf("unknown argument %q for %q; see `%s --help`", args[0], cmd.CommandPath(), cmd.CommandPath())}
	}
	return nil
}

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use: "version", Short: "Say which build this is", Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "nodeagent "+buildinfo.Long())
			return err
		},
	}
}
