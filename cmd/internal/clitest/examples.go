// Package clitest holds what the command lines of all programs are held to.
package clitest

import (
	"regexp"
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

var quoted = regexp.MustCompile(`"[^"]*"|'[^']*'`)

// Examples checks that every command has an example, and that every example is
// a command line that the program takes: its command is there, and so are its
// flags.
func Examples(t *testing.T, program func() *cobra.Command) {
	t.Helper()
	root := program()
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, s := range c.Commands() {
			walk(s)
		}
		if c.HasSubCommands() || c.Hidden || c.Name() == "help" || c.Name() == "version" || c.Parent().Name() == "completion" {
			return
		}
		if strings.TrimSpace(c.Example) == "" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		for _, line := range strings.Split(c.Example, "\n") {
			line, _, _ = strings.Cut(line, "   ") // a comment
			i := strings.Index(line, root.Name()+" ")
			if i < 0 {
				continue
			}
			checkExample(t, program(), line[i:])
		}
	}
	walk(root)
}

func checkExample(t *testing.T, root *cobra.Command, line string) {
	t.Helper()
	line = quoted.ReplaceAllString(line, "QUOTED")
	line, _, _ = strings.Cut(line, " | ")
	line, _, _ = strings.Cut(line, " -- ") // another program's line
	words := strings.Fields(line)[1:]
	found, rest, err := root.Find(words)
	if err != nil || found == root {
		t.Errorf("%q: %v", line, err)
		return
	}
	for _, w := range rest {
		name, ok := strings.CutPrefix(w, "--")
		name, _, _ = strings.Cut(name, "=")
		if ok && found.Flags().Lookup(name) == nil && found.InheritedFlags().Lookup(name) == nil {
			t.Errorf("%q: there is no flag --%s", line, name)
		}
	}
}
