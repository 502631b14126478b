package sqlite_test

import (
	"context"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"testing"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/sqlite"
)

// BenchmarkHeartbeat is one durable update of one of 10,000 nodes, as a
// heartbeat makes it, from many goroutines.
func BenchmarkHeartbeat(b *testing.B) {
	ctx := context.Background()
	s, err := sqlite.Open(ctx, filepath.Join(b.TempDir(), "fleet.db"))
	if err != nil {
		b.Fatal(err)
	}
	defer s.Close()
	err = s.Update(ctx, func(tx store.Tx) error {
		for i := range 10000 {
			n := &fleet.Node{Name: fmt.Sprint("n", i), MACs: []fleet.MAC{fleet.MAC(fmt.Sprintf("52:54:00:00:%02x:%02x", i>>8, i&255))}, Reported: &fleet.Report{}}
			if err := tx.CreateNode(ctx, n); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		b.Fatal(err)
	}
	var i atomic.Int64
	b.SetParallelism(64)
	b.RunParallel(func(pb *testing.PB) {
		for pb.Next() {
			_, err := store.UpdateNode(ctx, s, fmt.Sprint("n", i.Add(1)%10000), func(n *fleet.Node) error { n.Reported.Acted++; return nil })
			if err != nil {
				b.Error(err)
			}
		}
	})
}
