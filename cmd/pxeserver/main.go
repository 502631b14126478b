// Command pxeserver boots racks over the network, keeps the state of the
// fleet and moves it from image to image; its other subcommands are the
// operator's client of a running server.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // windows name time zones, whatever the host knows of them

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/cmd/internal/man"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdin, os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes one command line and returns the exit status.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	cmd := newRootCommand()
	cmd.SetArgs(args)
	cmd.SetIn(stdin)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	return report(stderr, cmd.ExecuteContext(ctx))
}

const rootLong = `pxeserver boots a rack over the network, knows its nodes by their TPMs, and moves
them from one image to the next.

The server:
  pxeserver init --dir /etc/turnout --address 10.77.0.1 --subnet 10.77.0.0/24
  pxeserver serve --config /etc/turnout/pxeserver.yaml

The operator, on the same machine (--config) or another (--server, --ca,
--token-file or --client-cert, or TURNOUT_SERVER, TURNOUT_CA,
TURNOUT_TOKEN_FILE, TURNOUT_CLIENT_CERT):
  pxeserver image publish images/rack-base
  pxeserver pool set rack --image "rack-base 1.0.0"
  pxeserver node list                       who waits for approval?
  pxeserver node approve new-3f2a9c01 --name n1 --pool rack
  pxeserver rollout start --image "rack-base 1.1.0" --stage canary --stage rack
  pxeserver rollout status --watch
  pxeserver slot flip n1                    back to its other confirmed slot
` + exitCodes

func newRootCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use: "pxeserver", Short: "Boot racks over the network and move them between images", Long: rootLong,
		SilenceUsage: true, SilenceErrors: true, Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SuggestionsMinimumDistance = 2
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return cli.Usagef(cmd, "%v", err) })
	g := &globals{}
	g.addFlags(cmd)
	cmd.AddCommand(
		newInitCommand(), newServeCommand(g), newCheckConfigCommand(g),
		newNodeCommand(g), newReimageCommand(g), newSlotCommand(g), newVerdictCommand(g), newAttestCommand(g),
		newPowerCommand(g), newBMCCommand(g), newRecoveryCommand(g), newDriftCommand(g), newAlertCommand(g), newReportCommand(g), newUsageCommand(g),
		newPoolCommand(g), newBaselineCommand(g), newImageCommand(g), newRolloutCommand(g), newEventsCommand(g), newVersionCommand(g),
		newTokenCommand(g), newHealthCommand(g), newStoreCommand(g), newBackupCommand(g), newRestoreCommand(g), newDoctorCommand(g), newTopCommand(g), newDHCPCommand(g), newExplainCommand(g), man.Command(),
	)
	addExamples(cmd, "")
	return cmd
}

// group is a command that only holds others.
func group(use, short string, subs ...*cobra.Command) *cobra.Command {
	cmd := &cobra.Command{
		Use: use, Short: short, Long: short + ".\n" + exitCodes, Args: cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SuggestionsMinimumDistance = 2
	cmd.AddCommand(subs...)
	return cmd
}
