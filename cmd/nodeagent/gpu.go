//go:build linux

package main

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/internal/gpu/probe"
)

// exitUnknown says that a check cannot tell; the agent takes it so, too.
const exitUnknown = 127

func newGPUCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "gpu",
		Short: "Hold the GPUs against what the image says of them, or make them so",
		Long: `The image says in ` + probe.ConfigPath + ` what its GPUs must be like. Health
checks call "gpu check", and the unit turnout-gpu.service "gpu apply" at boot; a
person can call both.

` + exitCodes + `
Of "gpu check" also:
  127  it cannot tell`,
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	cmd.AddCommand(newGPUCheckCommand(), newGPUApplyCommand(), newGPUEvidenceCommand())
	return cmd
}

func newGPUCheckCommand() *cobra.Command {
	var root string
	cmd := &cobra.Command{
		Use:     "check [NAME...]",
		Example: "  nodeagent gpu check\n  nodeagent gpu check clocks",
		Short:   "Compare the GPUs with the image, all of it or what is named",
		RunE: func(cmd *cobra.Command, names []string) error {
			c, err := probe.Read(root)
			if err != nil {
				return unknownError{err}
			}
			if len(names) == 0 {
				names = probe.Names(c)
			}
			m := &probe.Machine{Root: root}
			var errs []error
			failed := false
			for _, name := range names {
				seen, err := m.Check(cmd.Context(), c, name)
				if err != nil {
					errs = append(errs, fmt.Errorf("%s: %w", name, err))
					failed = failed || !errors.Is(err, probe.ErrUnknown)
					continue
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s: %s\n", name, seen)
			}
			if len(errs) > 0 && !failed {
				return unknownError{joinLines(errs)}
			}
			return joinLines(errs)
		},
	}
	cmd.Flags().StringVar(&root, "root", "", "look at the system below this folder")
	if err := cmd.Flags().MarkHidden("root"); err != nil {
		panic(err)
	}
	return cmd
}

func newGPUApplyCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "apply",
		Example: "  nodeagent gpu apply",
		Short:   "Set modes, limits and MIG layout as the image says",
		Args:    noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := probe.Read("")
			if err != nil {
				return err
			}
			log := slog.New(slog.NewTextHandler(cmd.ErrOrStderr(), nil))
			return joinLines([]error{new(probe.Machine).Apply(cmd.Context(), c, log)})
		},
	}
}

func newGPUEvidenceCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "evidence [-- COMMAND...]",
		Short: "Have the GPUs attest by NVIDIA's own command",
		Long: `Runs NVIDIA's attestation command and says in one line what came of it. It is not
part of an image by itself and no default check: a recipe calls it as an advisory
check. Without a command it is

  ` + strings.Join(probe.EvidenceCommand, " ") + `

where {nonce} is a fresh challenge.

` + exitCodes + `
  127  it cannot tell: the command is not there, or said nothing`,
		Example: "  nodeagent gpu evidence\n  nodeagent gpu evidence -- nvattest --format json attest --device gpu --verifier remote --nonce {nonce}",
		RunE: func(cmd *cobra.Command, argv []string) error {
			said, err := probe.Evidence(cmd.Context(), argv)
			if errors.Is(err, probe.ErrUnknown) {
				return unknownError{err}
			}
			if err == nil {
				fmt.Fprintln(cmd.OutOrStdout(), said)
			}
			return err
		},
	}
}

// joinLines joins errors on one line; nil if there is none.
func joinLines(errs []error) error {
	err := errors.Join(errs...)
	if err == nil {
		return nil
	}
	return &lineError{err}
}

type lineError struct{ error }

func (e *lineError) Error() string { return strings.ReplaceAll(e.error.Error(), "\n", "; ") }
func (e *lineError) Unwrap() error { return e.error }

// unknownError has an exit status of its own.
type unknownError struct{ error }

func (e unknownError) Unwrap() error { return e.error }
