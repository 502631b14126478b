package server

import (
	"context"
	"time"

	"github.com/turnout-project/turnout/internal/pause"
	"github.com/turnout-project/turnout/internal/store"
)

// pruneEvery is how often old events are dropped.
const pruneEvery = time.Hour

// How many are dropped in one update, and the pause before the next: nodes
// that bring news wait for the writer too.
const (
	pruneAtOnce = 1000
	prunePause  = 20 * time.Millisecond
)

// Prune drops events that are older than age, and all but the newest most,
// now and every hour until ctx ends. 0 is no limit.
func (s *Server) Prune(ctx context.Context, age time.Duration, most int) {
	t := time.NewTicker(pruneEvery)
	defer t.Stop()
	for {
		if err := s.prune(ctx, age, most); err != nil && ctx.Err() == nil {
			s.log.Error("dropping old events failed; it will be tried again", "err", err)
		}
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
	}
}

func (s *Server) prune(ctx context.Context, age time.Duration, most int) error {
	before := time.Unix(0, 0)
	if age > 0 {
		before = s.now().Add(-age)
	}
	dropped, n := int64(0), int64(pruneAtOnce)
	for n == pruneAtOnce {
		err := s.Store.Update(ctx, func(tx store.Tx) (err error) {
			n, err = tx.PruneEvents(ctx, before, most, pruneAtOnce)
			return err
		})
		if err != nil {
			return err
		}
		dropped += n
		if err := pause.For(ctx, prunePause); err != nil {
			return err
		}
	}
	if dropped > 0 {
		s.log.Info("old events dropped", "count", dropped)
	}
	return nil
}
