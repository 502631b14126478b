package recovery

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// TestInvariants runs random fleets through random days and holds each look
// against what must never happen.
func TestInvariants(t *testing.T) {
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 1))
		l := newLab(4+r.IntN(40), func(c *Config) {
			c.Default.PerHour = fleet.Amount{Nodes: 1 + r.IntN(3)}
			c.Default.AtOnce = fleet.Amount{Nodes: 1 + r.IntN(2)}
			c.Limits.PerHour = 1 + r.IntN(6)
			c.Limits.PerNode = 1 + r.IntN(4)
			c.Limits.Storm = 10 + r.IntN(40)
		})
		for i, n := range l.in.Nodes {
			n.Pool = []string{"rack", "inference"}[r.IntN(2)]
			n.Domain = fmt.Sprint("d", i/8)
			l.in.BMC[n.Name] = r.IntN(4) > 0
		}
		var log []Done
		human := map[string]fleet.NodeState{}
		for range 24 * 60 { // a day in minutes
			shake(r, l, human)
			l.in.Now = l.in.Now.Add(time.Minute)
			for _, n := range l.in.Nodes {
				if l.heard[n.Name] {
					n.LastSeen = l.in.Now
				}
			}
			v := look(l.in)
			s, deeds, _ := Decide(l.in)
			for _, d := range deeds {
				n := l.in.Nodes[slices.IndexFunc(l.in.Nodes, func(n *fleet.Node) bool { return n.Name == d.Node })]
				trouble, _ := v.trouble(n)
				switch {
				case n.State != fleet.NodeApproved:
					t.Fatalf("seed %d: %s on a %s node", seed, d.Step, n.State)
				case l.in.Held[n.Name] != "":
					t.Fatalf("seed %d: %s on a node that a rollout moves", seed, d.Step)
				case trouble == None, trouble == Environment:
					t.Fatalf("seed %d: %s on a node with trouble %q", seed, d.Step, trouble)
				case trouble == Hardware && d.Step != Recheck && d.Step != Quarantine:
					t.Fatalf("seed %d: %s on broken hardware", seed, d.Step)
				case trouble == Silent && (d.Step == Flip || d.Step == RestartAgent):
					t.Fatalf("seed %d: %s on a silent node", seed, d.Step)
				case d.Step == Flip && d.Image != n.Reported.Slot(n.Reported.Booted.Other()).Image:
					t.Fatalf("seed %d: flip to %q", seed, d.Image)
				}
				if st := s.Nodes[n.Name]; slices.Contains(st.Tried[:len(st.Tried)-1], d.Step) {
					t.Fatalf("seed %d: %s a second time: %v", seed, d.Step, st.Tried)
				}
				if d.Step.disruptive() {
					log = append(log, Done{n.Name, n.Pool, d.Step, l.in.Now})
				}
				if d.Step == Quarantine {
					n.State = fleet.NodeQuarantined
				}
			}
			if len(s.Storms) > 0 && s.Storms[allNodes] != nil && len(deeds) > 0 {
				t.Fatalf("seed %d: %+v while the whole fleet is in a storm", seed, deeds)
			}
			bounds(t, seed, l, log)
			l.in.State = s
			if _, again, notes := Decide(l.in); len(again)+len(notes) > 0 {
				t.Fatalf("seed %d: the same look twice: %+v %+v", seed, again, notes)
			}
		}
	}
}

// shake lets something happen.
func shake(r *rand.Rand, l *lab, human map[string]fleet.NodeState) {
	n := l.in.Nodes[r.IntN(len(l.in.Nodes))]
	switch r.IntN(40) {
	case 0:
		l.heard[n.Name] = false
	case 1, 2:
		l.heard[n.Name] = true
	case 3:
		n.Reported.Health = failing([]fleet.FaultClass{fleet.FaultSoftware, fleet.FaultHardware, fleet.FaultEnvironment}[r.IntN(3)])
	case 4, 5, 6:
		n.Reported.Health = fine
	case 7:
		n.State = fleet.NodeCordoned
	case 8:
		n.State = fleet.NodeApproved
	case 9:
		l.in.Held[n.Name] = "r1"
	case 10, 11:
		delete(l.in.Held, n.Name)
	case 12:
		if r.IntN(6) == 0 { // the network goes
			for _, x := range l.in.Nodes {
				l.heard[x.Name] = false
			}
		}
	case 13, 14:
		for _, x := range l.in.Nodes {
			l.heard[x.Name] = true
		}
	case 15:
		l.in.Now = l.in.Now.Add(time.Duration(r.IntN(3)) * time.Hour) // the clock jumps
	}
}

// bounds checks the limits over any hour that has passed.
func bounds(t *testing.T, seed uint64, l *lab, log []Done) {
	t.Helper()
	inFleet, inPool, ofNode := 0, map[string]int{}, map[string]int{}
	for _, d := range log {
		if l.in.Now.Sub(d.At) < time.Hour {
			inFleet++
			inPool[d.Pool]++
		}
		if l.in.Now.Sub(d.At) < 24*time.Hour && d.Step != Quarantine {
			ofNode[d.Node]++
		}
	}
	if most := l.in.Config.Limits.PerHour; inFleet > most {
		t.Fatalf("seed %d: %d steps in an hour, at most %d", seed, inFleet, most)
	}
	for pool, k := range inPool {
		if most := l.in.Config.Default.PerHour.Nodes; k > most {
			t.Fatalf("seed %d: %d steps in an hour in pool %s, at most %d", seed, k, pool, most)
		}
	}
	for node, k := range ofNode {
		if most := l.in.Config.Limits.PerNode; k > most {
			t.Fatalf("seed %d: %d steps on %s in a day, at most %d", seed, k, node, most)
		}
	}
}
