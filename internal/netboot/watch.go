package netboot

import (
	"sync"
	"time"
)

// watch keeps the short memory that turns packets into remarks for people:
// offers that nobody takes up, the same file fetched again and again, things
// that were said already. It is bounded.
type watch struct {
	mu sync.Mutex
	m  map[string]*story
}

type story struct {
	touched time.Time
	offers  int // since the last REQUEST
	fetches []time.Time
	told    map[string]time.Time
}

const (
	watchLimit = 1 << 14
	toldLimit  = 32
	loopCount  = 3
	loopWindow = time.Minute
)

func (w *watch) story(key string, now time.Time) *story {
	if w.m == nil {
		w.m = map[string]*story{}
	}
	s, ok := w.m[key]
	if !ok {
		if len(w.m) >= watchLimit {
			w.evict()
		}
		s = &story{told: map[string]time.Time{}}
		w.m[key] = s
	}
	s.touched = now
	return s
}

// evict forgets the older half of a sample.
func (w *watch) evict() {
	const sample = 128
	var sum, n int64
	for _, s := range w.m {
		if n++; n > sample {
			break
		}
		sum += s.touched.Unix()
	}
	n = min(n, sample)
	seen := 0
	for k, s := range w.m {
		if seen++; seen > sample {
			break
		}
		if s.touched.Unix() <= sum/n {
			delete(w.m, k)
		}
	}
}

// offered counts an offer and returns how many went unanswered in a row.
func (w *watch) offered(key string, now time.Time) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.story(key, now)
	s.offers++
	return s.offers
}

func (w *watch) requested(key string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if s, ok := w.m[key]; ok {
		s.offers = 0
	}
}

// fetched notes a whole file sent; it returns true when that happened
// loopCount times within loopWindow.
func (w *watch) fetched(key string, now time.Time) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.story(key, now)
	s.fetches = append(s.fetches, now)
	if len(s.fetches) > loopCount {
		s.fetches = s.fetches[len(s.fetches)-loopCount:]
	}
	return len(s.fetches) == loopCount && now.Sub(s.fetches[0]) <= loopWindow
}

// once is true the first time within every that topic is raised for key.
func (w *watch) once(key, topic string, now time.Time, every time.Duration) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	s := w.story(key, now)
	if t, ok := s.told[topic]; ok && now.Sub(t) < every {
		return false
	}
	if len(s.told) >= toldLimit {
		clear(s.told)
	}
	s.told[topic] = now
	return true
}
