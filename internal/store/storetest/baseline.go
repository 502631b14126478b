package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

// baselines tests how baselines are kept.
func baselines(t *testing.T, s store.Store) {
	ctx := context.Background()
	a := &fleet.Baseline{ID: "a1", Model: fleet.Model{Vendor: "V", Product: "P", BIOSVersion: "1"}, Bank: "sha256",
		PCRs: map[int]string{0: "00"}, Events: map[int][]string{0: {"01", "02"}}, State: fleet.BaselineLearned, Node: "n1"}
	b := &fleet.Baseline{ID: "b2", State: fleet.BaselineApproved, By: "alice"}
	put := func(x *fleet.Baseline) {
		t.Helper()
		if err := s.Update(ctx, func(tx store.Tx) error { return tx.PutBaseline(ctx, x) }); err != nil {
			t.Fatal(err)
		}
	}
	check := func(want ...*fleet.Baseline) {
		t.Helper()
		got, err := s.Baselines(ctx)
		if err != nil {
			t.Fatal(err)
		}
		if len(want) != len(got) || len(want) > 0 && !cmp.Equal(want, got) {
			t.Errorf("Baselines (-want +got):\n%s", cmp.Diff(want, got))
		}
	}
	check()
	put(b)
	put(a)
	check(a, b)
	a.State = fleet.BaselineApproved
	put(a)
	check(a, b)
	undone := errors.New("undone")
	if err := s.Update(ctx, func(tx store.Tx) error { return errors.Join(tx.DeleteBaseline(ctx, "a1"), undone) }); !errors.Is(err, undone) {
		t.Fatal(err)
	}
	check(a, b)
	forget := func() error {
		return s.Update(ctx, func(tx store.Tx) error { return tx.DeleteBaseline(ctx, "a1") })
	}
	if err := forget(); err != nil {
		t.Fatal(err)
	}
	check(b)
	if err := forget(); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("forgetting twice: %v; want ErrNotFound", err)
	}
}
