package storetest

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

func seen(t *testing.T, s store.Store) {
	update(t, s, func(tx store.Tx) error { return tx.CreateNode(ctx(), sample("n1", "52:54:00:00:00:01")) })
	rep := &fleet.Report{Stage: fleet.StageSystem, Activity: "idle", Metrics: map[string]float64{"x": 1}}
	later := now.Add(time.Minute)
	if err := s.Seen(ctx(), "n1", rep.Clone(), later); err != nil {
		t.Fatal(err)
	}
	want := sample("n1", "52:54:00:00:00:01")
	want.Reported, want.LastSeen = rep, later
	check := func(what string) {
		t.Helper()
		got, err := s.Node(ctx(), "n1")
		if d := cmp.Diff(want, got); err != nil || d != "" {
			t.Errorf("%s: %v (-want +got):\n%s", what, err, d)
		}
	}
	check("after Seen")
	if err := s.Seen(ctx(), "n1", &fleet.Report{}, now); err != nil {
		t.Fatal(err)
	}
	check("after an older one")
	wantErr(t, "Seen of nobody", s.Seen(ctx(), "nobody", rep, later), store.ErrNotFound)

	// An update that began before the heartbeat must not put it back, one
	// that begins after it sees it.
	update(t, s, func(tx store.Tx) error {
		n, err := tx.Node(ctx(), "n1")
		if err != nil || !n.LastSeen.Equal(later) {
			t.Errorf("in an update: %+v, %v; want it seen", n, err)
		}
		n.Desired.Generation = 9
		return tx.PutNode(ctx(), n)
	})
	want.Desired.Generation = 9
	check("after an update")
}

func liveRollouts(t *testing.T, s store.Store) {
	ids := func() (out []string) {
		t.Helper()
		rs, err := s.LiveRollouts(ctx())
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range rs {
			out = append(out, fmt.Sprint(r.ID, " ", r.State, " ", len(r.Nodes)))
		}
		return out
	}
	var r *fleet.Rollout
	update(t, s, func(tx store.Tx) error {
		for _, st := range []fleet.RolloutState{fleet.RolloutRunning, fleet.RolloutDone, fleet.RolloutHalted, fleet.RolloutPaused} {
			r = &fleet.Rollout{State: st, Nodes: []fleet.Move{{Node: "n1", State: fleet.MoveFailed}, {Node: "n2", State: fleet.MoveWaiting}}}
			if err := tx.CreateRollout(ctx(), r); err != nil {
				return err
			}
		}
		live, err := tx.LiveRollouts(ctx())
		if len(live) != 2 {
			t.Errorf("in its own transaction: %d live rollouts, want 2", len(live))
		}
		return err
	})
	if d := cmp.Diff([]string{"r1 running 2", "r4 paused 2"}, ids()); d != "" {
		t.Errorf("live rollouts (-want +got):\n%s", d)
	}
	heads, err := s.RolloutHeads(ctx())
	if err != nil || len(heads) != 4 {
		t.Fatalf("RolloutHeads: %d, %v; want 4", len(heads), err)
	}
	for i, want := range []fleet.RolloutState{fleet.RolloutRunning, fleet.RolloutDone, fleet.RolloutHalted, fleet.RolloutPaused} {
		if h := heads[i]; h.ID != fmt.Sprint("r", i+1) || h.State != want || len(h.Nodes) != 0 {
			t.Errorf("head %d is %+v; want r%d, %s, without nodes", i, h, i+1, want)
		}
	}
	if full, err := s.Rollout(ctx(), "r2"); err != nil || len(full.Nodes) != 2 {
		t.Errorf("after RolloutHeads r2 has %d nodes, %v; want 2", len(full.Nodes), err)
	}
	undone := errors.New("undone")
	wantErr(t, "undone", s.Update(ctx(), func(tx store.Tx) error {
		r.State = fleet.RolloutAborted
		return errors.Join(tx.PutRollout(ctx(), r), undone)
	}), undone)
	if got := ids(); len(got) != 2 {
		t.Errorf("after an update that failed: %v", got)
	}
	r.Nodes[0].State = fleet.MoveMoving
	update(t, s, func(tx store.Tx) error { return tx.PutRollout(ctx(), r) })
	if d := cmp.Diff([]string{"r1 running 2", "r4 aborted 2"}, ids()); d != "" {
		t.Errorf("an aborted one with a node on the move (-want +got):\n%s", d)
	}
	r.Nodes[0].State, r.Nodes = fleet.MoveDone, r.Nodes[:1]
	update(t, s, func(tx store.Tx) error { return tx.PutRollout(ctx(), r) })
	if got := ids(); len(got) != 1 {
		t.Errorf("after its end: %v", got)
	}
	got, err := s.Rollout(ctx(), r.ID)
	if d := cmp.Diff(r, got); err != nil || d != "" {
		t.Errorf("ended rollout: %v (-want +got):\n%s", err, d)
	}
}

func imageRemoval(t *testing.T, s store.Store) {
	update(t, s, func(tx store.Tx) error { return tx.PutImage(ctx(), &fleet.Image{Digest: "sha256:aa"}) })
	update(t, s, func(tx store.Tx) error { return tx.DeleteImage(ctx(), "sha256:aa") })
	_, err := s.Image(ctx(), "sha256:aa")
	wantErr(t, "Image after its removal", err, store.ErrNotFound)
	wantErr(t, "removing it again", s.Update(ctx(), func(tx store.Tx) error { return tx.DeleteImage(ctx(), "sha256:aa") }), store.ErrNotFound)
}

func pruning(t *testing.T, s store.Store) {
	put := func(n int) {
		update(t, s, func(tx store.Tx) error {
			for i := range n {
				if err := tx.AppendEvent(ctx(), &fleet.Event{At: now.Add(time.Duration(i) * time.Hour), Kind: "x"}); err != nil {
					return err
				}
			}
			return nil
		})
	}
	left := func() (ids []int64) {
		ev, err := s.Events(ctx(), store.EventQuery{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range ev {
			ids = append(ids, e.ID)
		}
		return ids
	}
	prune := func(before time.Time, keep int, want int64) {
		t.Helper()
		update(t, s, func(tx store.Tx) error {
			n, err := tx.PruneEvents(ctx(), before, keep, 100)
			if n != want {
				t.Errorf("PruneEvents dropped %d, want %d", n, want)
			}
			return err
		})
	}
	put(6)
	prune(now.Add(2*time.Hour), 0, 2)
	if d := cmp.Diff([]int64{3, 4, 5, 6}, left()); d != "" {
		t.Errorf("by age (-want +got):\n%s", d)
	}
	prune(time.Time{}.AddDate(1969, 0, 0), 10, 0)
	prune(time.Time{}.AddDate(1969, 0, 0), 1, 3)
	prune(now.AddDate(1, 0, 0), 0, 1)
	put(1)
	if d := cmp.Diff([]int64{7}, left()); d != "" {
		t.Errorf("IDs after all were dropped (-want +got):\n%s", d)
	}
	put(9)                                     // 8 to 16; 7 and 8 are of one time, then an hour each
	for i, want := range []int64{3, 3, 2, 0} { // by age 7 to 10, by number four more
		update(t, s, func(tx store.Tx) error {
			n, err := tx.PruneEvents(ctx(), now.Add(3*time.Hour), 2, 3)
			if n != want {
				t.Errorf("round %d of three at most dropped %d, want %d", i, n, want)
			}
			return err
		})
	}
	if d := cmp.Diff([]int64{15, 16}, left()); d != "" {
		t.Errorf("in rounds (-want +got):\n%s", d)
	}
}

func (s Suite) durable(t *testing.T) {
	st := s.New(t)
	n := sample("n1", "52:54:00:00:00:01")
	update(t, st, func(tx store.Tx) error {
		return errors.Join(tx.CreateNode(ctx(), n), tx.CreateRollout(ctx(), &fleet.Rollout{}),
			tx.AppendEvent(ctx(), &fleet.Event{At: now, Kind: "a"}),
			tx.PutTicket(ctx(), &store.Ticket{Kind: "nonce", Key: "k", Node: "n1", Expires: now.Add(time.Minute)}))
	})
	n.LastSeen = now.Add(time.Hour)
	if err := st.Seen(ctx(), "n1", n.Reported.Clone(), n.LastSeen); err != nil {
		t.Fatal(err)
	}
	st = s.Reopen(t, st)
	defer st.Close()
	got, err := st.NodeByMAC(ctx(), "52:54:00:00:00:01")
	if d := cmp.Diff(n, got); err != nil || d != "" {
		t.Errorf("node: %v (-want +got):\n%s", err, d)
	}
	r, e := &fleet.Rollout{}, fleet.Event{At: now, Kind: "b"}
	update(t, st, func(tx store.Tx) error { return errors.Join(tx.CreateRollout(ctx(), r), tx.AppendEvent(ctx(), &e)) })
	if r.ID != "r2" || e.ID != 2 {
		t.Errorf("after reopening: rollout %q, event %d; want r2, 2", r.ID, e.ID)
	}
	update(t, st, func(tx store.Tx) error { _, err := tx.TakeTicket(ctx(), "nonce", "k", "n1", now); return err })
}
