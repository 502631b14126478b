package main

import (
	"bytes"
	"fmt"
	"os"
	"slices"
	"strconv"
	"sync"
	"time"
)

// latencies collects how long calls took.
type latencies struct {
	mu     sync.Mutex
	took   []time.Duration
	failed int
	since  time.Time
}

// add counts one call. Failed calls are counted, not timed.
func (l *latencies) add(d time.Duration, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if err != nil {
		l.failed++
		return
	}
	l.took = append(l.took, d)
}

// reset begins anew.
func (l *latencies) reset() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.took, l.failed, l.since = l.took[:0], 0, time.Now()
}

// String is one line for people: rate and percentiles since the reset.
func (l *latencies) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.took) == 0 {
		return fmt.Sprintf("no calls, %d failed", l.failed)
	}
	slices.Sort(l.took)
	at := func(share float64) time.Duration {
		return l.took[int(share*float64(len(l.took)-1))].Round(10 * time.Microsecond)
	}
	return fmt.Sprintf("%d in %s, %.0f/s, %d failed; p50 %s, p95 %s, p99 %s, max %s",
		len(l.took), time.Since(l.since).Round(time.Second), float64(len(l.took))/time.Since(l.since).Seconds(), l.failed,
		at(0.5), at(0.95), at(0.99), at(1))
}

// usage is what a process has used: CPU time and resident memory, from
// /proc/PID/stat (proc(5): utime, stime in ticks of 10 ms, rss in pages).
func usage(pid int) (cpu time.Duration, rss int64) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, 0
	}
	f := bytes.Fields(b[bytes.LastIndexByte(b, ')')+1:])
	n := func(i int) int64 {
		v, _ := strconv.ParseInt(string(f[i-3]), 10, 64) // fields count from 1, the name was the second
		return v
	}
	return time.Duration(n(14)+n(15)) * 10 * time.Millisecond, n(24) * int64(os.Getpagesize())
}
