package server

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"

	"github.com/turnout-project/turnout/internal/pause"
	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/usage"
)

// kindUsage are the records of usage: one per hour under "2026-03-01T12", and
// keyUsageLast with when the last sample was taken.
const (
	kindUsage    = "usage"
	keyUsageLast = "last"
	hourForm     = "2006-01-02T15"
)

// How often usage is sampled, the longest time that one sample stands for (a
// server that was away has seen nothing), and how long hours are kept.
const (
	usageEvery = time.Minute
	usageMost  = 2 * usageEvery
	usageKeep  = 400 * 24 * time.Hour
)

// CountUsage samples what GPUs are used for until ctx ends.
func (s *Server) CountUsage(ctx context.Context) {
	for {
		if err := s.CountUsageOnce(ctx); err != nil && ctx.Err() == nil {
			s.log.Error("counting usage", "err", err)
		}
		if pause.For(ctx, usageEvery) != nil {
			return
		}
	}
}

// CountUsageOnce takes one sample. It stands for the time since the last one.
func (s *Server) CountUsageOnce(ctx context.Context) error {
	now := s.now().UTC()
	last, err := lastUsage(ctx, s.Store)
	if err != nil {
		return err
	}
	var sample map[usage.Key]usage.Sum
	if d := now.Sub(last); !last.IsZero() && d > 0 && d <= usageMost {
		nodes, err := s.Store.Nodes(ctx)
		if err != nil {
			return err
		}
		sample = usage.Sample(nodes, now, s.silentAfter(), d)
	}
	return s.Store.Update(ctx, func(tx store.Tx) error {
		again, err := lastUsage(ctx, tx)
		if err != nil || !again.Equal(last) || last.After(now) {
			return err // another server was quicker, or the clock was set back: wait for it
		}
		if err := addUsage(ctx, tx, now.Format(hourForm), sample); err != nil {
			return err
		}
		if last.Day() != now.Day() {
			if err := forgetUsage(ctx, tx, now.Add(-usageKeep)); err != nil {
				return err
			}
		}
		return putJSON(ctx, tx, kindUsage, keyUsageLast, now)
	})
}

// lastUsage is when the last sample was taken, zero before the first.
func lastUsage(ctx context.Context, r store.Reader) (last time.Time, err error) {
	err = getJSON(ctx, r, kindUsage, keyUsageLast, &last)
	if errors.Is(err, store.ErrNotFound) {
		err = nil
	}
	return last, err
}

func addUsage(ctx context.Context, tx store.Tx, hour string, sample map[usage.Key]usage.Sum) error {
	if len(sample) == 0 {
		return nil
	}
	var h usage.Hour
	if err := getJSON(ctx, tx, kindUsage, hour, &h); err != nil && !errors.Is(err, store.ErrNotFound) {
		return err
	}
	return putJSON(ctx, tx, kindUsage, hour, h.Add(sample))
}

// forgetUsage drops hours that are too old.
func forgetUsage(ctx context.Context, tx store.Tx, before time.Time) error {
	old, err := tx.Records(ctx, kindUsage, "", before.Format(hourForm))
	if err != nil {
		return err
	}
	for _, r := range old {
		if err := tx.DeleteRecord(ctx, kindUsage, r.Key); err != nil {
			return err
		}
	}
	return nil
}

// usageOf answers with what was used from a time up to another: whole hours.
func (s *Server) usageOf(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	q := r.URL.Query()
	by := usage.By(q.Get("by"))
	if by == "" {
		by = usage.ByDay
	}
	from, err1 := time.Parse(time.RFC3339, q.Get("from"))
	to, err2 := time.Parse(time.RFC3339, q.Get("to"))
	if err := errors.Join(err1, err2, by.Check()); err != nil {
		return nil, problem(http.StatusBadRequest, "", "want from and to as times such as 2026-03-01T00:00:00Z, and by as hour, day, month or all")
	}
	from, to = from.UTC().Truncate(time.Hour), to.UTC()
	if !from.Before(to) || to.Sub(from) > usageKeep+24*time.Hour {
		return nil, problem(http.StatusBadRequest, "", "from %s to %s: want a time ahead, of at most 400 days", from.Format(time.RFC3339), to.Format(time.RFC3339))
	}
	recs, err := s.Store.Records(r.Context(), kindUsage, from.Format(hourForm), to.Add(time.Hour).Format(hourForm))
	if err != nil {
		return nil, err
	}
	hours := map[time.Time]usage.Hour{}
	for _, rec := range recs {
		at, err := time.Parse(hourForm, rec.Key)
		var h usage.Hour
		if err == nil && json.Unmarshal(rec.Doc, &h) == nil {
			hours[at] = h
		}
	}
	return usage.Export(hours, from, to, by, q.Get("pool")), nil
}
