package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

// Labels are set, replaced and taken away, and what is none is refused.
func TestLabels(t *testing.T) {
	l := newLab(t)
	_, err := l.op.AddNode(ctx, api.NodeRequest{Name: "n1", Pool: "rack", MACs: []string{"52:54:00:00:00:01"}, Labels: map[string]string{"gpu": "h100"}})
	l.must(err)
	label := func(r api.NodeRequest) (string, error) {
		n, err := l.op.NodeAct(ctx, "n1", "label", r)
		if err != nil {
			return "", err
		}
		return fleet.LabelText(n.Labels), nil
	}
	for _, tt := range []struct {
		r    api.NodeRequest
		want string
	}{
		{api.NodeRequest{Labels: map[string]string{"zone": "a"}}, "gpu=h100,zone=a"},
		{api.NodeRequest{Labels: map[string]string{"zone": "b", "spare": ""}}, "gpu=h100,spare=,zone=b"},
		{api.NodeRequest{Unlabel: []string{"zone", "never-there"}}, "gpu=h100,spare="},
		{api.NodeRequest{Unlabel: []string{"gpu"}, Labels: map[string]string{"gpu": "b200"}}, "gpu=b200,spare="},
	} {
		if got, err := label(tt.r); err != nil || got != tt.want {
			t.Errorf("label %+v = %q, %v; want %q", tt.r, got, err, tt.want)
		}
	}
	many := map[string]string{}
	for i := range fleet.MaxLabels {
		many[fmt.Sprint("k", i)] = ""
	}
	for name, r := range map[string]api.NodeRequest{
		"a key with a space": {Labels: map[string]string{"a b": "c"}}, "a value with a line end": {Labels: map[string]string{"a": "b\nc"}},
		"a long key": {Labels: map[string]string{strings.Repeat("k", 64): ""}}, "too many": {Labels: many},
	} {
		_, err := label(r)
		wantStatus(t, name, err, http.StatusBadRequest)
	}
	if n := l.node("n1"); fleet.LabelText(n.Labels) != "gpu=b200,spare=" {
		t.Errorf("after refusals the node has %v", n.Labels)
	}
	_, err = l.view.NodeAct(ctx, "n1", "label", api.NodeRequest{Labels: map[string]string{"a": "b"}})
	wantStatus(t, "a viewer labels", err, http.StatusForbidden)
}
