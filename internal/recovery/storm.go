package recovery

import (
	"fmt"
	"slices"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/pulse"
)

// stormWindow is within which nodes fall silent "at once". It is long: what
// dies slowly in a failing network is a storm too.
const stormWindow = time.Hour

// stormLeast is how many nodes make a storm at least.
const stormLeast = 2

// allNodes is the group of every node.
const allNodes = "fleet"

// groupsOf are the groups in which a node is counted.
func groupsOf(n *fleet.Node) []string {
	gs := []string{allNodes, "pool " + n.Pool}
	if d := pulse.Domain(n); d != "" {
		gs = append(gs, "domain "+d)
	}
	return gs
}

// group is a group as it stands.
type group struct {
	size   int
	silent map[string]time.Time // node -> last seen
}

// storms brings s.Storms up to date and tells what began and ended.
func (v view) storms(s *State) (notes []Note) {
	groups := map[string]*group{}
	for _, n := range v.in.Nodes {
		if n.State == fleet.NodePending || n.LastSeen.IsZero() {
			continue
		}
		for _, g := range groupsOf(n) {
			if groups[g] == nil {
				groups[g] = &group{silent: map[string]time.Time{}}
			}
			groups[g].size++
			if v.isQuiet(n) && !v.isMoving(n) {
				groups[g].silent[n.Name] = n.LastSeen
			}
		}
	}
	for _, name := range sortedKeys(groups) {
		if note := v.storm(s, name, groups[name]); note != nil {
			notes = append(notes, *note)
		}
	}
	for name := range s.Storms {
		if groups[name] == nil {
			delete(s.Storms, name)
		}
	}
	return notes
}

// isMoving reports whether a node's silence is expected: it reboots into what
// it was asked for.
func (v view) isMoving(n *fleet.Node) bool {
	isOnWay := n.Desired.Image != "" && n.Reported.BootedImage() != n.Desired.Image
	return (v.in.Held[n.Name] != "" || isOnWay) && v.in.Now.Sub(n.LastSeen) < patience[Flip]
}

// storm follows one group.
func (v view) storm(s *State, name string, g *group) *Note {
	now, limit := v.in.Now, v.in.Config.Limits.Storm
	st := s.Storms[name]
	if st == nil {
		var recent []string
		for n, seen := range g.silent {
			if now.Sub(seen) <= stormWindow {
				recent = append(recent, n)
			}
		}
		if len(recent) < stormLeast || len(recent)*100 <= limit*g.size {
			return nil
		}
		slices.Sort(recent)
		s.Storms[name] = &Storm{now, recent}
		return &Note{Kind: "recovery.storm", Message: fmt.Sprintf("%s: %d of %d nodes fell silent at once, more than %d %%: network or power rather than nodes. Nothing is done to them: %s",
			name, len(recent), g.size, limit, few(recent))}
	}
	st.Members = slices.DeleteFunc(st.Members, func(n string) bool { _, is := g.silent[n]; return !is })
	for n, seen := range g.silent {
		if seen.After(st.Since.Add(-stormWindow)) && !slices.Contains(st.Members, n) {
			st.Members = append(st.Members, n)
		}
	}
	slices.Sort(st.Members)
	if len(st.Members) >= stormLeast && len(st.Members)*200 > limit*g.size {
		return nil
	}
	delete(s.Storms, name)
	msg := fmt.Sprintf("%s: %d of %d nodes are silent still, the storm that began %s is over", name, len(st.Members), g.size, st.Since.UTC().Format(time.RFC3339))
	if len(st.Members) > 0 {
		msg += ": " + few(st.Members)
	}
	return &Note{Kind: "recovery.storm-over", Message: msg}
}

// sheltered reports whether a storm keeps a node from any step: it is one of
// its members, or the whole fleet is in one.
func sheltered(s *State, n *fleet.Node) bool {
	if s.Storms[allNodes] != nil {
		return true
	}
	return slices.ContainsFunc(groupsOf(n), func(g string) bool {
		st := s.Storms[g]
		if st == nil {
			return false
		}
		_, is := slices.BinarySearch(st.Members, n.Name) // sorted
		return is
	})
}
