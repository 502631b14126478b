package fleet

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseStage(t *testing.T) {
	for in, want := range map[string]RolloutStage{
		"rack": {Pool: "rack"}, "rack:10%": {Pool: "rack", Percent: 10}, "nodes:n1,n2": {Nodes: []string{"n1", "n2"}},
		"labels:gpu=h100,zone!=b": {Labels: "gpu=h100,zone!=b"}, "labels:!canary:5%": {Labels: "!canary", Percent: 5},
	} {
		got, err := ParseStage(in)
		if d := cmp.Diff(want, got); err != nil || d != "" || got.String() != in {
			t.Errorf("ParseStage(%q) = %+v (%q), %v", in, got, got, err)
		}
	}
	for _, bad := range []string{"", ":10%", "rack:", "rack:10", "rack:0%", "rack:100%", "rack:x%", "nodes:", "nodes:n1,", "labels:", "labels:a b", "labels:a=b:x", "labels::10%"} {
		if got, err := ParseStage(bad); err == nil {
			t.Errorf("ParseStage(%q) = %+v; want an error", bad, got)
		}
	}
}
