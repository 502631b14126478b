package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/buildinfo"
)

func newVersionCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version of imgbuild",
		Long:  "Prints the version of imgbuild, the Go release it was built with, and the platform.\n" + exitCodes,
		Args:  cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			fmt.Fprintln(cmd.OutOrStdout(), "imgbuild "+buildinfo.Long())
			return nil
		},
	}
}
