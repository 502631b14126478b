// Command imgbuild makes the images that Turnout moves racks to: it locks the
// packages a recipe asks for, builds a signed, reproducible image from the
// lock, and checks finished images.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/cmd/internal/man"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes one command line and returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cmd := newRootCommand()
	cmd.SetArgs(args)
	cmd.SetOut(stdout)
	cmd.SetErr(stderr)
	return report(stderr, cmd.ExecuteContext(ctx))
}

const rootLong = `imgbuild turns a recipe into an image: one kernel, its packages and drivers,
every byte locked, built reproducibly, signed, with the TPM measurements it will
show when it boots.

  imgbuild keygen --out keys                    once: the key that signs images
  imgbuild lock  recipes/rack-base.yaml         resolve every package, write recipes/rack-base.lock.json
  imgbuild check recipes/rack-base.yaml         do driver, kernel, CUDA and GPUs fit together?
  imgbuild build recipes/rack-base.yaml --key keys/image.key --server-ca ca.pem --out images/rack-base
  imgbuild verify images/rack-base --image-key keys/image.pub

Building needs root, because packages are configured in a sandbox of namespaces.
` + exitCodes

func newRootCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:           "imgbuild",
		Short:         "Build signed, reproducible images from recipes",
		Long:          rootLong,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          cli.NoArgs,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.SuggestionsMinimumDistance = 2
	cmd.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error { return cli.Usagef(cmd, "%v", err) })
	var common commonOptions
	common.addFlags(cmd)
	cmd.AddCommand(
		newKeygenCommand(),
		newSBKeysCommand(),
		newLockCommand(&common),
		newCheckCommand(),
		newBuildCommand(&common),
		newInspectCommand(),
		newVerifyCommand(&common),
		newDiffCommand(),
		newSBOMCommand(),
		newCVECommand(),
		newSchemaCommand(),
		newSignCommand(),
		newVendorCommand(&common),
		newStoreCommand(),
		newRunCommand(),
		newPushCommand(&common),
		newPullCommand(&common),
		man.Command(),
		newGPUCommand(),
		newVersionCommand(),
	)
	return cmd
}
