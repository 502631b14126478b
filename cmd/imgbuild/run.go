package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/localvm"
)

type runOptions struct {
	localvm.Options
	timeout time.Duration
	dir     string
	attest  bool
}

func newRunCommand() *cobra.Command {
	var o runOptions
	cmd := &cobra.Command{
		Use:   "run IMAGE",
		Short: "Boot an image in a virtual machine, on this console",
		Long: `Boots an image in QEMU, from a disk that holds it in slot A, with UEFI firmware and
a software TPM, and shows its serial console: Ctrl-A X ends the machine. It has
no network, so that its agent finds no server. It needs qemu-system-x86, ovmf and
swtpm, but not root. IMAGE is a folder that build wrote, or FOLDER@DIGEST.

With --until it ends by itself once the console shows a text, which makes a test
of it. With --attest it runs until the system is up, ends, and the PCRs of its TPM
are compared with those that the image predicts; a difference is status 3.
` + exitCodes,
		Example: `  imgbuild run images/rack-base
  imgbuild run images/rack-base --until "Reached target multi-user.target" --timeout 5m
  imgbuild run images/rack-base --attest --timeout 10m`,
		Args: cli.OneArg("the folder of an image"),
		RunE: func(cmd *cobra.Command, args []string) error { return runRun(cmd, o, args[0]) },
	}
	f := cmd.Flags()
	f.IntVar(&o.MemoryMiB, "memory", 1024, "memory in MiB")
	f.IntVar(&o.CPUs, "cpus", 2, "number of CPUs")
	f.StringVar(&o.Accel, "accel", "", "accelerator of QEMU (default: kvm if the machine has it, else tcg)")
	f.StringVar(&o.Until, "until", "", "end once the console shows this")
	f.BoolVar(&o.attest, "attest", false, "compare what its TPM measured with what the image predicts")
	f.DurationVar(&o.timeout, "timeout", 0, "end after this time, with status 1 (0: never)")
	f.StringVar(&o.dir, "dir", "", "folder to keep disk, NVRAM and TPM in (default: a temporary one)")
	return cmd
}

func runRun(cmd *cobra.Command, o runOptions, arg string) (err error) {
	l, img, err := openImage(arg)
	if err != nil {
		return err
	}
	o.Dir, o.In, o.Out = o.dir, os.Stdin, cmd.OutOrStdout()
	if o.attest {
		if o.Until == "" {
			o.Until = booted
		}
		o.Seen = func(tpm string) error {
			return attestRun(cmd.OutOrStdout(), tpm, img.Manifest.Architecture, &img.Manifest.Measurements)
		}
	}
	if o.Until != "" {
		o.In = nil
	}
	if o.Dir == "" {
		if o.Dir, err = os.MkdirTemp("", "imgbuild-run-"); err != nil {
			return err
		}
		defer func() { err = errors.Join(err, os.RemoveAll(o.Dir)) }()
	} else if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return err
	}
	ctx := cmd.Context()
	if o.timeout > 0 {
		var cancel func()
		ctx, cancel = context.WithTimeout(ctx, o.timeout)
		defer cancel()
	}
	err = localvm.Run(ctx, l, img, o.Options)
	if errors.Is(err, context.DeadlineExceeded) {
		return fmt.Errorf("the machine was ended after %s", o.timeout)
	}
	return err
}
