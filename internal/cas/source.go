package cas

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"time"

	"github.com/turnout-project/turnout/internal/pause"
)

// Source has blobs by their SHA-256, such as an OCI registry does.
type Source interface {
	// Open opens the blob of that SHA-256 (64 hex digits) and size in bytes.
	// fs.ErrNotExist tells that asking again does not help. What is read is
	// checked by the store.
	Open(ctx context.Context, sum string, size int64) (io.ReadCloser, error)
	// String is its name for people.
	String() string
}

// fetchSource brings an item from one source, and asks again when a
// connection breaks.
func (s *Store) fetchSource(ctx context.Context, it Item, from Source, m *meter) error {
	var err error
	for n := range attempts {
		if n > 0 {
			if err := pause.For(ctx, time.Duration(1<<n)*250*time.Millisecond); err != nil {
				return err
			}
		}
		err = s.fetchOpened(ctx, it, from, m)
		var mismatch *MismatchError
		if err == nil || errors.Is(err, fs.ErrNotExist) || errors.As(err, &mismatch) && mismatch.GotSize >= it.Size {
			return err
		}
	}
	return fmt.Errorf("%w (%d attempts)", err, attempts)
}

func (s *Store) fetchOpened(ctx context.Context, it Item, from Source, m *meter) error {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	r, err := from.Open(ctx, it.SHA256, it.Size)
	if err != nil {
		return err
	}
	body := &watched{r: r, meter: m, item: it, timer: time.AfterFunc(stalled, func() {
		cancel(fmt.Errorf("nothing came for %s", stalled))
	})}
	defer body.timer.Stop()
	if err = errors.Join(s.Put(ctx, it.SHA256, it.Size, body), r.Close()); err != nil {
		m.lost(body.n)
	}
	return err
}
