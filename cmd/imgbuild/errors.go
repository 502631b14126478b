package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/internal/image"
	"github.com/turnout-project/turnout/internal/lock"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/recipe"
	"github.com/turnout-project/turnout/internal/verity"
)

// exitCodes is part of the long help of every command.
const exitCodes = `
Exit status: 0 done; 1 failed; 2 the recipe, the lock or the command line is
wrong, or driver, kernel and GPUs do not fit together; 3 a signature, digest,
verity tree or policy does not hold.`

// The exit statuses.
const (
	exitOK = iota
	exitFailure
	exitUsage
	exitVerification
	exitVulnerable // cve alone
)

// usageError is a fault of the command line.
type usageError struct{ msg string }

func (e *usageError) Error() string { return e.msg }

func usagef(cmd *cobra.Command, format string, args ...any) error {
	return &usageError{fmt.Sprintf(format, args...) + fmt.Sprintf(" (see `%s --help`)", cmd.CommandPath())}
}

// report writes an error for a person and returns the exit status. It is the
// one place that maps errors to statuses.
func report(w io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	if errors.Is(err, context.Canceled) {
		fmt.Fprintln(w, "imgbuild: interrupted; nothing was written")
		return exitFailure
	}
	var found foundError
	if errors.As(err, &found) {
		return found.status
	}
	fmt.Fprintln(w, "imgbuild: "+strings.TrimRight(err.Error(), "\n"))
	return status(err)
}

func status(err error) int {
	var (
		usage  *usageError
		fault  *recipe.Error
		stale  *lock.StaleError
		verify *image.VerifyError
		policy *image.PolicyError
		unfit  *incompatibleError
	)
	switch {
	case errors.As(err, &usage), errors.As(err, &fault), errors.As(err, &stale), errors.As(err, &unfit), errors.Is(err, image.ErrOptions):
		return exitUsage
	case errors.As(err, &verify), errors.As(err, &policy), errors.Is(err, manifest.ErrSignature), errors.Is(err, verity.ErrCorrupt), errors.Is(err, errMeasured):
		return exitVerification
	}
	return exitFailure
}

// noArgs refuses arguments, and names a command that was probably meant.
func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		return usagef(cmd, "unknown command %q; did you mean %s?", args[0], s[0])
	}
	if cmd.HasSubCommands() {
		return usagef(cmd, "unknown command %q", args[0])
	}
	return usagef(cmd, "unexpected argument %q", args[0])
}

// oneArg wants exactly one argument, called what.
func oneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return usagef(cmd, "want one argument, %s; got %d", what, len(args))
		}
		return nil
	}
}

// twoArgs wants exactly two arguments, called what.
func twoArgs(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 2 {
			return usagef(cmd, "want two arguments, %s; got %d", what, len(args))
		}
		return nil
	}
}
