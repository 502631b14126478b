package sqlite_test

import (
	"compress/gzip"
	"context"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/sqlite"
)

// TestPreviousRelease opens state that an earlier program left behind: a node
// that lived through an installation, updates and power cuts. Nothing of it
// may be lost, and it must be fit for what comes.
func TestPreviousRelease(t *testing.T) {
	ctx := context.Background()
	path := filepath.Join(t.TempDir(), "fleet.db")
	unzip(t, "testdata/schema3.db.gz", path)
	st, err := sqlite.Open(ctx, path)
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	n, err := st.Node(ctx, "n1")
	if err != nil {
		t.Fatal(err)
	}
	if n.State != fleet.NodeApproved || n.EKHash == "" || n.AKName == "" || n.Verdict == nil || !n.Verdict.Accepted || len(n.Reported.Slots) != 2 {
		t.Errorf("node: %+v", n)
	}
	images, err := st.Images(ctx)
	if err != nil || len(images) != 2 {
		t.Errorf("%d images, %v; want 2", len(images), err)
	}
	ev, err := st.Events(ctx, store.EventQuery{Limit: 1000})
	if err != nil || len(ev) != 140 {
		t.Errorf("%d events, %v; want 140", len(ev), err)
	}
	baselines, err := st.Baselines(ctx)
	if err != nil || len(baselines) != 1 {
		t.Errorf("%d baselines, %v; want 1", len(baselines), err)
	}
	if err := st.Update(ctx, func(tx store.Tx) error {
		return tx.AppendEvent(ctx, &fleet.Event{At: time.Now(), Actor: "server", Kind: "server.started", Message: "of the next version"})
	}); err != nil {
		t.Fatal(err)
	}
	if last, err := st.Events(ctx, store.EventQuery{Last: true, Limit: 1}); err != nil || len(last) != 1 || last[0].ID <= ev[len(ev)-1].ID {
		t.Errorf("the next event is %+v, %v; want its number above %d", last, err, ev[len(ev)-1].ID)
	}
}

func unzip(t *testing.T, from, to string) {
	t.Helper()
	f, err := os.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	z, err := gzip.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(z)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o600); err != nil {
		t.Fatal(err)
	}
}
