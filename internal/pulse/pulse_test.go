package pulse

import (
	"fmt"
	"math"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var t0 = time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)

// Case C81: liveness goes by the server's clock, and a node that comes and
// goes makes one event.
func TestLiveness(t *testing.T) {
	always := func(time.Duration) bool { return true }
	until := func(end time.Duration) func(time.Duration) bool {
		return func(d time.Duration) bool { return d < end }
	}
	for _, c := range []struct {
		name  string
		heard func(since time.Duration) bool // does a heartbeat arrive then?
		step  func(i int) time.Duration      // of the server's clock
		want  []string
	}{
		{"steady", always, nil, nil},
		{"short pause", func(d time.Duration) bool { return d < 2*time.Minute || d > 6*time.Minute }, nil, nil},
		{"dies", until(10 * time.Minute), nil, []string{"lost 15m"}},
		{"dies and returns", func(d time.Duration) bool { return d < 10*time.Minute || d >= 30*time.Minute }, nil, []string{"lost 15m", "back 31m"}},
		{"one heartbeat in six minutes", func(d time.Duration) bool { return d%(6*time.Minute) == 0 }, nil, []string{"lost 5m"}},
		{"never again but once", func(d time.Duration) bool { return d < time.Minute || d == 20*time.Minute }, nil, []string{"lost 6m"}},
		{"server's clock set back an hour", always, func(i int) time.Duration {
			if i == 60 {
				return -time.Hour
			}
			return 10 * time.Second
		}, nil},
	} {
		var l Liveness
		var got []string
		now, last := t0, t0
		for i := range 6 * 120 { // two hours
			since := time.Duration(i) * 10 * time.Second
			if c.step == nil {
				now = t0.Add(since)
			} else {
				now = now.Add(c.step(i))
			}
			if c.heard(since) {
				last = now
			}
			if ch := l.See(now, last); ch != NoChange {
				got = append(got, fmt.Sprintf("%s %dm", ch, int(since.Minutes())))
			}
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
}

func TestOutliers(t *testing.T) {
	fleet := func(vs ...float64) map[string]map[string]float64 {
		m := map[string]map[string]float64{}
		for i, v := range vs {
			m[fmt.Sprint("n", i)] = map[string]float64{"x": v}
		}
		return m
	}
	for _, c := range []struct {
		name string
		vs   []float64
		want []string
	}{
		{"all alike", []float64{5, 5, 5, 5, 5, 5}, nil},
		{"one slow among equals", []float64{1980, 1980, 1980, 1980, 1980, 1200}, []string{"n5"}},
		{"a trifle among equals", []float64{1980, 1980, 1980, 1980, 1980, 1975}, nil},
		{"usual spread", []float64{60, 63, 58, 66, 61, 70, 57, 64}, nil},
		{"one hot", []float64{60, 63, 58, 66, 61, 95, 57, 64}, []string{"n5"}},
		{"two of eight off do not hide each other", []float64{60, 63, 58, 66, 61, 99, 57, 99}, []string{"n5", "n7"}},
		{"half of them hot are no outliers", []float64{60, 60, 60, 90, 90, 90}, nil},
		{"too few to say", []float64{1, 1, 1, 1000}, nil},
		{"unknown is not zero", []float64{50, 50, 50, 50, 50, math.NaN()}, nil},
		{"zero among zeros", []float64{0, 0, 0, 0, 0, 0}, nil},
		{"errors where nobody has any", []float64{0, 0, 0, 0, 0, 7}, nil}, // no scale to measure by: that is a threshold's task
	} {
		var got []string
		for _, o := range Outliers(fleet(c.vs...), 6, 0.02) {
			got = append(got, o.Node)
		}
		if d := cmp.Diff(c.want, got); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, d)
		}
	}
	for _, o := range Outliers(fleet(100, 100, 100, 100, 100, 50), 6, 0.02) {
		if want := "x is 50, its peers' median is 100 (-25.0 usual deviations)"; o.String() != want {
			t.Errorf("it says %q, want %q", o, want)
		}
	}
}
