package server

import (
	"math"
	"net"
	"net/http"
	"strconv"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/api"
)

// Rate is how many requests are answered: so many a second for long, and
// Burst at once. The zero value is no limit.
type Rate struct {
	PerSecond float64
	Burst     int
}

// Limits bound what one caller can ask of the server, so that a broken or a
// hostile one keeps nobody else from it.
type Limits struct {
	Strangers Rate // enrolments, by address: nobody vouches for who asks
	Refused   Rate // tokens and certificates that are not taken, by address
	Nodes     Rate // by node
	Operators Rate // by token
}

// DefaultLimits are far above what nodes and people do.
func DefaultLimits() Limits {
	return Limits{Strangers: Rate{20, 200}, Refused: Rate{1, 30}, Nodes: Rate{50, 500}, Operators: Rate{200, 2000}}
}

// buckets are token buckets by caller. The zero value is ready.
type buckets struct {
	mu sync.Mutex
	by map[string]*bucket
}

type bucket struct {
	left float64
	at   time.Time
}

// maxBuckets bounds the memory: with more callers all begin anew.
const maxBuckets = 1 << 16

// take takes n from the bucket of a caller, and otherwise returns how long to
// wait until there is one. With n = 0 it only looks.
func (b *buckets) take(who string, r Rate, n float64, now time.Time) (wait time.Duration, ok bool) {
	if r.PerSecond <= 0 {
		return 0, true
	}
	b.mu.Lock()
	defer b.mu.Unlock()
	x := b.by[who]
	if x == nil {
		if b.by == nil || len(b.by) >= maxBuckets {
			b.by = map[string]*bucket{}
		}
		x = &bucket{left: float64(r.Burst), at: now}
		b.by[who] = x
	}
	x.left = min(float64(r.Burst), x.left+max(0, now.Sub(x.at).Seconds())*r.PerSecond)
	x.at = now
	if x.left < 1 {
		return time.Duration((1 - x.left) / r.PerSecond * float64(time.Second)), false
	}
	x.left -= n
	return 0, true
}

// limited answers a caller who asks too much.
func (s *Server) limited(w http.ResponseWriter, kind, who string, r Rate, n float64) error {
	wait, ok := s.buckets.take(kind+" "+who, r, n, time.Now())
	if ok {
		return nil
	}
	w.Header().Set("Retry-After", strconv.Itoa(int(math.Ceil(wait.Seconds()))))
	return problem(http.StatusTooManyRequests, "wait as long as Retry-After says", "too many requests")
}

// addressOf is the address that a request came from.
func addressOf(r *http.Request) string {
	host, _, err := net.SplitHostPort(r.RemoteAddr)
	if err != nil {
		return r.RemoteAddr
	}
	return host
}

// identified runs who, which says whose request it is, unless too many from
// its address were not taken.
func (s *Server) identified(w http.ResponseWriter, r *http.Request, who func() error) error {
	if err := s.limited(w, "refused", addressOf(r), s.Limits.Refused, 0); err != nil {
		return err
	}
	err := who()
	if api.StatusOf(err) == http.StatusUnauthorized {
		s.buckets.take("refused "+addressOf(r), s.Limits.Refused, 1, time.Now())
	}
	return err
}

// fromStranger lets h run for whom nobody vouches.
func (s *Server) fromStranger(h handler) http.HandlerFunc {
	return s.answer(func(w http.ResponseWriter, r *http.Request) (any, error) {
		if err := s.limited(w, "stranger", addressOf(r), s.Limits.Strangers, 1); err != nil {
			return nil, err
		}
		return h(w, r)
	})
}
