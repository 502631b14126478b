package server_test

import (
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/server"
)

// Nothing that a slot, a wish, a pool or a rollout needs is ever removed,
// nor a file that a remaining image shares.
func TestCollect(t *testing.T) {
	var o server.Options
	l := newLab(t, func(x *server.Options) { o = *x })
	unused, slotA, slotB, wanted := l.publish("1"), l.publish("2"), l.publish("3"), l.publish("4")
	pool, rolled, newest := l.publish("5"), l.publish("6"), l.publish("7")
	m := l.ready(1, "rack", slotA)
	m.report.Slots[1] = fleet.SlotReport{Slot: fleet.SlotB, State: fleet.SlotGood, Image: slotB[7:19], Generation: 2}
	m.beat()
	_, err := l.op.NodeAct(ctx, "n1", "reimage", api.NodeRequest{Image: wanted})
	l.must(err)
	_, err = l.op.SetPool(ctx, fleet.Pool{Name: "other", Image: pool})
	l.must(err)
	l.ready(2, "spare", slotA)
	_, err = l.op.StartRollout(ctx, api.RolloutRequest{Image: rolled, Policy: fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "spare"}}}})
	l.must(err)

	_, err = l.op.Collect(ctx, api.CollectRequest{})
	wantStatus(t, "keeping nothing", err, 400)
	draft, err := l.op.Collect(ctx, api.CollectRequest{Keep: 1, DryRun: true})
	l.must(err)
	if is, _ := l.view.Images(ctx); len(is) != 7 || len(draft) != 7 {
		t.Fatalf("a dry run left %d of 7 images and told of %d", len(is), len(draft))
	}
	got, err := l.op.Collect(ctx, api.CollectRequest{Keep: 1})
	l.must(err)
	why := map[string]string{slotA: "slot A of node n", slotB: "slot B of node n1", wanted: "wanted on node n1", pool: "pool other", rolled: "rollout r1", newest: "newest"}
	for _, c := range got {
		if d := c.Image.Digest; c.Removed != (d == unused) || !strings.Contains(c.NeededBy, why[d]) {
			t.Errorf("image %s: removed %v, needed: %q; want %q", c.Image.Version, c.Removed, c.NeededBy, why[d])
		}
		img, err := o.Images.Image(c.Image.Digest)
		if (err == nil) == c.Removed {
			t.Errorf("image %s in the layout: %v, %v; want it there unless removed", c.Image.Version, img, err)
		}
		if err != nil {
			continue
		}
		for _, b := range img.OCI.Layers {
			if !o.Images.Has(b.Digest) {
				t.Errorf("image %s has lost blob %s", c.Image.Version, b.Digest)
			}
		}
	}
	again, err := l.op.Collect(ctx, api.CollectRequest{Keep: 1})
	if err != nil || len(again) != 6 {
		t.Errorf("collecting again: %d images, %v; want 6", len(again), err)
	}
	if v := l.publish("1"); v != unused {
		t.Errorf("published again it is %s", v)
	}
}
