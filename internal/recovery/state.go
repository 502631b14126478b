package recovery

import (
	"maps"
	"slices"
	"time"
)

// State is what is remembered between two looks. It is JSON in the store.
type State struct {
	Nodes  map[string]*NodeState `json:"nodes,omitempty"`  // those in trouble, or lately so
	Storms map[string]*Storm     `json:"storms,omitempty"` // by group: "pool rack", "domain r7", "fleet"
	Log    []Done                `json:"log,omitempty"`    // disruptive steps of the last day
}

// NodeState is where a node stands on the ladder.
type NodeState struct {
	Trouble    Trouble   `json:"trouble"`
	Why        string    `json:"why"`                  // for people
	Since      time.Time `json:"since"`                // of this kind of trouble
	Tried      []Step    `json:"tried,omitempty"`      // in order, with those that could not be done
	Step       Step      `json:"step,omitempty"`       // the last that was done
	At         time.Time `json:"at,omitzero"`          // when
	Failed     string    `json:"failed,omitempty"`     // why that step could not be carried out
	Generation uint64    `json:"generation,omitempty"` // of the wish that it made
	Calm       time.Time `json:"calm,omitzero"`        // without trouble since
	Told       []string  `json:"told,omitempty"`       // what was told once
}

// Storm is a group of which too many fell silent at once.
type Storm struct {
	Since   time.Time `json:"since"`
	Members []string  `json:"members"` // silent since then; left alone until heard of, or the storm is over
}

// Done is a disruptive step that was taken.
type Done struct {
	Node string    `json:"node"`
	Pool string    `json:"pool"`
	Step Step      `json:"step"`
	At   time.Time `json:"at"`
}

// clone copies deeply.
func (s State) clone() State {
	c := State{Nodes: map[string]*NodeState{}, Storms: map[string]*Storm{}, Log: slices.Clone(s.Log)}
	for k, n := range s.Nodes {
		x := *n
		x.Tried, x.Told = slices.Clone(n.Tried), slices.Clone(n.Told)
		c.Nodes[k] = &x
	}
	for k, st := range s.Storms {
		c.Storms[k] = &Storm{st.Since, slices.Clone(st.Members)}
	}
	return c
}

// once reports whether something has not been told yet, and remembers it.
func (n *NodeState) once(what string) bool {
	if slices.Contains(n.Told, what) {
		return false
	}
	n.Told = append(n.Told, what)
	return true
}

// Sorted returns the names of the nodes in it.
func (s State) Sorted() []string { return slices.Sorted(maps.Keys(s.Nodes)) }
