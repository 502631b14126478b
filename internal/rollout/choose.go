package rollout

import (
	"fmt"
	"slices"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// choose returns the nodes of a stage by name, without those that an earlier
// one has. A part of a pool is rounded down, to at least one, and takes nodes
// that can take part as things stand before others.
func choose(now time.Time, r *fleet.Rollout, s fleet.RolloutStage, nodes []*fleet.Node, taken map[string]bool) ([]*fleet.Node, error) {
	if len(s.Nodes) > 0 {
		return chooseNamed(s, nodes, taken)
	}
	var left, fit, others []*fleet.Node
	total := 0
	selects := s.Selects()
	for _, n := range nodes {
		if !selects(n) || s.Pool == "" && n.State == fleet.NodePending { // nobody has said yet what a pending one is
			continue
		}
		total++
		if taken[n.Name] {
			continue
		}
		left = append(left, n)
		if unfit(now, r, n) == "" {
			fit = append(fit, n)
		} else {
			others = append(others, n)
		}
	}
	if s.Percent == 0 {
		return left, nil
	}
	part := append(fit, others...)
	part = part[:min(len(part), fleet.Amount{Percent: s.Percent}.AtLeastOne(total))]
	slices.SortFunc(part, byName)
	return part, nil
}

func byName(a, b *fleet.Node) int {
	switch {
	case a.Name < b.Name:
		return -1
	case a.Name > b.Name:
		return 1
	}
	return 0
}

func chooseNamed(s fleet.RolloutStage, nodes []*fleet.Node, taken map[string]bool) ([]*fleet.Node, error) {
	by := map[string]*fleet.Node{}
	for _, n := range nodes {
		by[n.Name] = n
	}
	var out []*fleet.Node
	for _, name := range s.Nodes {
		switch n := by[name]; {
		case n == nil:
			return nil, &Refusal{fmt.Sprintf("node %q of stage %s is not known", name, s), "`pxeserver node list` shows who is"}
		case taken[name] || slices.Contains(out, n):
			return nil, &Refusal{fmt.Sprintf("node %q is named twice", name), "name each node once; later stages leave it out by themselves"}
		default:
			out = append(out, n)
		}
	}
	slices.SortFunc(out, byName)
	return out, nil
}

// checkDomains refuses a rollout by domain of which one could never start:
// MaxUnavailable is never exceeded, for a domain neither.
func checkDomains(r *fleet.Rollout, nodes []*fleet.Node) error {
	if !r.Policy.ByDomain {
		return nil
	}
	domain := map[string]string{}
	for _, n := range nodes {
		domain[n.Name] = n.Domain
	}
	type part struct {
		stage  int
		domain string
	}
	size, total := map[part]int{}, map[int]int{}
	for _, m := range r.Nodes {
		total[m.Stage]++
		if d := domain[m.Node]; d != "" {
			size[part{m.Stage, d}]++
		}
	}
	for k, n := range size {
		if limit := r.Policy.MaxUnavailable.AtLeastOne(total[k.stage]); n > limit {
			return &Refusal{
				fmt.Sprintf("domain %q has %d nodes in stage %s, and %d at once are allowed", k.domain, n, r.Policy.Stages[k.stage], limit),
				fmt.Sprintf("allow as many as the domain has (--max-unavailable %d), or leave --by-domain out", n),
			}
		}
	}
	return nil
}
