// Package usage counts for how long GPUs and their instances were occupied,
// by pool, profile and tenant, so that sharing can be charged. It is pure:
// samples of the fleet add up to hours.
package usage

import (
	"cmp"
	"encoding/csv"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

// WholeGPU is the profile of a GPU that is not cut.
const WholeGPU = "gpu"

// maxTenants bounds the labels of a pool and profile in an hour: what nodes
// report must not fill the store. Further ones are counted as Others.
const (
	maxTenants = 500
	Others     = "(others)"
	maxLabel   = 63
)

// Key is what is counted apart.
type Key struct{ Pool, Profile, Tenant string }

// Sum is device-seconds.
type Sum struct {
	Occupied float64 `json:"occupied,omitempty"`
	Load     float64 `json:"load,omitempty"`
	Free     float64 `json:"free,omitempty"`
	Unknown  float64 `json:"unknown,omitempty"`
}

// Hour is what is kept of an hour.
type Hour struct {
	Rows []Row `json:"rows"`
}

// Row is a line of it.
type Row struct {
	Pool    string `json:"pool"`
	Profile string `json:"profile"`
	Tenant  string `json:"tenant,omitempty"`
	Sum
}

// Sample counts the devices of a fleet for a time. Nodes that have been
// silent for longer than silent are counted as unknown: nobody is charged for
// what was not seen. Pending nodes count for nothing.
func Sample(nodes []*fleet.Node, now time.Time, silent, d time.Duration) map[Key]Sum {
	out := map[Key]Sum{}
	sec := d.Seconds()
	for _, n := range nodes {
		if n.State == fleet.NodePending || n.Reported == nil {
			continue
		}
		isSilent := now.Sub(n.LastSeen) > silent
		for _, u := range n.Reported.Usage {
			k := Key{n.Pool, cmp.Or(label(u.Profile), WholeGPU), ""}
			var s Sum
			switch {
			case isSilent:
				s.Unknown = sec
			case !u.Occupied:
				s.Free = sec
			default:
				k.Tenant = label(u.Tenant)
				s.Occupied, s.Load = sec, sec*min(max(u.Load, 0), 1)
			}
			add(out, k, s)
		}
	}
	return out
}

// label makes a node's word safe to keep.
func label(s string) string {
	s = strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f {
			return -1
		}
		return r
	}, strings.ToValidUTF8(s, "?"))
	if len(s) > maxLabel {
		s = strings.ToValidUTF8(s[:maxLabel], "")
	}
	return strings.TrimSpace(s)
}

func add(m map[Key]Sum, k Key, s Sum) {
	t := m[k]
	m[k] = Sum{t.Occupied + s.Occupied, t.Load + s.Load, t.Free + s.Free, t.Unknown + s.Unknown}
}

// Add adds a sample to an hour.
func (h Hour) Add(sample map[Key]Sum) Hour {
	m := map[Key]Sum{}
	tenants := map[[2]string]int{}
	for _, r := range h.Rows {
		m[Key{r.Pool, r.Profile, r.Tenant}] = r.Sum
		tenants[[2]string{r.Pool, r.Profile}]++
	}
	for _, k := range slices.SortedFunc(maps.Keys(sample), compare) {
		s, group := sample[k], [2]string{k.Pool, k.Profile}
		if _, known := m[k]; !known && k.Tenant != "" && tenants[group] >= maxTenants {
			k.Tenant = Others
		}
		if _, known := m[k]; !known {
			tenants[group]++
		}
		add(m, k, s)
	}
	var out Hour
	for _, k := range slices.SortedFunc(maps.Keys(m), compare) {
		out.Rows = append(out.Rows, Row{k.Pool, k.Profile, k.Tenant, m[k]})
	}
	return out
}

func compare(a, b Key) int {
	return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Profile, b.Profile), cmp.Compare(a.Tenant, b.Tenant))
}

// By is the length of the periods of an export.
type By string

// The periods. Days and months are UTC's.
const (
	ByHour  By = "hour"
	ByDay   By = "day"
	ByMonth By = "month"
	ByAll   By = "all"
)

// period returns the bounds of the period that an hour is in.
func (b By) period(hour, from, to time.Time) (time.Time, time.Time) {
	y, m, d := hour.Date()
	switch b {
	case ByDay:
		s := time.Date(y, m, d, 0, 0, 0, 0, time.UTC)
		return s, s.AddDate(0, 0, 1)
	case ByMonth:
		s := time.Date(y, m, 1, 0, 0, 0, 0, time.UTC)
		return s, s.AddDate(0, 1, 0)
	case ByAll:
		return from, to
	}
	return hour, hour.Add(time.Hour)
}

// Check reports what is wrong with a period.
func (b By) Check() error {
	if !slices.Contains([]By{ByHour, ByDay, ByMonth, ByAll}, b) {
		return fmt.Errorf("period %q: want hour, day, month or all", b)
	}
	return nil
}

// Export sums hours that begin from a time up to another up by periods. pool
// "" is all pools.
func Export(hours map[time.Time]Hour, from, to time.Time, by By, pool string) []fleet.UsageRow {
	type key struct {
		start, end time.Time
		Key
	}
	sums := map[key]Sum{}
	for at, h := range hours {
		if at.Before(from) || !at.Before(to) {
			continue
		}
		start, end := by.period(at, from, to)
		for _, r := range h.Rows {
			if pool != "" && r.Pool != pool {
				continue
			}
			k := key{start, end, Key{r.Pool, r.Profile, r.Tenant}}
			t := sums[k]
			sums[k] = Sum{t.Occupied + r.Occupied, t.Load + r.Load, t.Free + r.Free, t.Unknown + r.Unknown}
		}
	}
	out := []fleet.UsageRow{}
	for k, s := range sums {
		out = append(out, fleet.UsageRow{From: k.start, To: k.end, Pool: k.Pool, Profile: k.Profile, Tenant: k.Tenant,
			Occupied: hoursOf(s.Occupied), Load: hoursOf(s.Load), Free: hoursOf(s.Free), Unknown: hoursOf(s.Unknown)})
	}
	slices.SortFunc(out, func(a, b fleet.UsageRow) int {
		return cmp.Or(a.From.Compare(b.From), compare(Key{a.Pool, a.Profile, a.Tenant}, Key{b.Pool, b.Profile, b.Tenant}))
	})
	return out
}

// hoursOf rounds to a ten-thousandth of an hour, a third of a second.
func hoursOf(seconds float64) float64 { return float64(int64(seconds/3600*1e4+0.5)) / 1e4 }

// CSV writes rows with a head. Cells that a spreadsheet might run as a
// formula begin with an apostrophe.
func CSV(w io.Writer, rows []fleet.UsageRow) error {
	c := csv.NewWriter(w)
	if err := c.Write([]string{"from", "to", "pool", "profile", "tenant", "occupied_hours", "load_hours", "free_hours", "unknown_hours"}); err != nil {
		return err
	}
	num := func(f float64) string { return strconv.FormatFloat(f, 'f', -1, 64) }
	for _, r := range rows {
		err := c.Write([]string{r.From.UTC().Format(time.RFC3339), r.To.UTC().Format(time.RFC3339), harmless(r.Pool), harmless(r.Profile), harmless(r.Tenant),
			num(r.Occupied), num(r.Load), num(r.Free), num(r.Unknown)})
		if err != nil {
			return err
		}
	}
	c.Flush()
	return c.Error()
}

func harmless(s string) string {
	if s != "" && strings.ContainsRune("=+-@\t\r", rune(s[0])) {
		return "'" + s
	}
	return s
}
