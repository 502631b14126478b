package storetest

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

// twins tests that what one of two stores on the same state has committed is
// what the other reads from then on.
func (s Suite) twins(t *testing.T) {
	a := s.New(t)
	defer a.Close()
	b := s.Twin(t, a)
	defer b.Close()
	same := func(what string) {
		t.Helper()
		for name, read := range map[string]func(store.Store) (any, error){
			"nodes":    func(s store.Store) (any, error) { return s.Nodes(ctx()) },
			"live":     func(s store.Store) (any, error) { return s.LiveRollouts(ctx()) },
			"rollouts": func(s store.Store) (any, error) { return s.Rollouts(ctx()) },
			"events":   func(s store.Store) (any, error) { return s.Events(ctx(), store.EventQuery{}) },
		} {
			want, err := read(a)
			got, err2 := read(b)
			if d := cmp.Diff(want, got, cmpopts.EquateEmpty()); err != nil || err2 != nil || d != "" {
				t.Errorf("after %s: %s: %v, %v (-one +other):\n%s", what, name, err, err2, d)
			}
		}
	}
	r := &fleet.Rollout{State: fleet.RolloutRunning}
	for i := range 5 {
		r.Nodes = append(r.Nodes, fleet.Move{Node: fmt.Sprint("n", i), State: fleet.MoveWaiting})
		update(t, a, func(tx store.Tx) error { return tx.CreateNode(ctx(), sample(fmt.Sprint("n", i))) })
	}
	same("nodes were added")
	update(t, a, func(tx store.Tx) error { return tx.CreateRollout(ctx(), r) })
	same("a rollout began")
	// They take turns at the same rollout.
	for i, s := range []store.Store{b, a, b} {
		update(t, s, func(tx store.Tx) error {
			x, err := tx.Rollout(ctx(), r.ID)
			if err != nil {
				return err
			}
			x.Nodes[i].State = fleet.MoveDone
			n, err := tx.Node(ctx(), x.Nodes[i].Node)
			if err != nil {
				return err
			}
			n.Desired.Generation += 10
			return errors.Join(tx.PutNode(ctx(), n), tx.PutRollout(ctx(), x), tx.AppendEvent(ctx(), &fleet.Event{At: now, Kind: "x"}))
		})
		same(fmt.Sprint("turn ", i))
	}
	got, err := a.Rollout(ctx(), r.ID)
	if err != nil || got.Nodes[0].State != fleet.MoveDone || got.Nodes[1].State != fleet.MoveDone || got.Nodes[2].State != fleet.MoveDone || got.Nodes[3].State != fleet.MoveWaiting {
		t.Errorf("after their turns: %+v, %v", got, err)
	}
	update(t, b, func(tx store.Tx) error { got.Nodes = got.Nodes[:3]; return tx.PutRollout(ctx(), got) })
	same("a rollout got shorter")
	update(t, b, func(tx store.Tx) error { return tx.DeleteNode(ctx(), "n1") })
	same("a node was removed")
	update(t, a, func(tx store.Tx) error { return tx.CreateNode(ctx(), &fleet.Node{Name: "n1"}) })
	same("it was added again")
	wantErr(t, "adding it at the other", b.Update(ctx(), func(tx store.Tx) error { return tx.CreateNode(ctx(), &fleet.Node{Name: "n1"}) }), store.ErrExists)
	got.State = fleet.RolloutDone
	update(t, a, func(tx store.Tx) error { return tx.PutRollout(ctx(), got) })
	same("the rollout was done")
	update(t, a, func(tx store.Tx) error {
		return tx.PutTicket(ctx(), &store.Ticket{Kind: "nonce", Key: "k", Node: "n2", Expires: now.Add(time.Hour)})
	})
	take := func(s store.Store) error {
		return s.Update(ctx(), func(tx store.Tx) error { _, err := tx.TakeTicket(ctx(), "nonce", "k", "n2", now); return err })
	}
	if err := take(b); err != nil {
		t.Errorf("a ticket of the other's: %v", err)
	}
	wantErr(t, "the same once more", take(a), store.ErrNotFound)
	update(t, b, func(tx store.Tx) error { return tx.DeleteNode(ctx(), "n1") })
	revocation(t, a, b, a)
}

// revocation tests that an enrolment that was looked up is not remembered
// beyond its change, by whichever of the stores it was changed, nor beyond an
// update that was undone.
func revocation(t *testing.T, reads store.Store, writers ...store.Store) {
	taken := func(want string) {
		t.Helper()
		for range 2 { // from the database, and from wherever it is kept then
			e, err := reads.Enrolment(ctx(), "n1")
			if want == "" {
				wantErr(t, "a revoked enrolment", err, store.ErrNotFound)
				continue
			}
			if err != nil || len(e.Serials) != 1 || e.Serials[0] != want {
				t.Fatalf("Enrolment = %+v, %v; want serial %q", e, err, want)
			}
			e.Serials[0] = "mine" // a copy
		}
	}
	update(t, writers[0], func(tx store.Tx) error { return tx.CreateNode(ctx(), sample("n1")) })
	for i := range 6 {
		w := writers[i%len(writers)]
		put := func(serial string) error {
			return w.Update(ctx(), func(tx store.Tx) error {
				err := tx.PutEnrolment(ctx(), &store.Enrolment{Node: "n1", Serials: []string{serial}})
				if e, err := tx.Enrolment(ctx(), "n1"); err != nil || e.Serials[0] != serial {
					t.Errorf("an update does not see its own enrolment: %+v, %v", e, err)
				}
				if serial == "undone" {
					err = errors.New("undone")
				}
				return err
			})
		}
		if err := put(fmt.Sprint("s", i)); err != nil {
			t.Fatal(err)
		}
		taken(fmt.Sprint("s", i))
		if err := put("undone"); err == nil {
			t.Fatal("an update that failed was done")
		}
		taken(fmt.Sprint("s", i))
		if i%3 == 2 {
			update(t, w, func(tx store.Tx) error { return tx.DeleteEnrolment(ctx(), "n1") })
			taken("")
		}
	}
	if err := writers[0].Update(ctx(), func(tx store.Tx) error {
		return tx.PutEnrolment(ctx(), &store.Enrolment{Node: "n1", Serials: []string{"last"}})
	}); err != nil {
		t.Fatal(err)
	}
	taken("last")
	update(t, writers[len(writers)-1], func(tx store.Tx) error { return tx.DeleteNode(ctx(), "n1") })
	taken("")
}

// gaveUp tests that a caller that goes away in the middle of its update
// harms no other's.
func gaveUp(t *testing.T, s store.Store) {
	c, cancel := context.WithCancel(ctx())
	err := s.Update(c, func(tx store.Tx) error {
		cancel()
		return tx.CreateNode(c, sample("n1"))
	})
	if err != nil {
		t.Errorf("cancelled when it had begun: %v; want it done", err)
	}
	if _, err := s.Node(ctx(), "n1"); err != nil {
		t.Error(err)
	}
}
