package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/config"
)

// exitCodes is part of the long help of every command.
const exitCodes = `
Exit status: 0 done; 1 failed; 2 the command line or the configuration is wrong;
3 refused: not allowed, or not as things stand; 4 the server cannot be reached
or is not the trusted one; 5 the rollout that was waited for did not succeed.`

// The exit statuses.
const (
	exitOK = iota
	exitFailure
	exitUsage
	exitRefused
	exitUnreachable
	exitRollout
)

// statusError is an error with its exit status.
type statusError struct {
	status int
	msg    string
}

func (e *statusError) Error() string { return e.msg }

func usagef(cmd *cobra.Command, format string, args ...any) error {
	return &statusError{exitUsage, fmt.Sprintf(format, args...) + fmt.Sprintf(" (see `%s --help`)", cmd.CommandPath())}
}

func refusedf(format string, args ...any) error {
	return &statusError{exitRefused, fmt.Sprintf(format, args...)}
}

// report writes an error for a person and returns the exit status.
func report(w io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	if errors.Is(err, context.Canceled) {
		fmt.Fprintln(w, "pxeserver: interrupted")
		return exitFailure
	}
	fmt.Fprintln(w, "pxeserver: "+strings.TrimRight(text(err), "\n"))
	return status(err)
}

// text says an error to a person: what, and on a line of its own what next.
func text(err error) string {
	var p *api.Problem
	switch {
	case errors.As(err, &p):
		s := strings.Replace(err.Error(), p.Error(), p.Detail, 1)
		if p.Detail == "" {
			s = err.Error()
		}
		if p.Hint != "" {
			s += "\n  " + p.Hint
		}
		return s
	case errors.Is(err, api.ErrUnreachable):
		return err.Error() + "\n  is `pxeserver serve` running there? is the address right (--server)?"
	case errors.Is(err, api.ErrUntrusted):
		return err.Error() + "\n  give the ca.pem that this server's `pxeserver init` wrote (--ca)"
	}
	return err.Error()
}

// status is the one place that maps errors to exit statuses.
func status(err error) int {
	var (
		own   *statusError
		fault *config.Error
	)
	switch {
	case errors.As(err, &own):
		return own.status
	case errors.As(err, &fault):
		return exitUsage
	case errors.Is(err, api.ErrUnreachable), errors.Is(err, api.ErrUntrusted):
		return exitUnreachable
	}
	switch api.StatusOf(err) {
	case http.StatusBadRequest:
		return exitUsage
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusConflict, http.StatusUnprocessableEntity:
		return exitRefused
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

// someArgs wants at least one argument.
func someArgs(what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) == 0 {
			return usagef(cmd, "want at least one argument, %s", what)
		}
		return nil
	}
}
