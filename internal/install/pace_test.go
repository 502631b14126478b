package install

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

func TestPacer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		p, began := newPacer(1000), time.Now()
		for range 10 {
			if err := p.wait(t.Context(), 500); err != nil {
				t.Fatal(err)
			}
		}
		if took := time.Since(began); took != 5*time.Second {
			t.Errorf("5000 bytes at 1000 a second took %s", took)
		}
		time.Sleep(time.Hour)
		began = time.Now()
		if _ = p.wait(t.Context(), 1000); time.Since(began) != time.Second {
			t.Errorf("after an hour's rest 1000 bytes took %s: rest is no credit", time.Since(began))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := p.wait(ctx, 1<<30); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("wait = %v, want the deadline", err)
		}
		if err := newPacer(0).wait(ctx, 1<<40); err != nil {
			t.Errorf("without a bound: %v", err)
		}
	})
}

// TestRunPaced installs at a pace, by a clock that runs only while everybody
// waits: all that is fetched, and all that is read and written, is counted.
func TestRunPaced(t *testing.T) {
	for name, pace := range map[string]Pace{"network": {Fetch: 1 << 20}, "disk": {Disk: 1 << 20}} {
		synctest.Test(t, func(t *testing.T) {
			b, n := build(t, 1, nil), newNode(t)
			src, began := &source{built: b}, time.Now()
			im, err := Fetch(t.Context(), src, src.digest, trusted(src.built))
			if err != nil {
				t.Fatal(err)
			}
			target := Target{Slots: n.m, Slot: fleet.SlotA, Root: n.root(fleet.SlotA), Verity: n.verity(fleet.SlotA), Pace: pace}
			if err := Run(t.Context(), src, im, target, nil); err != nil {
				t.Fatal(err)
			}
			took := time.Since(began)
			n.wantStaged(t, b, fleet.SlotA)
			bytes := b.m.Root.SizeBytes + b.m.UKI.SizeBytes
			if name == "disk" {
				bytes = 2 * b.m.Root.SizeBytes // written, and read back
			}
			if want := time.Duration(float64(bytes) / (1 << 20) * float64(time.Second)); took < want-time.Second/100 || took > want*3/2 {
				t.Errorf("%s: it took %s, want %s and little more", name, took, want)
			}
		})
	}
}
