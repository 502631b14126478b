// Package cli holds what the command lines of all programs have in common:
// faults of usage, which say what was meant and where help is, and the checks
// of arguments.
package cli

import (
	"fmt"

	"github.com/spf13/cobra"
)

// UsageError is a fault of the command line. Its exit status is 2 in every
// program.
type UsageError struct{ Msg string }

// Error implements error.
func (e *UsageError) Error() string { return e.Msg }

// Usagef returns a *UsageError that ends in where the command's help is.
func Usagef(cmd *cobra.Command, format string, args ...any) error {
	return &UsageError{fmt.Sprintf(format, args...) + fmt.Sprintf(" (see `%s --help`)", cmd.CommandPath())}
}

// NoArgs refuses arguments, and names a command that was probably meant.
func NoArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if s := cmd.SuggestionsFor(args[0]); len(s) > 0 {
		return Usagef(cmd, "unknown command %q; did you mean %s?", args[0], s[0])
	}
	if cmd.HasSubCommands() {
		return Usagef(cmd, "unknown command %q", args[0])
	}
	return Usagef(cmd, "unexpected argument %q", args[0])
}

// OneArg wants exactly one argument, called what.
func OneArg(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 1 {
			return Usagef(cmd, "want one argument, %s; got %d", what, len(args))
		}
		return nil
	}
}

// TwoArgs wants exactly two arguments, called what.
func TwoArgs(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) != 2 {
			return Usagef(cmd, "want two arguments, %s; got %d", what, len(args))
		}
		return nil
	}
}

// SomeArgs wants at least one argument.
func SomeArgs(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return Usagef(cmd, "want at least one argument, %s", what)
		}
		return nil
	}
}
