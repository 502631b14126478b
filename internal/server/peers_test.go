package server

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/mem"
)

// One slow GPU is named, once, and once more when it is well again; a glance
// is not enough for either. Case C81: a number that flaps makes no event.
func TestComparePeers(t *testing.T) {
	ctx, st := context.Background(), mem.New()
	now := time.Now()
	s := New(Options{Store: st, Now: func() time.Time { return now }})
	if err := st.Update(ctx, func(tx store.Tx) error {
		for i := range 8 {
			if err := tx.CreateNode(ctx, &fleet.Node{Name: fmt.Sprint("n", i), Pool: "rack"}); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		t.Fatal(err)
	}
	seen := map[[2]string]*outlying{}
	round := func(slow float64) {
		t.Helper()
		for i := range 8 {
			m := map[string]float64{"gpu.0.sm_clock_hertz": 1.98e9 + float64(i)*1e6}
			if i == 3 {
				m["gpu.0.sm_clock_hertz"] = slow
			}
			if err := st.Seen(ctx, fmt.Sprint("n", i), &fleet.Report{Metrics: m}, now); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.ComparePeers(ctx, seen); err != nil {
			t.Fatal(err)
		}
	}
	for i := range 12 {
		round([]float64{1.2e9, 1.98e9}[i%2])
	}
	told := func() (out []string) {
		ev, err := st.Events(ctx, store.EventQuery{})
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range ev {
			out = append(out, e.Kind+" "+e.Node)
		}
		return out
	}
	if got := told(); got != nil {
		t.Errorf("a number that flaps: %v", got)
	}
	for range 12 {
		round(1.2e9)
	}
	for range 12 {
		round(1.98e9)
	}
	if d := cmp.Diff([]string{"node.outlier n3", "node.inlier n3"}, told()); d != "" {
		t.Errorf("events (-want +got):\n%s", d)
	}
	if len(seen) != 0 {
		t.Errorf("%d numbers are remembered for ever", len(seen))
	}
}
