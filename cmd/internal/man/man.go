// Package man writes the manual pages of a program from the help of its
// commands.
package man

import (
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/cobra/doc"

	"github.com/turnout-project/turnout/internal/buildinfo"
)

// Command returns the hidden command "man --dir FOLDER". The pages carry the
// time SOURCE_DATE_EPOCH, so that the same program gives the same pages.
func Command() *cobra.Command {
	var dir string
	cmd := &cobra.Command{
		Use:    "man --dir FOLDER",
		Short:  "Write the manual pages",
		Long:   "Writes a manual page (section 1) of every command into a folder.\n\nExit status: 0 done; 1 failed; 2 the command line is wrong.",
		Args:   cobra.NoArgs,
		Hidden: true,
		RunE:   func(cmd *cobra.Command, _ []string) error { return write(cmd.Root(), dir) },
	}
	cmd.Flags().StringVar(&dir, "dir", "man", "folder to write to")
	return cmd
}

func write(root *cobra.Command, dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("manual pages: %w", err)
	}
	date := time.Unix(0, 0).UTC()
	if s := os.Getenv("SOURCE_DATE_EPOCH"); s != "" {
		n, err := strconv.ParseInt(s, 10, 64)
		if err != nil {
			return fmt.Errorf("manual pages: SOURCE_DATE_EPOCH %q is not a number of seconds", s)
		}
		date = time.Unix(n, 0).UTC()
	}
	root.DisableAutoGenTag = true
	header := &doc.GenManHeader{Section: "1", Date: &date, Source: "Turnout " + buildinfo.Version(), Manual: "Turnout"}
	if err := doc.GenManTree(root, header, dir); err != nil {
		return fmt.Errorf("manual pages: %w", err)
	}
	return nil
}
