package rollout

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/mem"
)

func TestStages(t *testing.T) {
	s := mem.New()
	must(t, s.Update(ctx0, func(tx store.Tx) error {
		err := errors.Join(tx.PutImage(ctx0, &fleet.Image{Digest: oldImage}), tx.PutImage(ctx0, &fleet.Image{Digest: newImage}))
		for i := range 10 {
			n := node(fmt.Sprint("n", i))
			if i < 2 {
				n.State = fleet.NodeCordoned
			}
			if i%2 == 0 {
				n.Labels = map[string]string{"gpu": "h100", "zone": fmt.Sprint("z", i)}
			}
			err = errors.Join(err, tx.CreateNode(ctx0, n))
		}
		return errors.Join(err, tx.CreateNode(ctx0, node("x", func(n *fleet.Node) { n.Pool, n.Labels = "spare", map[string]string{"gpu": "h100"} })),
			tx.CreateNode(ctx0, node("new-1", func(n *fleet.Node) {
				n.Pool, n.State, n.Labels = "spare", fleet.NodePending, map[string]string{"gpu": "h100"}
			})))
	}))
	draft := func(p fleet.Policy, stages ...string) ([]string, error) {
		for _, x := range stages {
			st, err := fleet.ParseStage(x)
			must(t, err)
			p.Stages = append(p.Stages, st)
		}
		r, err := Draft(ctx0, s, newImage, p, "operator:test", t0)
		if err != nil {
			return nil, err
		}
		out := make([]string, len(stages))
		for _, m := range r.Nodes {
			out[m.Stage] += m.Node + " "
		}
		return out, nil
	}
	for _, c := range []struct{ stages, want []string }{
		{[]string{"rack"}, []string{"n0 n1 n2 n3 n4 n5 n6 n7 n8 n9 "}},
		{[]string{"nodes:n5,n3", "rack:20%", "rack"}, []string{"n3 n5 ", "n2 n4 ", "n0 n1 n6 n7 n8 n9 "}},
		{[]string{"rack:1%", "rack:25%"}, []string{"n2 ", "n3 n4 "}},
		{[]string{"rack:80%", "rack"}, []string{"n2 n3 n4 n5 n6 n7 n8 n9 ", "n0 n1 "}},
		{[]string{"nodes:x", "rack:10%"}, []string{"x ", "n2 "}},
		{[]string{"labels:gpu=h100", "rack"}, []string{"n0 n2 n4 n6 n8 x ", "n1 n3 n5 n7 n9 "}},
		{[]string{"labels:gpu=h100:34%", "labels:gpu=h100"}, []string{"n2 n4 ", "n0 n6 n8 x "}},
		{[]string{"labels:zone=z4,gpu", "nodes:n1"}, []string{"n4 ", "n1 "}},
	} {
		got, err := draft(fleet.Policy{}, c.stages...)
		if d := cmp.Diff(c.want, got); err != nil || d != "" {
			t.Errorf("%q: %v (-want +got):\n%s", c.stages, err, d)
		}
	}
	for _, c := range []struct {
		stages []string
		p      fleet.Policy
		want   string
	}{
		{[]string{"rack", "rack"}, fleet.Policy{}, "nothing of pool"},
		{[]string{"rack", "rack:10%"}, fleet.Policy{}, "nothing of pool"},
		{[]string{"nodes:n1", "nodes:n1"}, fleet.Policy{}, "named twice"},
		{[]string{"nodes:n1,n1"}, fleet.Policy{}, "named twice"},
		{[]string{"nodes:nobody"}, fleet.Policy{}, "not known"},
		{[]string{"nodes:x,new-1", "spare"}, fleet.Policy{}, "has no nodes"},
		{[]string{"labels:gpu=b200"}, fleet.Policy{}, "has no nodes"},
		{[]string{"labels:gpu", "labels:gpu=h100"}, fleet.Policy{}, "has no nodes"},
		{[]string{"labels:gpu:10%"}, fleet.Policy{ByDomain: true}, "cut failure domains"},
		{[]string{"rack:10%"}, fleet.Policy{ByDomain: true}, "cut failure domains"},
	} {
		_, err := draft(c.p, c.stages...)
		var no *Refusal
		if !errors.As(err, &no) || !strings.Contains(no.Why, c.want) {
			t.Errorf("%q: %v; want it refused with %q", c.stages, err, c.want)
		}
	}
}

// Only pools that were moved as a whole install the image from then on.
func TestPartOfAPoolAdoptsNothing(t *testing.T) {
	for _, c := range []struct {
		stages []fleet.RolloutStage
		want   string
	}{
		{[]fleet.RolloutStage{{Pool: "rack", Percent: 50}}, oldImage},
		{[]fleet.RolloutStage{{Pool: "rack", Percent: 50}, {Pool: "rack"}}, newImage},
	} {
		s := mem.New()
		must(t, s.Update(ctx0, func(tx store.Tx) error { return tx.PutPool(ctx0, &fleet.Pool{Name: "rack", Image: oldImage}) }))
		must(t, s.Update(ctx0, func(tx store.Tx) error {
			return adopt(context.Background(), tx, &fleet.Rollout{Image: newImage, Policy: fleet.Policy{Stages: c.stages}})
		}))
		p, err := s.Pool(ctx0, "rack")
		if err != nil || p.Image != c.want {
			t.Errorf("%v: pool %+v, %v; want image %s", c.stages, p, err, c.want)
		}
	}
}
