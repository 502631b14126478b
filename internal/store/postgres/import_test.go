package postgres_test

import (
	"context"
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/postgres"
	"github.com/turnout-project/turnout/internal/store/schema"
	"github.com/turnout-project/turnout/internal/store/sqlite"
)

// A fleet moves from its file into a database, whole.
func TestImport(t *testing.T) {
	url := database(t)
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "fleet.db")
	from, err := sqlite.Open(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	at := time.Date(2026, 3, 1, 12, 0, 0, 5, time.UTC)
	err = from.Update(ctx, func(tx store.Tx) error {
		return errors.Join(
			tx.CreateNode(ctx, &fleet.Node{Name: "n1", MACs: []fleet.MAC{"52:54:00:00:00:01", "52:54:00:00:00:02"}, EKHash: "e1", State: fleet.NodeApproved, Reported: &fleet.Report{}}),
			tx.CreateNode(ctx, &fleet.Node{Name: "n2", MACs: []fleet.MAC{}}),
			tx.PutPool(ctx, &fleet.Pool{Name: "rack"}), tx.PutImage(ctx, &fleet.Image{Digest: "sha256:aa", Published: at}),
			tx.CreateRollout(ctx, &fleet.Rollout{State: fleet.RolloutRunning, Nodes: []fleet.Move{{Node: "n1", State: fleet.MoveWaiting}}}),
			tx.AppendEvent(ctx, &fleet.Event{At: at, Kind: "a"}), tx.AppendEvent(ctx, &fleet.Event{At: at, Kind: "b", Message: "x\x00\xffy"}),
			tx.PutEnrolment(ctx, &store.Enrolment{Node: "n1", AKPublic: []byte{0, 255}}),
			tx.PutTicket(ctx, &store.Ticket{Kind: "nonce", Key: "k", Node: "n1", Expires: at}),
			tx.PutLease(ctx, store.Lease{IP: "10.0.0.5", Doc: []byte("x")}), tx.PutBaseline(ctx, &fleet.Baseline{ID: "b"}),
			tx.PutRecord(ctx, store.Record{Kind: "bmc", Key: "n1", Node: "n1", Doc: []byte{0, 1}}))
	})
	if err == nil {
		err = from.Seen(ctx, "n1", &fleet.Report{}, at)
	}
	if err != nil {
		t.Fatal(err)
	}
	type all struct {
		Nodes     []*fleet.Node
		Rollouts  []*fleet.Rollout
		Live      []*fleet.Rollout
		Pools     []*fleet.Pool
		Images    []*fleet.Image
		Events    []fleet.Event
		Leases    []store.Lease
		Baselines []*fleet.Baseline
		Records   []store.Record
		Enrolment *store.Enrolment
	}
	read := func(s store.Store) (a all) {
		var errs [10]error
		a.Nodes, errs[0] = s.Nodes(ctx)
		a.Rollouts, errs[1] = s.Rollouts(ctx)
		a.Live, errs[2] = s.LiveRollouts(ctx)
		a.Pools, errs[3] = s.Pools(ctx)
		a.Images, errs[4] = s.Images(ctx)
		a.Events, errs[5] = s.Events(ctx, store.EventQuery{})
		a.Leases, errs[6] = s.Leases(ctx)
		a.Baselines, errs[7] = s.Baselines(ctx)
		a.Records, errs[8] = s.Records(ctx, "bmc", "", "")
		a.Enrolment, errs[9] = s.Enrolment(ctx, "n1")
		if err := errors.Join(errs[:]...); err != nil {
			t.Fatal(err)
		}
		return a
	}
	want := read(from)
	if err := from.Close(); err != nil {
		t.Fatal(err)
	}
	tables, err := sqlite.Tables(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	counts, err := postgres.Import(ctx, url, "", tables)
	if err != nil || counts["node"] != 2 || counts["ticket"] != 1 {
		t.Fatalf("Import = %v, %v", counts, err)
	}
	to := open(t, url)
	defer to.Close()
	if d := cmp.Diff(want, read(to), cmpopts.EquateEmpty()); d != "" {
		t.Errorf("(-file +database):\n%s", d)
	}
	e := fleet.Event{Kind: "next"}
	if err := to.Update(ctx, func(tx store.Tx) error { return tx.AppendEvent(ctx, &e) }); err != nil || e.ID != 3 {
		t.Errorf("the next event has ID %d, %v; want 3", e.ID, err)
	}
	if _, err := postgres.Import(ctx, url, "", tables); err == nil || !strings.Contains(err.Error(), "holds a fleet already") {
		t.Errorf("a second import: %v; want it refused", err)
	}
}

// A table that a migration makes is imported, or is no fleet state.
func TestImportKnowsAllTables(t *testing.T) {
	ms, err := schema.SQLite()
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range ms {
		for line := range strings.Lines(m.SQL) {
			if f := strings.Fields(line); len(f) > 2 && f[0] == "CREATE" && f[1] == "TABLE" && !postgres.Imports(f[2]) {
				t.Errorf("table %s of %s is not imported", f[2], m.Name)
			}
		}
	}
}
