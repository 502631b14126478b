package storetest

import (
	"context"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

// records tests documents of the server's parts.
func records(t *testing.T, s store.Store) {
	ctx := context.Background()
	update := func(fn func(tx store.Tx) error) {
		t.Helper()
		if err := s.Update(ctx, fn); err != nil {
			t.Fatal(err)
		}
	}
	put := func(kind, key, node, doc string) {
		t.Helper()
		update(func(tx store.Tx) error {
			return tx.PutRecord(ctx, store.Record{Kind: kind, Key: key, Node: node, Doc: []byte(doc)})
		})
	}
	keys := func(kind, from, to string, want ...string) {
		t.Helper()
		rs, err := s.Records(ctx, kind, from, to)
		var got []string
		for _, r := range rs {
			got = append(got, r.Key+"="+string(r.Doc))
		}
		if err != nil || !cmp.Equal(got, want) {
			t.Errorf("Records(%q, %q, %q) = %q, %v; want %q", kind, from, to, got, err, want)
		}
	}
	keys("a", "", "")
	update(func(tx store.Tx) error { return tx.CreateNode(ctx, &fleet.Node{Name: "n1"}) })
	put("a", "2", "", "x")
	put("a", "10", "n1", "y")
	put("b", "2", "n1", "z")
	put("a", "2", "", "\x00x2")
	keys("a", "", "", "10=y", "2=\x00x2")
	keys("a", "2", "", "2=\x00x2")
	keys("a", "", "2", "10=y")
	r, err := s.Record(ctx, "a", "10")
	if err != nil || !cmp.Equal(r, &store.Record{Kind: "a", Key: "10", Node: "n1", Doc: []byte("y")}) {
		t.Errorf("Record = %+v, %v", r, err)
	}
	if _, err := s.Record(ctx, "b", "10"); !errors.Is(err, store.ErrNotFound) {
		t.Errorf("a record that is not there: %v; want ErrNotFound", err)
	}
	undone := errors.New("undone")
	err = s.Update(ctx, func(tx store.Tx) error { return errors.Join(tx.DeleteRecord(ctx, "a", "2"), undone) })
	if !errors.Is(err, undone) {
		t.Fatal(err)
	}
	keys("a", "", "", "10=y", "2=\x00x2")
	update(func(tx store.Tx) error { return tx.DeleteNode(ctx, "n1") })
	keys("a", "", "", "2=\x00x2")
	keys("b", "", "")
	update(func(tx store.Tx) error { return tx.DeleteRecord(ctx, "a", "2") })
	err = s.Update(ctx, func(tx store.Tx) error { return tx.DeleteRecord(ctx, "a", "2") })
	if !errors.Is(err, store.ErrNotFound) {
		t.Errorf("forgetting twice: %v; want ErrNotFound", err)
	}
}
