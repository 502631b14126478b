package fleet

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// RolloutStage selects the nodes of one stage of a rollout: those of a pool,
// those whose labels match a selector, a part of these, or nodes by name.
// Nodes of an earlier stage are in no later one.
type RolloutStage struct {
	Pool    string   `json:"pool,omitempty"`
	Labels  string   `json:"labels,omitempty"`  // a Selector, in place of a pool
	Percent int      `json:"percent,omitempty"` // of the nodes of the pool or the selector, 0 for all that are left
	Nodes   []string `json:"nodes,omitempty"`   // in place of a pool
}

// What the texts of stages that are no pool begin with.
const (
	stageNodes  = "nodes:"
	stageLabels = "labels:"
)

// ParseStage reads "rack", "rack:10%", "labels:gpu=h100,zone!=b",
// "labels:gpu=h100:10%" or "nodes:n1,n2".
func ParseStage(s string) (RolloutStage, error) {
	if list, ok := strings.CutPrefix(s, stageNodes); ok {
		st := RolloutStage{Nodes: strings.Split(list, ",")}
		return st, st.Check()
	}
	selector, byLabels := strings.CutPrefix(s, stageLabels)
	whole, part, isPart := strings.Cut(selector, ":")
	st := RolloutStage{Pool: whole}
	if byLabels {
		st = RolloutStage{Labels: whole}
	}
	if isPart {
		n, err := strconv.Atoi(strings.TrimSuffix(part, "%"))
		if err != nil || !strings.HasSuffix(part, "%") || n <= 0 || n >= 100 {
			return st, fmt.Errorf("stage %q: want POOL or %sKEY=VALUE, a part of one such as POOL:10%%, or %sn1,n2", s, stageLabels, stageNodes)
		}
		st.Percent = n
	}
	return st, st.Check()
}

// Check reports a stage that selects nothing, or in two ways.
func (s RolloutStage) Check() error {
	ways := 0
	for _, is := range []bool{s.Pool != "", s.Labels != "", len(s.Nodes) > 0} {
		if is {
			ways++
		}
	}
	switch {
	case ways != 1:
		return fmt.Errorf("stage %q: want either a pool, or a selector of labels, or nodes by name", s)
	case s.Percent < 0 || s.Percent > 99 || s.Percent > 0 && len(s.Nodes) > 0:
		return fmt.Errorf("stage %q: want 1 to 99 percent of a pool or a selector", s)
	case slices.Contains(s.Nodes, ""):
		return fmt.Errorf("stage %q: a name is empty", s)
	}
	if s.Labels != "" {
		if _, err := ParseSelector(s.Labels); err != nil {
			return fmt.Errorf("stage %q: %w", s, err)
		}
	}
	return nil
}

// Selects returns whether a node is one that the stage is about, other
// stages aside. The stage must be one that Check is content with.
func (s RolloutStage) Selects() func(*Node) bool {
	switch {
	case len(s.Nodes) > 0:
		return func(n *Node) bool { return slices.Contains(s.Nodes, n.Name) }
	case s.Labels != "":
		sel, err := ParseSelector(s.Labels)
		return func(n *Node) bool { return err == nil && sel.Matches(n.Labels) }
	}
	return func(n *Node) bool { return n.Pool == s.Pool }
}

// IsPool reports whether the stage takes all that is left of a pool.
func (s RolloutStage) IsPool() bool { return s.Pool != "" && s.Percent == 0 }

// String writes what ParseStage reads.
func (s RolloutStage) String() string {
	switch {
	case len(s.Nodes) > 0:
		return stageNodes + strings.Join(s.Nodes, ",")
	}
	text := s.Pool
	if s.Labels != "" {
		text = stageLabels + s.Labels
	}
	if s.Percent > 0 {
		text += fmt.Sprintf(":%d%%", s.Percent)
	}
	return text
}
