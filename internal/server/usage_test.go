package server_test

import (
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/server"
)

// Two GPUs for two hours, a silent node, a server that was away: every minute
// that was seen is counted once, none that was not.
func TestUsage(t *testing.T) {
	l := newLab(t, func(o *server.Options) { o.NodeCert = 1000 * 24 * time.Hour })
	image := l.publish("1.0.0")
	a, b := l.ready(1, "rack", image), l.ready(2, "rack", image)
	begin := l.clock.now().UTC().Truncate(time.Hour).Add(time.Hour)
	l.clock.add(begin.Sub(l.clock.now()))
	a.report.Usage = []fleet.Use{{Device: "0", Occupied: true, Tenant: "blue", Load: 0.5}, {Device: "1"}}
	b.report.Usage = []fleet.Use{{Device: "0/7", Profile: "1g.10gb", Occupied: true, Tenant: "red"}}
	pass := func(minutes int, beats ...*machine) {
		for range minutes {
			for _, m := range beats {
				m.beat()
			}
			l.must(l.srv.CountUsageOnce(ctx))
			l.must(l.srv.CountUsageOnce(ctx)) // another server at the same moment
			l.clock.add(time.Minute)
		}
	}
	pass(120, a, b)
	a.report.Usage[0] = fleet.Use{Device: "0"}
	pass(30, a)                // b is silent
	l.clock.add(5 * time.Hour) // nobody looks
	pass(61, a, b)
	export := func(from, to time.Time, by string) (out []string) {
		t.Helper()
		rows, err := l.view.Usage(ctx, from, to, by, "")
		l.must(err)
		for _, r := range rows {
			out = append(out, fmt.Sprintf("%s %s %q: %.2f occupied, %.2f load, %.2f free, %.2f unknown", r.Pool, r.Profile, r.Tenant, r.Occupied, r.Load, r.Free, r.Unknown))
		}
		return out
	}
	// The first sample stands for no time, and so does the first after a
	// pause. A node is silent after 35 s, so its last minute is known.
	want := []string{
		`rack 1g.10gb "": 0.00 occupied, 0.00 load, 0.00 free, 0.50 unknown`, `rack 1g.10gb "red": 2.98 occupied, 0.00 load, 0.00 free, 0.00 unknown`,
		`rack gpu "": 0.00 occupied, 0.00 load, 4.98 free, 0.00 unknown`, `rack gpu "blue": 1.98 occupied, 0.99 load, 0.00 free, 0.00 unknown`,
	}
	if d := cmp.Diff(want, export(begin, begin.Add(24*time.Hour), "all")); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if got := export(begin, begin.Add(time.Hour), "hour"); len(got) != 3 || !strings.Contains(got[0], "0.98 occupied") {
		t.Errorf("the first hour: %q", got)
	}
	_, err := l.view.Usage(ctx, begin, begin, "day", "")
	wantStatus(t, "no time at all", err, http.StatusBadRequest)
	_, err = l.view.Usage(ctx, begin, begin.Add(time.Hour), "week", "")
	wantStatus(t, "a period that is none", err, http.StatusBadRequest)
	l.clock.add(500 * 24 * time.Hour)
	l.must(l.srv.CountUsageOnce(ctx))
	if recs, err := l.store.Records(ctx, "usage", "", ""); err != nil || len(recs) != 1 {
		t.Errorf("500 days later %d records are kept, %v", len(recs), err)
	}
}
