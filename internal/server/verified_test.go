package server

import (
	"context"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/mem"
)

// A server that was away for long does not tell of its whole fleet when it is
// back, but of those that do not come back with it.
func TestUnverifiedAfterOutage(t *testing.T) {
	ctx := context.Background()
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	ca, _, _, err := NewCA(now)
	if err != nil {
		t.Fatal(err)
	}
	st := mem.New()
	s := New(Options{Store: st, CA: ca, AttestAlarm: time.Hour, AttestEvery: 10 * time.Minute, Now: func() time.Time { return now }})
	node := func(name string, verified time.Time) {
		err := st.Update(ctx, func(tx store.Tx) error {
			if n, err := tx.Node(ctx, name); err == nil {
				n.Verified = verified
				return tx.PutNode(ctx, n)
			}
			return tx.CreateNode(ctx, &fleet.Node{Name: name, Pool: "rack", State: fleet.NodeApproved, EKHash: "ek-" + name, Verified: verified})
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	told := func() (names []string) {
		events, err := st.Events(ctx, store.EventQuery{Kind: "node.unverified"})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range events {
			names = append(names, e.Node)
		}
		return names
	}
	node("n1", now.Add(-5*time.Hour))
	node("n2", now.Add(-5*time.Hour))
	began, stale := now, map[string]time.Time{}
	look := func() {
		if err := s.findUnverified(ctx, stale, began); err != nil {
			t.Fatal(err)
		}
	}
	look()
	now = now.Add(15 * time.Minute)
	node("n1", now)
	look()
	if got := told(); len(got) != 0 {
		t.Errorf("told of %v while nodes come back", got)
	}
	now = now.Add(6 * time.Minute)
	look()
	look()
	if got := told(); len(got) != 1 || got[0] != "n2" {
		t.Errorf("told of %v; want n2, which did not come back, once", got)
	}
}
