package sqlite_test

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/sqlite"
	"github.com/turnout-project/turnout/internal/store/storetest"
)

func open(t *testing.T, path string) store.Store {
	t.Helper()
	s, err := sqlite.Open(context.Background(), path)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func TestConformance(t *testing.T) {
	paths := map[store.Store]string{}
	storetest.Suite{
		New: func(t *testing.T) store.Store {
			p := filepath.Join(t.TempDir(), "fleet.db")
			s := open(t, p)
			paths[s] = p
			return s
		},
		Reopen: func(t *testing.T, s store.Store) store.Store {
			if err := s.Close(); err != nil {
				t.Fatal(err)
			}
			return open(t, paths[s])
		},
	}.Run(t)
}

// Each failing update must leave its neighbours in the same commit alone.
func TestBatchKeepsNeighbours(t *testing.T) {
	ctx := context.Background()
	s := open(t, filepath.Join(t.TempDir(), "fleet.db"))
	defer s.Close()
	hold, held := make(chan struct{}), make(chan struct{})
	go s.Update(ctx, func(store.Tx) error { close(held); <-hold; return nil }) //nolint:errcheck // only holds the writer
	<-held
	const n = 30
	errs := make(chan error, n)
	for i := range n {
		go func() {
			errs <- s.Update(ctx, func(tx store.Tx) error {
				if err := tx.CreateNode(ctx, &fleet.Node{Name: fmt.Sprint("n", i)}); err != nil {
					return err
				}
				switch i % 3 {
				case 1:
					return errors.New("no")
				case 2:
					panic("a bug")
				}
				return nil
			})
		}()
	}
	close(hold)
	failed := 0
	for range n {
		if err := <-errs; err != nil {
			failed++
		}
	}
	nodes, err := s.Nodes(ctx)
	if err != nil || len(nodes) != n/3 || failed != 2*n/3 {
		t.Errorf("%d nodes, %d failures, %v; want %d and %d", len(nodes), failed, err, n/3, 2*n/3)
	}
}

func TestNewerFileIsRefused(t *testing.T) {
	p := filepath.Join(t.TempDir(), "fleet.db")
	s := open(t, p)
	s.Close()
	sqlite.SetVersion(t, p, 999)
	if _, err := sqlite.Open(context.Background(), p); err == nil || !strings.Contains(err.Error(), "newer pxeserver") {
		t.Errorf("Open of a newer file: %v; want it refused", err)
	}
}

// TestKilled starts this test binary as a writer that prints the number of
// each committed event, kills it without warning, and expects every printed
// event to be there: acknowledged means kept.
func TestKilled(t *testing.T) {
	p := filepath.Join(t.TempDir(), "fleet.db")
	if path := os.Getenv("TURNOUT_TEST_WRITER"); path != "" {
		writeForEver(t, path)
		return
	}
	var last int64
	for round := range 5 {
		cmd := exec.Command(os.Args[0], "-test.run=^TestKilled$")
		cmd.Env = append(os.Environ(), "TURNOUT_TEST_WRITER="+p)
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		sc := bufio.NewScanner(out)
		for lines := 0; lines < 20+round && sc.Scan(); lines++ {
			if last, err = strconv.ParseInt(sc.Text(), 10, 64); err != nil {
				t.Fatalf("writer said %q", sc.Text())
			}
		}
		cmd.Process.Kill()
		for sc.Scan() { // what it had acknowledged before it died
			if n, err := strconv.ParseInt(sc.Text(), 10, 64); err == nil {
				last = n
			}
		}
		cmd.Wait() //nolint:errcheck // killed
		s := open(t, p)
		ev, err := s.Events(context.Background(), store.EventQuery{Last: true, Limit: 1})
		s.Close()
		if err != nil || len(ev) != 1 || ev[0].ID < last {
			t.Fatalf("round %d: newest event %v, %v; want at least %d", round, ev, err, last)
		}
	}
	if last < 100 {
		t.Errorf("only %d events were written: the test did not test", last)
	}
}

func writeForEver(t *testing.T, path string) {
	s := open(t, path)
	for {
		e := fleet.Event{Kind: "x"}
		if err := s.Update(context.Background(), func(tx store.Tx) error { return tx.AppendEvent(context.Background(), &e) }); err != nil {
			t.Fatal(err)
		}
		fmt.Println(e.ID)
	}
}
