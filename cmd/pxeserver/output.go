package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/rollout"
)

// print writes v as JSON or YAML, or lets table write it for people.
func (g *globals) print(cmd *cobra.Command, v any, table func(t *tabwriter.Writer)) error {
	w := cmd.OutOrStdout()
	switch g.output {
	case "json":
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		return e.Encode(v)
	case "yaml":
		return writeYAML(w, v)
	case "table", "wide", "":
		t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
		table(t)
		return t.Flush()
	}
	return cli.Usagef(cmd, "--output %q: want %s", g.output, strings.Join(outputs, ", "))
}

// row writes cells; "" becomes "-".
func row(t *tabwriter.Writer, cells ...string) {
	for i := range cells {
		if cells[i] == "" {
			cells[i] = "-"
		}
	}
	fmt.Fprintln(t, strings.Join(cells, "\t"))
}

// names says digests as "name version".
type names map[string]string

func imageNames(cmd *cobra.Command, c *api.Client) names {
	ns := names{}
	if is, err := c.Images(cmd.Context()); err == nil { // only nicer with it
		for _, i := range is {
			ns[i.Digest] = i.Name + " " + i.Version
		}
	}
	return ns
}

// of returns "name version (digest)", or the digest alone.
func (ns names) of(digest string) string {
	switch n := ns[digest]; {
	case digest == "":
		return ""
	case n != "":
		return n + " (" + rollout.Short(digest) + ")"
	}
	return rollout.Short(digest)
}

// age is how long ago t was: "12s", "3m", "5h", "2d".
func age(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	switch d := time.Since(t); {
	case d < 0:
		return "0s"
	case d < 2*time.Minute:
		return fmt.Sprintf("%ds", int(d.Seconds()))
	case d < 2*time.Hour:
		return fmt.Sprintf("%dm", int(d.Minutes()))
	case d < 48*time.Hour:
		return fmt.Sprintf("%dh", int(d.Hours()))
	default:
		return fmt.Sprintf("%dd", int(d.Hours()/24))
	}
}

// ago is age with the word behind it.
func ago(t time.Time) string {
	if t.IsZero() {
		return "never"
	}
	return age(t) + " ago"
}

// health is a node's health in one word, or the check that fails.
func health(r *fleet.Report) string {
	if r == nil || r.Stage != fleet.StageSystem {
		return ""
	}
	if r.Healthy {
		return "healthy"
	}
	if c, ok := fleet.FirstFailure(r.Health); ok {
		return c.Name + " " + string(c.Status)
	}
	return "not yet"
}

// attested is a node's verdict in one word.
func attested(n *fleet.Node) string {
	switch {
	case n.Verdict == nil:
		return ""
	case !n.Verdict.Accepted:
		return "REFUSED"
	case n.Reported != nil && n.Reported.BootID != n.Verdict.BootID:
		return "last boot"
	}
	return "accepted"
}

// slotText is one slot in a few words: "B good 000003 rack-base 1.1.0".
func slotText(s fleet.SlotReport, ns names) string {
	if s.State == fleet.SlotEmpty {
		return "empty"
	}
	out := fmt.Sprintf("%s, generation %d, %s", s.State, s.Generation, or(ns.of(s.Image), or(s.Name, "unknown image")))
	if s.State == fleet.SlotArmed || s.State == fleet.SlotTrying {
		out += fmt.Sprintf(", %d trial boots left", s.TriesLeft)
	}
	if s.Reason != "" {
		out += ": " + s.Reason
	}
	return out
}
