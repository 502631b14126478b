package server

import (
	"strings"
	"sync"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// A slot that was reported good can rot on its disk. A node that boots from
// the network then gets its UKI, which cannot start the root, again and
// again, and nobody on it is left to tell. What was handed out and what was
// heard since show it.

// When a node that got its slot's UKI is given up for started: it got it so
// often, and the first is so long ago, without a sign of life.
const (
	silentTimes = 2
	silentTime  = 5 * time.Minute
)

// handout is what a machine got since it was last heard of.
type handout struct {
	first time.Time // of the slot's UKI
	times int
}

// silent says whether a machine has come up with none of its handouts.
func (h handout) silent(now time.Time) bool {
	return h.times >= silentTimes && now.Sub(h.first) >= silentTime
}

// handouts are those of machines that were not heard of since. It is lost
// with the server, which costs such a machine two more rounds.
type handouts struct {
	mu sync.Mutex
	of map[fleet.MAC]handout
}

// maxHandouts bounds the memory: a fleet boots at once, a forger of
// addresses does not fill it.
const maxHandouts = 65536

// sent notes that a machine loaded a whole file.
func (h *handouts) sent(mac fleet.MAC, file string, now time.Time) {
	name, _, _ := strings.Cut(file, ",")
	if !strings.HasSuffix(name, "/"+slotFile) {
		return
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.of == nil || len(h.of) >= maxHandouts {
		h.of = map[fleet.MAC]handout{}
	}
	x := h.of[mac]
	if x.times == 0 {
		x.first = now
	}
	x.times++
	h.of[mac] = x
}

// heard notes a sign of life.
func (h *handouts) heard(macs []fleet.MAC) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, m := range macs {
		delete(h.of, m)
	}
}

// silent says whether a machine has come up with none of its handouts, and
// since when.
func (h *handouts) silent(mac fleet.MAC, now time.Time) (since time.Time, is bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	x := h.of[mac]
	return x.first, x.silent(now)
}
