package fleet

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// RolloutStage selects the nodes of one stage of a rollout: a pool, a part
// of one, or nodes by name. Nodes of an earlier stage are in no later one.
type RolloutStage struct {
	Pool    string   `json:"pool,omitempty"`
	Percent int      `json:"percent,omitempty"` // of the pool's nodes, 0 for all that are left
	Nodes   []string `json:"nodes,omitempty"`   // in place of a pool
}

// stageNodes begins the text of a stage of named nodes.
const stageNodes = "nodes:"

// ParseStage reads "rack", "rack:10%" or "nodes:n1,n2".
func ParseStage(s string) (RolloutStage, error) {
	if list, ok := strings.CutPrefix(s, stageNodes); ok {
		st := RolloutStage{Nodes: strings.Split(list, ",")}
		return st, st.Check()
	}
	pool, part, isPart := strings.Cut(s, ":")
	st := RolloutStage{Pool: pool}
	if isPart {
		n, err := strconv.Atoi(strings.TrimSuffix(part, "%"))
		if err != nil || !strings.HasSuffix(part, "%") || n <= 0 || n >= 100 {
			return st, fmt.Errorf("stage %q: want POOL, a part of one such as POOL:10%%, or %sn1,n2", s, stageNodes)
		}
		st.Percent = n
	}
	return st, st.Check()
}

// Check reports a stage that selects nothing, or in two ways.
func (s RolloutStage) Check() error {
	switch {
	case (s.Pool == "") == (len(s.Nodes) == 0):
		return fmt.Errorf("stage %q: want a pool, or nodes by name", s)
	case s.Percent < 0 || s.Percent > 99 || s.Percent > 0 && s.Pool == "":
		return fmt.Errorf("stage %q: want 1 to 99 percent of a pool", s)
	case slices.Contains(s.Nodes, ""):
		return fmt.Errorf("stage %q: a name is empty", s)
	}
	return nil
}

// IsPool reports whether the stage takes all that is left of a pool.
func (s RolloutStage) IsPool() bool { return s.Pool != "" && s.Percent == 0 }

// String writes what ParseStage reads.
func (s RolloutStage) String() string {
	switch {
	case len(s.Nodes) > 0:
		return stageNodes + strings.Join(s.Nodes, ",")
	case s.Percent > 0:
		return fmt.Sprintf("%s:%d%%", s.Pool, s.Percent)
	}
	return s.Pool
}
