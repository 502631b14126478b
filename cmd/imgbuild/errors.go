package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/turnout-project/turnout/cmd/internal/cli"
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
		usage  *cli.UsageError
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
