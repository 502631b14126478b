package postgres_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/pgtest"
	"github.com/turnout-project/turnout/internal/store/postgres"
	"github.com/turnout-project/turnout/internal/store/storetest"
)

var cluster *pgtest.Cluster

func TestMain(m *testing.M) {
	os.Exit(pgtest.Main(m, func(c *pgtest.Cluster) { cluster = c }))
}

func database(t *testing.T) string {
	t.Helper()
	if cluster == nil {
		t.Skip(pgtest.ErrNone)
	}
	url, err := cluster.Database()
	if err != nil {
		t.Fatal(err)
	}
	return url
}

func open(t *testing.T, url string) store.Store {
	t.Helper()
	s, err := postgres.Open(context.Background(), url, "")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	urls := map[store.Store]string{}
	storetest.Suite{
		New: func(t *testing.T) store.Store {
			url := database(t)
			s := open(t, url)
			urls[s] = url
			return s
		},
		Reopen: func(t *testing.T, s store.Store) store.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			return open(t, urls[s])
		},
		Twin: func(t *testing.T, s store.Store) store.Store { return open(t, urls[s]) },
	}.Run(t)
}

// Only one of many leads, and when its session ends another one does.
func TestOneLeads(t *testing.T) {
	url := database(t)
	ctx, stop := context.WithCancel(context.Background())
	leads, over := make(chan int, 10), make(chan int, 10)
	var all sync.WaitGroup
	for i := range 2 {
		s := open(t, url)
		all.Go(func() {
			defer s.Close()
			store.Lead(ctx, s, func(ctx context.Context) { leads <- i; <-ctx.Done(); over <- i })
		})
	}
	defer all.Wait()
	defer stop()
	first := <-leads
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	for range 3 { // whoever leads, once it is cut off somebody leads again, and never two
		if len(leads) != 0 {
			t.Fatal("two lead")
		}
		if _, err := db.Exec("SELECT pg_terminate_backend(pid) FROM pg_locks WHERE locktype = 'advisory' AND objid = $1::bigint & 4294967295 AND granted", int64(0x7475726e02)); err != nil {
			t.Fatal(err)
		}
		// The lock is free from here on, but the old leader may not know yet:
		// what it does then is refused by the store where it matters.
		if ended, next := <-over, <-leads; ended != first {
			t.Fatalf("%d ended and %d leads; %d led", ended, next, first)
		} else {
			first = next
		}
	}
}

// A leader that ends of itself lets go at once, though its store stays open.
func TestLeadIsLetGo(t *testing.T) {
	url := database(t)
	a, b := open(t, url), open(t, url)
	defer a.Close()
	defer b.Close()
	ctx, stop := context.WithCancel(context.Background())
	began := make(chan struct{})
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		store.Lead(ctx, a, func(ctx context.Context) { close(began); <-ctx.Done() })
	}()
	<-began
	stop()
	<-ended
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var free bool
	for end := time.Now().Add(5 * time.Second); !free && time.Now().Before(end); { // idle_session_timeout would take 8 s
		if err := db.QueryRow("SELECT count(*) = 0 FROM pg_locks WHERE locktype = 'advisory' AND granted").Scan(&free); err != nil {
			t.Fatal(err)
		}
	}
	if !free {
		t.Error("the lock is still held by a session that nobody uses")
	}
}

// A server that hangs while it writes loses its turn.
func TestHungWriterLosesItsTurn(t *testing.T) {
	url := database(t)
	url += "&idle_in_transaction_session_timeout=1s" // as Open sets it, but sooner
	a, b := open(t, url), open(t, url)
	defer b.Close()
	hold := make(chan struct{})
	got := make(chan error, 1)
	held := make(chan struct{})
	go func() {
		got <- a.Update(context.Background(), func(tx store.Tx) error {
			close(held)
			<-hold
			return tx.PutPool(context.Background(), &fleet.Pool{Name: "late"})
		})
	}()
	<-held
	err := b.Update(context.Background(), func(tx store.Tx) error { return tx.PutPool(context.Background(), &fleet.Pool{Name: "p"}) })
	close(hold)
	if err != nil {
		t.Errorf("the other server could not write: %v", err)
	}
	if err := <-got; err == nil {
		t.Error("the one that hung was told that it has written")
	}
	ps, err := b.Pools(context.Background())
	if err != nil || len(ps) != 1 || ps[0].Name != "p" {
		t.Errorf("pools = %v, %v", ps, err)
	}
	a.Close()
}

// Two servers keep one state, whatever they write at once.
func TestTwoWriters(t *testing.T) {
	url := database(t)
	ctx := context.Background()
	a, b := open(t, url), open(t, url)
	defer a.Close()
	defer b.Close()
	const each = 40
	err := a.Update(ctx, func(tx store.Tx) error {
		_, err := tx.Nodes(ctx)
		return errors.Join(err, tx.CreateNode(ctx, &fleet.Node{Name: "n"}))
	})
	if err != nil {
		t.Fatal(err)
	}
	var all sync.WaitGroup
	for i, s := range []store.Store{a, b, a, b} {
		all.Go(func() {
			last := uint64(0)
			for k := range each {
				n, err := store.UpdateNode(ctx, s, "n", func(n *fleet.Node) error { n.Desired.Generation++; return nil })
				if err != nil {
					t.Error(err)
					return
				}
				got, err := s.Node(ctx, "n")
				if err != nil || got.Desired.Generation < n.Desired.Generation || got.Desired.Generation < last {
					t.Errorf("after writing %d, and seeing %d: %v, %v", n.Desired.Generation, last, got, err)
				}
				last = got.Desired.Generation
				err = s.Update(ctx, func(tx store.Tx) error {
					return errors.Join(tx.CreateNode(ctx, &fleet.Node{Name: fmt.Sprint(i, "-", k)}), tx.AppendEvent(ctx, &fleet.Event{Kind: "x"}))
				})
				if err != nil {
					t.Error(err)
				}
			}
		})
	}
	all.Wait()
	for _, s := range []store.Store{a, b} {
		n, err := s.Node(ctx, "n")
		all, err2 := s.Nodes(ctx)
		if err != nil || err2 != nil || n.Desired.Generation != 4*each || len(all) != 4*each+1 {
			t.Errorf("generation %d of %d nodes, %v, %v; want %d of %d", n.Desired.Generation, len(all), err, err2, 4*each, 4*each+1)
		}
	}
}

func TestRefusals(t *testing.T) {
	url := database(t)
	if err := postgres.Check(context.Background(), url, ""); err != nil {
		t.Errorf("Check before there are tables: %v", err)
	}
	open(t, url).Close()
	if err := postgres.Check(context.Background(), url, ""); err != nil {
		t.Errorf("Check: %v", err)
	}
	db, err := sql.Open("pgx", url)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("INSERT INTO node (name, doc) VALUES ('x', '{}')"); err == nil || !strings.Contains(err.Error(), "pxeserver only") {
		t.Errorf("writing by hand: %v; want it refused, it would not be seen", err)
	}
	if _, err := db.Exec("INSERT INTO migration VALUES (999, 'later')"); err != nil {
		t.Fatal(err)
	}
	if err := postgres.Check(context.Background(), url, ""); err == nil || !strings.Contains(err.Error(), "newer pxeserver") {
		t.Errorf("Check of tables of a newer program: %v", err)
	}
	if _, err := postgres.Open(context.Background(), url, ""); err == nil || !strings.Contains(err.Error(), "newer pxeserver") {
		t.Errorf("tables of a newer program: %v; want them refused", err)
	}
	secret := "s3cr3t"
	for _, bad := range []string{"postgres://u:" + secret + "@127.0.0.1:1/x?connect_timeout=1", "postgres://u:" + secret + "@[::bad/x"} {
		if _, err := postgres.Open(context.Background(), bad, secret); err == nil || strings.Contains(err.Error(), secret) {
			t.Errorf("Open = %v; want an error without the password", err)
		}
	}
}

// What a heartbeat said to one server is known to the other in a while, and
// to one that starts later, when nobody wrote it into the node.
func TestSeenByOther(t *testing.T) {
	url := database(t)
	ctx := context.Background()
	a, b := open(t, url), open(t, url)
	defer b.Close()
	if err := a.Update(ctx, func(tx store.Tx) error { return tx.CreateNode(ctx, &fleet.Node{Name: "n", Reported: &fleet.Report{}}) }); err != nil {
		t.Fatal(err)
	}
	at := time.Now().UTC()
	rep := &fleet.Report{Activity: "idle", Metrics: map[string]float64{"x": 1}}
	if err := a.Seen(ctx, "n", rep, at); err != nil {
		t.Fatal(err)
	}
	a.Close() // which tells what is not told yet
	check := func(s store.Store) bool {
		n, err := s.Node(ctx, "n")
		return err == nil && n.LastSeen.Equal(at) && cmp.Equal(n.Reported, rep)
	}
	for end := time.Now().Add(time.Minute); !check(b); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the other server does not hear of it")
		}
	}
	c := open(t, url)
	defer c.Close()
	if !check(c) {
		t.Error("a server that starts does not know of it")
	}
}
