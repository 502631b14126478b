//go:build linux

package main

import (
	"errors"
	"fmt"
	"os"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/internal/health"
	"github.com/turnout-project/turnout/internal/manifest"
)

func newCheckCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "check",
		Short: "Check links, disk or clock of this node, for health checks of recipes",
		Long: `A recipe's health checks call these by exec, each with the class that fits:

  - {name: links, class: hardware, exec: [/usr/lib/turnout/nodeagent, check, links]}
  - {name: disk, class: hardware, exec: [/usr/lib/turnout/nodeagent, check, disk]}
  - {name: clock, class: environment, exec: [/usr/lib/turnout/nodeagent, check, clock]}

` + exitCodes + `
Also:
  127  it cannot tell`,
		Example: "  nodeagent check links eth0 eth1",
		Args:    noArgs,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	free := 5
	disk := &cobra.Command{
		Use: "disk [PATH]", Short: "The file system at PATH (/var) can be written and has room", Example: "  nodeagent check disk /var --free 10",
		Args: cobra.MaximumNArgs(1),
		RunE: func(cmd *cobra.Command, args []string) error {
			return show(cmd)(health.Space(append(args, "/var")[0], free))
		},
	}
	disk.Flags().IntVar(&free, "free", free, "percent of space and inodes that must be free")
	cmd.AddCommand(disk, &cobra.Command{
		Use: "links [NIC...]", Short: "Network interfaces have a carrier: the named ones, or all physical ones", Example: "  nodeagent check links eth0",
		RunE: func(cmd *cobra.Command, args []string) error { return show(cmd)(health.Links("", args...)) },
	}, &cobra.Command{
		Use: "clock", Short: "The clock is synchronised and not before the image was made", Example: "  nodeagent check clock",
		Args: noArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ok, err := health.IsSynchronised()
			if err != nil {
				return unknownError{err}
			}
			var earliest time.Time
			if fi, err := os.Stat(manifest.ImagePath); err == nil { // files of an image carry its date
				earliest = fi.ModTime()
			}
			return show(cmd)(health.Clock(time.Now(), earliest, ok))
		},
	})
	return cmd
}

// show prints what a check saw.
func show(cmd *cobra.Command) func(string, error) error {
	return func(seen string, err error) error {
		if errors.Is(err, health.ErrUnknown) {
			return unknownError{err}
		}
		if err == nil {
			fmt.Fprintln(cmd.OutOrStdout(), seen)
		}
		return err
	}
}
