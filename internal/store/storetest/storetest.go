// Package storetest is the conformance suite of store.Store: every
// implementation runs it, so that callers need to know only one behaviour.
package storetest

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

// Suite tests one implementation.
type Suite struct {
	// New returns an empty store. The suite closes it.
	New func(t *testing.T) store.Store
	// Reopen closes s and returns a store of the same state, or is nil for
	// one that does not last.
	Reopen func(t *testing.T, s store.Store) store.Store
	// Twin returns another store of the same state, as another server has it,
	// or is nil for one that cannot be shared.
	Twin func(t *testing.T, s store.Store) store.Store
}

var now = time.Date(2026, 3, 1, 12, 0, 0, 123456789, time.UTC)

// Run runs the suite.
func (s Suite) Run(t *testing.T) {
	for _, c := range []struct {
		name string
		test func(*testing.T, store.Store)
	}{
		{"node round trip", nodeRoundTrip},
		{"node identity is unique", nodeIdentity},
		{"node removal forgets all", nodeRemoval},
		{"enrolments are not remembered beyond their change", func(t *testing.T, s store.Store) { revocation(t, s, s) }},
		{"an error undoes the update", undo},
		{"updates of one node do not lose each other", concurrent},
		{"returned nodes are copies", copies},
		{"update after cancellation does nothing", cancelled},
		{"pools and images", poolsAndImages},
		{"image removal", imageRemoval},
		{"rollouts", rollouts},
		{"baselines", baselines},
		{"records", records},
		{"events", events},
		{"events are pruned", pruning},
		{"heartbeats without news", seen},
		{"live rollouts", liveRollouts},
		{"tickets are taken once", tickets},
		{"leases", leases},
		{"a caller that goes away", gaveUp},
	} {
		t.Run(c.name, func(t *testing.T) {
			st := s.New(t)
			defer st.Close()
			c.test(t, st)
		})
	}
	if s.Twin != nil {
		t.Run("two stores of one state", s.twins)
	}
	if s.Reopen != nil {
		t.Run("state outlives the store", s.durable)
	}
}

func ctx() context.Context { return context.Background() }

func update(t *testing.T, s store.Store, fn func(tx store.Tx) error) {
	t.Helper()
	if err := s.Update(ctx(), fn); err != nil {
		t.Fatalf("Update: %v", err)
	}
}

func wantErr(t *testing.T, what string, err, want error) {
	t.Helper()
	if !errors.Is(err, want) {
		t.Errorf("%s: error %v; want %v", what, err, want)
	}
}

func sample(name string, macs ...fleet.MAC) *fleet.Node {
	return &fleet.Node{
		Name: name, Pool: "canary", MACs: macs, State: fleet.NodeApproved,
		Desired:  fleet.Desired{Image: "sha256:aa", Generation: 3, Rollout: "r1"},
		Reported: &fleet.Report{Stage: fleet.StageSystem, Booted: fleet.SlotA, Slots: []fleet.SlotReport{{Slot: fleet.SlotA, State: fleet.SlotGood}}},
		Banned:   []fleet.Ban{{Image: "sha256:bb", Reason: "check failed", At: now}},
		Created:  now,
	}
}

func nodeRoundTrip(t *testing.T, s store.Store) {
	want := sample("n1", "52:54:00:00:00:01", "52:54:00:00:00:02")
	want.EKHash = "e1"
	update(t, s, func(tx store.Tx) error { return tx.CreateNode(ctx(), want) })
	for what, read := range map[string]func() (*fleet.Node, error){
		"Node":      func() (*fleet.Node, error) { return s.Node(ctx(), "n1") },
		"NodeByEK":  func() (*fleet.Node, error) { return s.NodeByEK(ctx(), "e1") },
		"NodeByMAC": func() (*fleet.Node, error) { return s.NodeByMAC(ctx(), "52:54:00:00:00:02") },
	} {
		got, err := read()
		if err != nil {
			t.Errorf("%s: %v", what, err)
			continue
		}
		if d := cmp.Diff(want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", what, d)
		}
	}
	_, err := s.Node(ctx(), "nobody")
	wantErr(t, "Node(nobody)", err, store.ErrNotFound)
	_, err = s.NodeByEK(ctx(), "")
	wantErr(t, `NodeByEK("")`, err, store.ErrNotFound)
	_, err = s.NodeByMAC(ctx(), "52:54:00:00:00:99")
	wantErr(t, "NodeByMAC(stranger)", err, store.ErrNotFound)
	update(t, s, func(tx store.Tx) error { return tx.CreateNode(ctx(), sample("a0")) })
	if got, err := store.Peek(ctx(), s, []string{"n1", "nobody", "a0"}); err != nil || len(got) != 2 || !cmp.Equal(got[0], want) || got[1].Name != "a0" {
		t.Errorf("Peek = %v, %v; want n1 and a0", got, err)
	}
	all, err := s.Nodes(ctx())
	if err != nil || len(all) != 2 || all[0].Name != "a0" || all[1].Name != "n1" {
		t.Errorf("Nodes() = %v, %v; want a0 and n1 in that order", all, err)
	}
}

func nodeIdentity(t *testing.T, s store.Store) {
	a, b := sample("a", "52:54:00:00:00:01"), sample("b", "52:54:00:00:00:02")
	a.EKHash = "e1"
	update(t, s, func(tx store.Tx) error { return errors.Join(tx.CreateNode(ctx(), a), tx.CreateNode(ctx(), b)) })

	try := func(fn func(tx store.Tx) error) error { return s.Update(ctx(), fn) }
	wantErr(t, "same name", try(func(tx store.Tx) error { return tx.CreateNode(ctx(), sample("a")) }), store.ErrExists)
	wantErr(t, "same MAC", try(func(tx store.Tx) error { return tx.CreateNode(ctx(), sample("c", "52:54:00:00:00:01")) }), store.ErrConflict)
	wantErr(t, "put of a stranger", try(func(tx store.Tx) error { return tx.PutNode(ctx(), sample("nobody")) }), store.ErrNotFound)
	wantErr(t, "same TPM", try(func(tx store.Tx) error { b := sample("b"); b.EKHash = "e1"; return tx.PutNode(ctx(), b) }), store.ErrConflict)
	wantErr(t, "MAC of another", try(func(tx store.Tx) error { return tx.PutNode(ctx(), sample("b", "52:54:00:00:00:01")) }), store.ErrConflict)

	// A MAC that is given up can be another node's, also inside one update.
	update(t, s, func(tx store.Tx) error {
		a.MACs, b.MACs = []fleet.MAC{"52:54:00:00:00:03"}, []fleet.MAC{"52:54:00:00:00:01"}
		return errors.Join(tx.PutNode(ctx(), a), tx.PutNode(ctx(), b))
	})
	if n, err := s.NodeByMAC(ctx(), "52:54:00:00:00:01"); err != nil || n.Name != "b" {
		t.Errorf("NodeByMAC after the move = %v, %v; want b", n, err)
	}
	_, err := s.NodeByMAC(ctx(), "52:54:00:00:00:02")
	wantErr(t, "MAC given up", err, store.ErrNotFound)
}

func nodeRemoval(t *testing.T, s store.Store) {
	n := sample("n1", "52:54:00:00:00:01")
	n.EKHash = "e1"
	update(t, s, func(tx store.Tx) error {
		return errors.Join(tx.CreateNode(ctx(), n),
			tx.PutEnrolment(ctx(), &store.Enrolment{Node: "n1", EKHash: "e1", AKPublic: []byte{1, 2}}),
			tx.PutTicket(ctx(), &store.Ticket{Kind: "nonce", Key: "k", Node: "n1", Expires: now.Add(time.Hour)}))
	})
	if e, err := s.Enrolment(ctx(), "n1"); err != nil || string(e.AKPublic) != "\x01\x02" {
		t.Errorf("Enrolment = %+v, %v", e, err)
	}
	update(t, s, func(tx store.Tx) error { return tx.DeleteNode(ctx(), "n1") })
	wantErr(t, "second removal", s.Update(ctx(), func(tx store.Tx) error { return tx.DeleteNode(ctx(), "n1") }), store.ErrNotFound)
	_, err := s.Enrolment(ctx(), "n1")
	wantErr(t, "Enrolment", err, store.ErrNotFound)
	_, err = s.NodeByEK(ctx(), "e1")
	wantErr(t, "NodeByEK", err, store.ErrNotFound)
	err = s.Update(ctx(), func(tx store.Tx) error {
		_, err := tx.TakeTicket(ctx(), "nonce", "k", "n1", now)
		return err
	})
	wantErr(t, "TakeTicket", err, store.ErrNotFound)
	update(t, s, func(tx store.Tx) error { return tx.CreateNode(ctx(), n) })
}

func undo(t *testing.T, s store.Store) {
	update(t, s, func(tx store.Tx) error { return tx.CreateNode(ctx(), sample("n1", "52:54:00:00:00:01")) })
	mine := errors.New("changed my mind")
	err := s.Update(ctx(), func(tx store.Tx) error {
		n, err := tx.Node(ctx(), "n1")
		if err != nil {
			return err
		}
		n.MACs = []fleet.MAC{"52:54:00:00:00:07"}
		n.Desired.Generation = 99
		e := errors.Join(tx.PutNode(ctx(), n), tx.CreateNode(ctx(), sample("n2", "52:54:00:00:00:08")),
			tx.AppendEvent(ctx(), &fleet.Event{At: now, Kind: "x"}), tx.PutPool(ctx(), &fleet.Pool{Name: "p"}))
		if e != nil {
			return e
		}
		if n, err := tx.NodeByMAC(ctx(), "52:54:00:00:00:07"); err != nil || n.Desired.Generation != 99 {
			return fmt.Errorf("update does not see its own write: %v, %v", n, err)
		}
		return mine
	})
	if !errors.Is(err, mine) {
		t.Errorf("Update = %v; want the function's own error", err)
	}
	n, err := s.NodeByMAC(ctx(), "52:54:00:00:00:01")
	if err != nil || n.Desired.Generation != 3 {
		t.Errorf("node after a failed update = %+v, %v; want it unchanged", n, err)
	}
	_, err = s.Node(ctx(), "n2")
	wantErr(t, "node made by a failed update", err, store.ErrNotFound)
	_, err = s.Pool(ctx(), "p")
	wantErr(t, "pool made by a failed update", err, store.ErrNotFound)
	if ev, err := s.Events(ctx(), store.EventQuery{}); err != nil || len(ev) != 0 {
		t.Errorf("events after a failed update = %v, %v; want none", ev, err)
	}
}

func concurrent(t *testing.T, s store.Store) {
	update(t, s, func(tx store.Tx) error { return tx.CreateNode(ctx(), sample("n1")) })
	const workers, each = 8, 20
	var wg sync.WaitGroup
	for range workers {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range each {
				if _, err := store.UpdateNode(ctx(), s, "n1", func(n *fleet.Node) error { n.Desired.Generation++; return nil }); err != nil {
					t.Errorf("UpdateNode: %v", err)
				}
				if _, err := s.Nodes(ctx()); err != nil {
					t.Errorf("Nodes beside updates: %v", err)
				}
			}
		}()
	}
	wg.Wait()
	if n, err := s.Node(ctx(), "n1"); err != nil || n.Desired.Generation != 3+workers*each {
		t.Errorf("generation = %v, %v; want %d: no update may be lost", n.Desired.Generation, err, 3+workers*each)
	}
}

func copies(t *testing.T, s store.Store) {
	mine := sample("n1")
	update(t, s, func(tx store.Tx) error { return tx.CreateNode(ctx(), mine) })
	mine.Banned[0].Image = "scribbled"
	got, _ := s.Node(ctx(), "n1")
	got.Reported.Slots[0].State = fleet.SlotBad
	again, err := s.Node(ctx(), "n1")
	if err != nil || again.Banned[0].Image != "sha256:bb" || again.Reported.Slots[0].State != fleet.SlotGood {
		t.Errorf("Node = %+v, %v; want what was stored, whatever callers did to their copies", again, err)
	}
}

func cancelled(t *testing.T, s store.Store) {
	c, cancel := context.WithCancel(ctx())
	cancel()
	err := s.Update(c, func(tx store.Tx) error { return tx.CreateNode(ctx(), sample("n1")) })
	wantErr(t, "Update with a cancelled context", err, context.Canceled)
	_, err = s.Node(ctx(), "n1")
	wantErr(t, "Node", err, store.ErrNotFound)
}

func poolsAndImages(t *testing.T, s store.Store) {
	old := &fleet.Image{Digest: "sha256:01", Name: "rack-base", Version: "1", Published: now}
	recent := &fleet.Image{Digest: "sha256:02", Name: "rack-base", Version: "2", Published: now.Add(time.Second)}
	update(t, s, func(tx store.Tx) error {
		return errors.Join(tx.PutImage(ctx(), old), tx.PutImage(ctx(), recent), tx.PutImage(ctx(), old),
			tx.PutPool(ctx(), &fleet.Pool{Name: "z"}), tx.PutPool(ctx(), &fleet.Pool{Name: "a"}),
			tx.PutPool(ctx(), &fleet.Pool{Name: "z", Image: "sha256:02", AutoApprove: true}))
	})
	is, err := s.Images(ctx())
	if d := cmp.Diff([]*fleet.Image{recent, old}, is); err != nil || d != "" {
		t.Errorf("Images: %v (-want +got):\n%s", err, d)
	}
	ps, err := s.Pools(ctx())
	if d := cmp.Diff([]*fleet.Pool{{Name: "a"}, {Name: "z", Image: "sha256:02", AutoApprove: true}}, ps); err != nil || d != "" {
		t.Errorf("Pools: %v (-want +got):\n%s", err, d)
	}
	_, err = s.Image(ctx(), "sha256:03")
	wantErr(t, "Image", err, store.ErrNotFound)
}

func rollouts(t *testing.T, s store.Store) {
	r := &fleet.Rollout{
		Image: "sha256:01", State: fleet.RolloutRunning, Created: now, Updated: now, By: "alice",
		Policy: fleet.Policy{Stages: []fleet.RolloutStage{{Pool: "canary"}}, MaxUnavailable: fleet.Amount{Nodes: 1}, Bake: time.Minute},
		Nodes:  []fleet.Move{{Node: "n2", State: fleet.MoveWaiting}, {Node: "n1", State: fleet.MoveWaiting}},
	}
	update(t, s, func(tx store.Tx) error { return tx.CreateRollout(ctx(), r) })
	if r.ID != "r1" {
		t.Errorf("first rollout is %q; want r1", r.ID)
	}
	r.Nodes[1] = fleet.Move{Node: "n1", State: fleet.MoveMoving, Generation: 4, Started: now}
	r.State = fleet.RolloutPaused
	update(t, s, func(tx store.Tx) error { return tx.PutRollout(ctx(), r) })
	got, err := s.Rollout(ctx(), "r1")
	if d := cmp.Diff(r, got, cmpopts.EquateEmpty()); err != nil || d != "" {
		t.Errorf("Rollout: %v (-want +got):\n%s", err, d)
	}
	for i := 2; i <= 11; i++ {
		update(t, s, func(tx store.Tx) error { return tx.CreateRollout(ctx(), &fleet.Rollout{}) })
	}
	all, err := s.Rollouts(ctx())
	if err != nil || len(all) != 11 || all[1].ID != "r2" || all[10].ID != "r11" || len(all[0].Nodes) != 2 {
		t.Errorf("Rollouts = %v, %v; want r1 … r11 by age, with their moves", all, err)
	}
	wantErr(t, "PutRollout", s.Update(ctx(), func(tx store.Tx) error { return tx.PutRollout(ctx(), &fleet.Rollout{ID: "r99"}) }), store.ErrNotFound)
	for _, id := range []string{"r99", "1", "", "rx"} {
		_, err = s.Rollout(ctx(), id)
		wantErr(t, fmt.Sprintf("Rollout(%q)", id), err, store.ErrNotFound)
	}
}

func events(t *testing.T, s store.Store) {
	var want []fleet.Event
	update(t, s, func(tx store.Tx) error {
		for i, k := range []string{"dhcp.offer", "node.enrolled", "node.approved", "slot.good"} {
			e := fleet.Event{At: now.Add(time.Duration(i)), Actor: "server", Node: "n" + fmt.Sprint(i%2), Kind: k, Message: "m"}
			if err := tx.AppendEvent(ctx(), &e); err != nil {
				return err
			}
			want = append(want, e)
		}
		return nil
	})
	for i := 1; i < len(want); i++ {
		if want[i].ID <= want[i-1].ID {
			t.Errorf("event IDs %d, %d do not rise", want[i-1].ID, want[i].ID)
		}
	}
	for _, c := range []struct {
		name string
		q    store.EventQuery
		want []fleet.Event
	}{
		{"all", store.EventQuery{}, want},
		{"after", store.EventQuery{After: want[1].ID}, want[2:]},
		{"after the last", store.EventQuery{After: want[3].ID}, nil},
		{"of a node", store.EventQuery{Node: "n1"}, []fleet.Event{want[1], want[3]}},
		{"of a kind", store.EventQuery{Kind: "node."}, want[1:3]},
		{"first two", store.EventQuery{Limit: 2}, want[:2]},
		{"last two", store.EventQuery{Limit: 2, Last: true}, want[2:]},
	} {
		got, err := s.Events(ctx(), c.q)
		if d := cmp.Diff(c.want, got, cmpopts.EquateEmpty()); err != nil || d != "" {
			t.Errorf("Events(%s): %v (-want +got):\n%s", c.name, err, d)
		}
	}
}

func tickets(t *testing.T, s store.Store) {
	take := func(kind, key, node string, at time.Time) (k *store.Ticket, err error) {
		err = s.Update(ctx(), func(tx store.Tx) error {
			k, err = tx.TakeTicket(ctx(), kind, key, node, at)
			return err
		})
		return k, err
	}
	put := func() {
		update(t, s, func(tx store.Tx) error {
			return errors.Join(tx.CreateNode(ctx(), sample("n1")), tx.CreateNode(ctx(), sample("n2")))
		})
		update(t, s, func(tx store.Tx) error {
			return errors.Join(
				tx.PutTicket(ctx(), &store.Ticket{Kind: "nonce", Key: "k", Node: "n1", Expires: now.Add(time.Minute), Payload: []byte("p")}),
				tx.PutTicket(ctx(), &store.Ticket{Kind: "nonce", Key: "old", Node: "n1", Expires: now}))
		})
	}
	put()
	_, err := take("session", "k", "n1", now)
	wantErr(t, "of another kind", err, store.ErrNotFound)
	_, err = take("nonce", "k", "n2", now)
	wantErr(t, "of another node", err, store.ErrNotFound)
	_, err = take("nonce", "old", "n1", now)
	wantErr(t, "expired", err, store.ErrNotFound)
	k, err := take("nonce", "k", "n1", now)
	if err != nil || string(k.Payload) != "p" {
		t.Errorf("first take = %+v, %v; want the payload", k, err)
	}
	_, err = take("nonce", "k", "n1", now)
	wantErr(t, "second take", err, store.ErrNotFound)
}

func leases(t *testing.T, s store.Store) {
	a, b := store.Lease{IP: "10.0.0.5", Doc: []byte("a")}, store.Lease{IP: "10.0.0.6", Doc: []byte("b")}
	update(t, s, func(tx store.Tx) error { return errors.Join(tx.PutLease(ctx(), b), tx.PutLease(ctx(), a)) })
	a.Doc = []byte("c")
	update(t, s, func(tx store.Tx) error { return tx.PutLease(ctx(), a) })
	got, err := s.Leases(ctx())
	if d := cmp.Diff([]store.Lease{a, b}, got); err != nil || d != "" {
		t.Errorf("Leases: %v (-want +got):\n%s", err, d)
	}
}
