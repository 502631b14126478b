package server

import (
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store"
)

// news lets many wait until something may have happened.
type news struct {
	mu sync.Mutex
	ch chan struct{} // closed, and replaced, when something has
}

func newNews() *news { return &news{ch: make(chan struct{})} }

func (n *news) tell() {
	n.mu.Lock()
	defer n.mu.Unlock()
	close(n.ch)
	n.ch = make(chan struct{})
}

// next returns a channel that is closed at the next tell.
func (n *news) next() <-chan struct{} {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ch
}

// newsAtLeast is how often those who wait look by themselves: the executor
// writes events without telling.
const newsAtLeast = time.Second

// listEvents answers at once if there are events, else when there are, or
// with none when the time to wait is over.
func (s *Server) listEvents(_ http.ResponseWriter, r *http.Request, _ string) (any, error) {
	q, wait, err := eventQuery(r)
	if err != nil {
		return nil, err
	}
	over := time.After(wait)
	for {
		next := s.news.next()
		ev, err := s.Store.Events(r.Context(), q)
		if err != nil || len(ev) > 0 || wait <= 0 {
			return orEmpty(ev), err
		}
		select {
		case <-next:
		case <-time.After(newsAtLeast):
		case <-over:
			return []fleet.Event{}, nil
		case <-r.Context().Done():
			return []fleet.Event{}, nil // the server stops, or nobody listens any more
		}
	}
}

func eventQuery(r *http.Request) (q store.EventQuery, wait time.Duration, err error) {
	v := r.URL.Query()
	num := func(key string, limit int64) int64 {
		if v.Get(key) == "" || err != nil {
			return 0
		}
		n, e := strconv.ParseInt(v.Get(key), 10, 64)
		if e != nil || n < 0 {
			err = problem(http.StatusBadRequest, "", "%s=%q: want a number", key, v.Get(key))
		}
		return min(n, limit)
	}
	q = store.EventQuery{After: num("after", 1<<62), Node: v.Get("node"), Kind: v.Get("kind"), Limit: int(num("limit", 10000)), Last: v.Get("last") != ""}
	wait = min(time.Duration(num("wait", 3600))*time.Second, api.MaxEventWait)
	return q, wait, err
}

// orEmpty makes a list that is null in JSON an empty one.
func orEmpty[T any](s []T) []T {
	if s == nil {
		return []T{}
	}
	return s
}
