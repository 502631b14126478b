package sqlite_test

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/sqlite"
)

// A backup is of one moment, although the store is written to meanwhile, and
// opens as a store.
func TestBackupWhileWriting(t *testing.T) {
	ctx := context.Background()
	dir := t.TempDir()
	path, copied := filepath.Join(dir, "fleet.db"), filepath.Join(dir, "copy.db")
	s := open(t, path)
	defer s.Close()
	stop, stopped := make(chan struct{}), make(chan error, 1)
	wrote := make(chan struct{}, 1)
	go func() {
		for i := 0; ; i++ {
			select {
			case <-stop:
				stopped <- nil
				return
			default:
			}
			err := s.Update(ctx, func(tx store.Tx) error { // both or none
				if err := tx.CreateNode(ctx, &fleet.Node{Name: fmt.Sprint("n", i)}); err != nil {
					return err
				}
				return tx.AppendEvent(ctx, &fleet.Event{Kind: "x"})
			})
			if err != nil {
				stopped <- err
				return
			}
			select {
			case wrote <- struct{}{}:
			default:
			}
		}
	}()
	<-wrote
	if err := sqlite.Backup(ctx, path, copied); err != nil {
		t.Fatal(err)
	}
	if err := sqlite.Backup(ctx, path, copied); err == nil {
		t.Error("a backup was overwritten")
	}
	close(stop)
	if err := <-stopped; err != nil {
		t.Fatal(err)
	}
	if err := sqlite.Check(ctx, copied); err != nil {
		t.Error(err)
	}
	c := open(t, copied)
	defer c.Close()
	nodes, err := c.Nodes(ctx)
	events, err2 := c.Events(ctx, store.EventQuery{})
	if err != nil || err2 != nil || len(nodes) == 0 || len(nodes) != len(events) && len(events) < 1000 {
		t.Errorf("the copy has %d nodes and %d events, %v, %v", len(nodes), len(events), err, err2)
	}
}

func TestCheckRefuses(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "fleet.db")
	open(t, path).Close()
	if err := sqlite.Check(context.Background(), path); err != nil {
		t.Errorf("a good file: %v", err)
	}
	sqlite.SetVersion(t, path, 999)
	if err := sqlite.Check(context.Background(), path); err == nil {
		t.Error("a newer file was not refused")
	}
	if err := os.WriteFile(path, []byte("something else"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := sqlite.Check(context.Background(), path); err == nil {
		t.Error("another kind of file was not refused")
	}
}
