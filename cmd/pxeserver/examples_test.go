package main

import (
	"strings"
	"testing"

	"github.com/spf13/cobra"
)

// Every command has an example, and every example is a command line that the
// program takes: its command is there, and so are its flags.
func TestExamples(t *testing.T) {
	var walk func(c *cobra.Command)
	walk = func(c *cobra.Command) {
		for _, s := range c.Commands() {
			walk(s)
		}
		if c.HasSubCommands() || c.Hidden || c.Name() == "help" || c.Parent().Name() == "completion" {
			return
		}
		if strings.TrimSpace(c.Example) == "" {
			t.Errorf("%s has no example", c.CommandPath())
		}
		for _, line := range strings.Split(c.Example, "\n") {
			line, _, _ = strings.Cut(line, "   ") // a comment
			i := strings.Index(line, "pxeserver ")
			if i < 0 {
				continue
			}
			checkExample(t, line[i:])
		}
	}
	walk(newRootCommand())
}

func checkExample(t *testing.T, line string) {
	t.Helper()
	line, _, _ = strings.Cut(line, " | ")
	words := strings.Fields(line)[1:]
	root := newRootCommand()
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
