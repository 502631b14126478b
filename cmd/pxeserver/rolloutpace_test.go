package main

import (
	"bytes"
	"fmt"
	"strings"
	"testing"
	"text/tabwriter"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// A draft says who moves in which wave, who does not and why, and how long
// all of it takes at the pace of the last rollout.
func TestDraftShowsWaves(t *testing.T) {
	r := &fleet.Rollout{Image: "sha256:new", Policy: fleet.Policy{
		Stages: []fleet.RolloutStage{{Pool: "canary"}, {Pool: "rack"}}, MaxUnavailable: fleet.Amount{Percent: 25}, Bake: 10 * time.Minute}}
	r.Nodes = append(r.Nodes, fleet.Move{Node: "c1"})
	for i := range 9 {
		m := fleet.Move{Node: fmt.Sprint("n", i), Stage: 1}
		if i == 3 {
			m.Reason = "cordoned"
		}
		r.Nodes = append(r.Nodes, m)
	}
	last := &fleet.Rollout{ID: "r6"}
	began := time.Unix(1000, 0)
	for _, took := range []time.Duration{2 * time.Minute, 4 * time.Minute, 9 * time.Minute} {
		last.Nodes = append(last.Nodes, fleet.Move{State: fleet.MoveDone, Started: began, Ended: began.Add(took)})
	}
	last.Nodes = append(last.Nodes, fleet.Move{State: fleet.MoveFailed, Started: began, Ended: began.Add(time.Hour)})
	var out bytes.Buffer
	w := tabwriter.NewWriter(&out, 0, 0, 1, ' ', 0)
	showDraft(w, r, names{}, paceIn(last))
	w.Flush()
	text := out.String()
	for _, want := range []string{
		"5 waves, about 30m0s: 4m0s a node as in rollout r6, and 10m0s of baking", // 2 of 9 at once: 8 nodes in 4 waves, after the canary
		"stage 1: pool canary, 1 nodes, 1 at once, then bake 10m0s", "stage 2: pool rack, 9 nodes, 2 at once\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the draft does not say %q:\n%s", want, text)
		}
	}
	for node, want := range map[string]string{"c1": "wave 1", "n0": "wave 2", "n1": "wave 2", "n2": "wave 3", "n3": "cordoned", "n4": "wave 3", "n8": "wave 5"} {
		i := strings.Index(text, "  "+node+" ")
		if got, _, _ := strings.Cut(text[max(i, 0):], "\n"); i < 0 || !strings.HasSuffix(got, want) {
			t.Errorf("%s: %q, want %s", node, got, want)
		}
	}
	if text := (pace{}).expect(r); !strings.Contains(text, "not known before the first rollout") {
		t.Errorf("without a rollout before: %q", text)
	}
}
