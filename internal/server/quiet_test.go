package server_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/server"
	"github.com/turnout-project/turnout/internal/store"
)

// counted counts the updates of a store.
type counted struct {
	store.Store
	updates atomic.Int64
}

func (c *counted) Update(ctx context.Context, fn func(store.Tx) error) error {
	c.updates.Add(1)
	return c.Store.Update(ctx, fn)
}

// A heartbeat without news costs no update; one with news does, whatever
// the news is.
func TestQuietHeartbeats(t *testing.T) {
	var c *counted
	l := newLab(t, func(o *server.Options) { c = &counted{Store: o.Store}; o.Store = c })
	v1, v2 := l.publish("1"), l.publish("2")
	m := l.ready(1, "rack", v1)
	m.report.Health = []fleet.CheckResult{{Name: "net", Required: true, Status: fleet.CheckPassed}}
	m.beat()
	beat := func(what string, want int64, change func(r *fleet.Report)) {
		t.Helper()
		change(&m.report)
		l.clock.add(time.Second)
		before := c.updates.Load()
		m.beat()
		if got := c.updates.Load() - before; got != want {
			t.Errorf("%s: %d updates, want %d", what, got, want)
		}
		n := l.node("n1")
		if !n.LastSeen.Equal(l.clock.now()) || n.Reported.Activity != m.report.Activity || n.Reported.Metrics["x"] != m.report.Metrics["x"] {
			t.Errorf("%s: node = %+v; want what it said last", what, n)
		}
	}
	beat("nothing new", 0, func(*fleet.Report) {})
	beat("activity", 0, func(r *fleet.Report) { r.Activity = "installing 43 %" })
	beat("metrics", 0, func(r *fleet.Report) { r.Metrics = map[string]float64{"x": 2} })
	beat("time a check took", 0, func(r *fleet.Report) { r.Health[0].Millis = 7 })
	beat("check", 1, func(r *fleet.Report) { r.Health[0].Status = fleet.CheckUnknown })
	beat("healthy", 1, func(r *fleet.Report) { r.Healthy = false })
	beat("versions", 1, func(r *fleet.Report) { r.Versions = map[string]string{"driver": "1"} })
	beat("slot", 1, func(r *fleet.Report) {
		r.Slots[1] = fleet.SlotReport{Slot: fleet.SlotB, State: fleet.SlotGood, Image: v2, Generation: 2}
	})
	beat("short digest of what is known", 0, func(r *fleet.Report) { r.Slots[1].Image = v2[7:19] })
	beat("boot", 1, func(r *fleet.Report) { r.BootID = "another" })
}
