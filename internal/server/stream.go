package server

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/store"
)

// Limits of a watch.
const (
	rowsAtOnce   = 500
	eventsAtOnce = 500
	streamPing   = 15 * time.Second // keeps proxies from taking it for dead
	streamCheck  = 30 * time.Second // is the operator still let in?
	streamEvery  = time.Second      // between two looks
)

// watcher is one open stream of server-sent events
// (https://html.spec.whatwg.org/multipage/server-sent-events.html).
type watcher struct {
	s     *Server
	w     http.ResponseWriter
	rc    *http.ResponseController
	rows  bool   // the fleet is asked for
	rev   uint64 // of the board, as sent
	after int64  // ID of the last event sent
	sent  time.Time
}

// stream answers with news until the reader goes, the server stops or the
// operator is no longer let in.
func (s *Server) stream(w http.ResponseWriter, r *http.Request, _ string) (any, error) {
	q, _, err := eventQuery(r)
	if err != nil {
		return nil, err
	}
	t := &watcher{s: s, w: w, rc: http.NewResponseController(w), rows: r.URL.Query().Get("rows") != "", after: q.After}
	if id, err := strconv.ParseInt(r.Header.Get("Last-Event-ID"), 10, 64); err == nil {
		t.after = id
	}
	if t.after == 0 {
		last, err := s.Store.Events(r.Context(), store.EventQuery{Last: true, Limit: 1})
		if err != nil {
			return nil, err
		}
		if len(last) > 0 {
			t.after = last[0].ID
		}
	}
	w.Header().Set("Content-Type", "text/event-stream")
	w.Header().Set("Cache-Control", "no-store")
	w.Header().Set("X-Accel-Buffering", "no")
	if err := t.run(r); err != nil && r.Context().Err() == nil {
		s.log.Debug("watch ended", "client", r.RemoteAddr, "err", err)
	}
	return nil, errAnswered
}

func (t *watcher) run(r *http.Request) error {
	hello := api.Hello{Version: t.s.Version, Now: t.s.now(), Heartbeat: int(t.s.Heartbeat.Seconds())}
	if err := t.send(api.WatchHello, "", hello); err != nil {
		return err
	}
	tick := time.NewTicker(streamEvery)
	defer tick.Stop()
	checked := time.Now()
	for {
		if err := t.news(r.Context()); err != nil {
			return err
		}
		select {
		case <-r.Context().Done():
			return nil
		case <-tick.C:
		}
		if time.Since(checked) > streamCheck {
			if _, err := t.s.operator(r); err != nil {
				return err
			}
			checked = time.Now()
		}
	}
}

// news sends what is new.
func (t *watcher) news(ctx context.Context) error {
	ev, err := t.s.Store.Events(ctx, store.EventQuery{After: t.after, Limit: eventsAtOnce})
	if err != nil {
		return err
	}
	if t.rows {
		if err := t.sendRows(ctx); err != nil {
			return err
		}
	}
	if len(ev) > 0 {
		t.after = ev[len(ev)-1].ID
		return t.send(api.WatchEvents, strconv.FormatInt(t.after, 10), ev)
	}
	if time.Since(t.sent) > streamPing {
		return t.write(": still here\n\n")
	}
	return nil
}

func (t *watcher) sendRows(ctx context.Context) error {
	rows, gone, rev, err := t.s.board.since(ctx, t.rev)
	if err != nil || t.rev > 0 && len(rows) == 0 && len(gone) == 0 {
		return err
	}
	m := api.Rows{Reset: t.rev == 0, Gone: gone}
	for {
		n := min(len(rows), rowsAtOnce)
		m.Rows, rows = rows[:n], rows[n:]
		m.Whole = t.rev == 0 && len(rows) == 0
		if err := t.send(api.WatchRows, "", m); err != nil {
			return err
		}
		if len(rows) == 0 {
			break
		}
		m = api.Rows{}
	}
	t.rev = rev
	return nil
}

func (t *watcher) send(event, id string, v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	if id != "" {
		id = "id: " + id + "\n"
	}
	return t.write(fmt.Sprintf("event: %s\n%sdata: %s\n\n", event, id, b))
}

func (t *watcher) write(text string) error {
	t.sent = time.Now()
	if _, err := t.w.Write([]byte(text)); err != nil {
		return err
	}
	return t.rc.Flush()
}
