package alert

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

// How deliveries go.
const (
	lookEvery  = 2 * time.Second // for new events
	firstPause = time.Second     // after a failure; doubled up to longest
	longest    = 5 * time.Minute
	giveUp     = 14  // tries of one delivery: half an hour in all
	most       = 100 // events in one delivery
	atOnce     = 1000
)

// Kind is the kind of the records that say how far each hook is.
const Kind = "alert"

// Progress is how far a hook is. It is kept, so that a server that starts
// again goes on where it was.
type Progress struct {
	After   int64     `json:"after"`             // ID of the last event that was looked at
	Tries   int       `json:"tries,omitempty"`   // failed ones of the delivery that is due
	Why     string    `json:"why,omitempty"`     // the last failure
	Last    time.Time `json:"last,omitzero"`     // last delivery that was taken
	Dropped int64     `json:"dropped,omitempty"` // events given up since ever
}

// Sender sends. Make one with fields set, and Run it on one server.
type Sender struct {
	Store   store.Store
	Hooks   []Hook
	Version string
	Now     func() time.Time // nil: time.Now
	Log     *slog.Logger     // nil: quiet
	Pause   time.Duration    // first pause after a failure; 0 means one second
}

// Run sends until ctx ends. Each hook goes at its own pace: one that does not
// answer holds up no other.
func (s *Sender) Run(ctx context.Context) {
	var all sync.WaitGroup
	for i := range s.Hooks {
		all.Go(func() { s.follow(ctx, &s.Hooks[i]) })
	}
	all.Wait()
}

func (s *Sender) now() time.Time {
	if s.Now != nil {
		return s.Now()
	}
	return time.Now()
}

// follow sends one hook what it wants to know.
func (s *Sender) follow(ctx context.Context, h *Hook) {
	c := h.client()
	defer c.CloseIdleConnections()
	for ctx.Err() == nil {
		wait, err := s.step(ctx, h, c)
		if err != nil && ctx.Err() == nil && s.Log != nil {
			s.Log.Warn("alert", "hook", h.Name, "err", err)
		}
		t := time.NewTimer(wait)
		select {
		case <-ctx.Done():
		case <-t.C:
		}
		t.Stop()
	}
}

// step looks for events and sends them, once. It returns the pause before
// the next step.
func (s *Sender) step(ctx context.Context, h *Hook, c *http.Client) (time.Duration, error) {
	p, err := s.progress(ctx, h.Name)
	if err != nil {
		return lookEvery, err
	}
	events, err := s.Store.Events(ctx, store.EventQuery{After: p.After, Limit: atOnce})
	if err != nil || len(events) == 0 {
		return lookEvery, err
	}
	after := events[len(events)-1].ID
	var due []fleet.Event
	for _, e := range events {
		if !h.wants(e) {
			continue
		}
		if due = append(due, e); len(due) == most {
			after = e.ID
			break
		}
	}
	if len(due) == 0 {
		p.After = after
		return 0, s.keep(ctx, h, p, nil)
	}
	err = s.Send(ctx, h, c, Message{Hook: h.Name, Server: s.Version, Events: due})
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case err == nil:
		p.After, p.Tries, p.Why, p.Last = after, 0, "", s.now()
		return 0, s.keep(ctx, h, p, nil)
	}
	p.Tries++
	p.Why = err.Error()
	if p.Tries < giveUp {
		first := s.Pause
		if first <= 0 {
			first = firstPause
		}
		return min(first<<(p.Tries-1), longest), errors.Join(err, s.keep(ctx, h, p, nil))
	}
	dead := &fleet.Event{At: s.now(), Actor: actorOf(h.Name), Kind: "alert.dead", Message: fmt.Sprintf("webhook %s was not told of %d event(s), %d to %d: %d tries, the last: %s",
		h.Name, len(due), due[0].ID, due[len(due)-1].ID, p.Tries, p.Why)}
	p.After, p.Tries, p.Dropped = after, 0, p.Dropped+int64(len(due))
	return 0, errors.Join(err, s.keep(ctx, h, p, dead))
}

// progress reads how far a hook is. A new one begins with what happens next:
// nobody wants the history on the day a pager is set up.
func (s *Sender) progress(ctx context.Context, name string) (*Progress, error) {
	p := &Progress{}
	rec, err := s.Store.Record(ctx, Kind, name)
	if err == nil {
		return p, json.Unmarshal(rec.Doc, p)
	}
	if !errors.Is(err, store.ErrNotFound) {
		return nil, err
	}
	newest, err := s.Store.Events(ctx, store.EventQuery{Last: true, Limit: 1})
	if err != nil {
		return nil, err
	}
	if len(newest) > 0 {
		p.After = newest[0].ID
	}
	return p, s.keep(ctx, &Hook{Name: name}, p, nil)
}

// keep writes how far a hook is, with an event if there is one to tell.
func (s *Sender) keep(ctx context.Context, h *Hook, p *Progress, e *fleet.Event) error {
	doc, err := json.Marshal(p)
	if err != nil {
		return err
	}
	return s.Store.Update(ctx, func(tx store.Tx) error {
		if e != nil {
			if err := tx.AppendEvent(ctx, e); err != nil {
				return err
			}
		}
		return tx.PutRecord(ctx, store.Record{Kind: Kind, Key: h.Name, Doc: doc})
	})
}

// Send makes one delivery. c may be nil.
func (s *Sender) Send(ctx context.Context, h *Hook, c *http.Client, m Message) error {
	if c == nil {
		c = h.client()
		defer c.CloseIdleConnections()
	}
	body, err := json.Marshal(m)
	if err != nil {
		return err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, h.URL, bytes.NewReader(body))
	if err != nil {
		return err
	}
	at, last := s.now(), int64(0)
	if n := len(m.Events); n > 0 {
		last = m.Events[n-1].ID
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("User-Agent", "turnout/"+s.Version)
	req.Header.Set(HeaderDelivery, h.Name+"-"+strconv.FormatInt(last, 10))
	req.Header.Set(HeaderTimestamp, strconv.FormatInt(at.Unix(), 10))
	req.Header.Set(HeaderSignature, Sign(h.Secret, at, body))
	resp, err := c.Do(req)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, _ = io.Copy(io.Discard, io.LimitReader(resp.Body, 4<<10)) // so that the connection can be used again
	if resp.StatusCode/100 != 2 {
		return fmt.Errorf("webhook %s answers %s", h.Name, resp.Status)
	}
	return nil
}
