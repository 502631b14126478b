package usage

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/turnout-project/turnout/internal/fleet"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

func node(pool string, us ...fleet.Use) *fleet.Node {
	return &fleet.Node{Name: "n", Pool: pool, State: fleet.NodeApproved, LastSeen: t0, Reported: &fleet.Report{Usage: us}}
}

func TestSample(t *testing.T) {
	silent, pending := node("rack", fleet.Use{Device: "0", Occupied: true, Tenant: "a"}), node("rack", fleet.Use{Device: "0"})
	silent.LastSeen = t0.Add(-time.Hour)
	pending.State = fleet.NodePending
	got := Sample([]*fleet.Node{
		node("rack", fleet.Use{Device: "0", Occupied: true, Tenant: "a", Load: 0.5}, fleet.Use{Device: "1"}, fleet.Use{Device: "2", Occupied: true}),
		node("mig", fleet.Use{Device: "0/1", Profile: "1g.10gb", Occupied: true, Tenant: " a\n", Load: 7}, fleet.Use{Device: "0/2", Profile: "1g.10gb", Occupied: true, Tenant: "b", Load: -1}),
		silent, pending, {Name: "new", Pool: "rack", State: fleet.NodeApproved},
	}, t0, time.Minute, 10*time.Second)
	want := map[Key]Sum{
		{"rack", "gpu", "a"}:    {Occupied: 10, Load: 5},
		{"rack", "gpu", ""}:     {Occupied: 10, Free: 10, Unknown: 10},
		{"mig", "1g.10gb", "a"}: {Occupied: 10, Load: 10},
		{"mig", "1g.10gb", "b"}: {Occupied: 10},
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

// What nodes call tenants cannot fill the store, and every second is counted
// somewhere.
func TestManyTenants(t *testing.T) {
	var h Hour
	for i := range 3 * maxTenants {
		h = h.Add(map[Key]Sum{{"rack", "gpu", fmt.Sprint("t", i)}: {Occupied: 1}, {"rack", "gpu", ""}: {Free: 1}})
	}
	sum := 0.0
	for _, r := range h.Rows {
		sum += r.Occupied
	}
	if len(h.Rows) > maxTenants+2 || sum != 3*maxTenants {
		t.Errorf("%d rows of %g seconds", len(h.Rows), sum)
	}
	if l := label(strings.Repeat("ä", 60) + "\x00"); len(l) > maxLabel {
		t.Errorf("label of %d bytes", len(l))
	}
}

func TestExport(t *testing.T) {
	hour := Hour{Rows: []Row{{"mig", "1g.10gb", "a", Sum{Occupied: 1800, Load: 900}}, {"rack", "gpu", "", Sum{Free: 3600, Unknown: 36}}, {"rack", "gpu", "a", Sum{Occupied: 3600}}}}
	hours := map[time.Time]Hour{}
	for i := range 48 {
		hours[t0.Add(time.Duration(i)*time.Hour)] = hour
	}
	from, to := t0, t0.Add(36*time.Hour)
	for _, c := range []struct {
		by   By
		pool string
		want []string
	}{
		{ByAll, "", []string{"03-01T12 mig a 18 9 0 0", "03-01T12 rack  0 0 36 0.36", "03-01T12 rack a 36 0 0 0"}},
		{ByDay, "mig", []string{"03-01T00 mig a 6 3 0 0", "03-02T00 mig a 12 6 0 0"}},
		{ByMonth, "mig", []string{"03-01T00 mig a 18 9 0 0"}},
	} {
		var got []string
		for _, r := range Export(hours, from, to, c.by, c.pool) {
			got = append(got, fmt.Sprintf("%s %s %s %g %g %g %g", r.From.Format("01-02T15"), r.Pool, r.Tenant, r.Occupied, r.Load, r.Free, r.Unknown))
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.by, d)
		}
	}
	if n := len(Export(hours, from, to, ByHour, "mig")); n != 36 {
		t.Errorf("%d hours; want 36", n)
	}
	if By("week").Check() == nil || ByDay.Check() != nil {
		t.Error("Check")
	}
}

func TestCSV(t *testing.T) {
	var b strings.Builder
	err := CSV(&b, []fleet.UsageRow{{From: t0, To: t0.Add(time.Hour), Pool: "rack", Profile: "gpu", Tenant: `=cmd|"x",y`, Occupied: 0.5}})
	want := "from,to,pool,profile,tenant,occupied_hours,load_hours,free_hours,unknown_hours\n" +
		"2026-03-01T12:00:00Z,2026-03-01T13:00:00Z,rack,gpu,\"'=cmd|\"\"x\"\",y\",0.5,0,0,0\n"
	if err != nil || b.String() != want {
		t.Errorf("%v\n%s\nwant\n%s", err, b.String(), want)
	}
}
