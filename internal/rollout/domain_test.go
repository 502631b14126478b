package rollout

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/mem"
)

func in(domain string) func(*fleet.Node) { return func(n *fleet.Node) { n.Domain = domain } }

// A domain starts as one, within what may be unavailable, and in order.
func TestDomainsStartTogether(t *testing.T) {
	cordoned := func(n *fleet.Node) { n.State = fleet.NodeCordoned }
	nodes := []*fleet.Node{node("n1", in("x")), node("n2", in("y")), node("n3", in("x"), cordoned), node("n4", in("x")), node("n5"), node("n6", in("y")), node("n7", in("y")), node("n8")}
	r := rollout(fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "rack"}}, MaxUnavailable: fleet.Amount{Nodes: 4}, ByDomain: true})
	for _, n := range nodes {
		r.Nodes = append(r.Nodes, fleet.Move{Node: n.Name, State: fleet.MoveWaiting})
	}
	started := func() (out []string) {
		for _, s := range Plan(t0, r, nodes) {
			if s.Kind == Start {
				out = append(out, s.Node)
			}
			applyTo(r, index(r)[s.Node], s, t0)
		}
		return out
	}
	if d := cmp.Diff([]string{"n1", "n4"}, started()); d != "" { // y has three nodes, room is for two; nobody overtakes it
		t.Errorf("first (-want +got):\n%s", d)
	}
	for i := range r.Nodes {
		if r.Nodes[i].State == fleet.MoveMoving {
			r.Nodes[i].State = fleet.MoveDone
		}
	}
	if d := cmp.Diff([]string{"n2", "n6", "n7", "n5"}, started()); d != "" {
		t.Errorf("then (-want +got):\n%s", d)
	}
}

// A domain that could never start is refused at the beginning.
func TestDomainLargerThanAllowed(t *testing.T) {
	ctx, s := context.Background(), mem.New()
	must(t, s.Update(ctx, func(tx store.Tx) error {
		err := tx.PutImage(ctx, &fleet.Image{Digest: newImage})
		for i := range 6 {
			err = errors.Join(err, tx.CreateNode(ctx, node(fmt.Sprint("n", i), in([]string{"x", "y"}[i/4]))))
		}
		return err
	}))
	p := fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "rack"}}, ByDomain: true, MaxUnavailable: fleet.Amount{Percent: 50}}
	var no *Refusal
	if _, err := Draft(ctx, s, newImage, p, "operator:test", t0); !errors.As(err, &no) || no.Why != `domain "x" has 4 nodes in stage rack, and 3 at once are allowed` {
		t.Errorf("Draft = %v; want it refused", err)
	}
	p.MaxUnavailable.Percent = 70
	if _, err := Draft(ctx, s, newImage, p, "operator:test", t0); err != nil {
		t.Error(err)
	}
}
