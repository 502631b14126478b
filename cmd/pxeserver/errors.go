package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"strings"

	"github.com/turnout-project/turnout/cmd/internal/cli"
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
		usage *cli.UsageError
		fault *config.Error
	)
	switch {
	case errors.As(err, &own):
		return own.status
	case errors.As(err, &usage), errors.As(err, &fault):
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
