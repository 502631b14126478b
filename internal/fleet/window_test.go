package fleet

import (
	"testing"
	"time"
	_ "time/tzdata"
)

func TestWindow(t *testing.T) {
	// 2026-03-29 is the Sunday on which Berlin's clocks go from 02:00 to 03:00,
	// 2026-10-25 the one on which they go from 03:00 back to 02:00.
	for _, c := range []struct {
		window, at string
		want       bool
	}{
		{"10:00-12:00", "2026-03-02T10:00:00Z", true},
		{"10:00-12:00", "2026-03-02T11:59:59Z", true},
		{"10:00-12:00", "2026-03-02T12:00:00Z", false},
		{"mon-fri 10:00-12:00", "2026-03-07T11:00:00Z", false}, // a Saturday
		{"fri-mon 10:00-12:00", "2026-03-01T11:00:00Z", true},  // a Sunday
		{"sat,sun 00:00-24:00", "2026-03-01T23:59:00Z", true},
		{"sat,sun 00:00-24:00", "2026-03-02T00:00:00Z", false},
		{"fri 22:00-06:00", "2026-03-06T23:00:00Z", true},
		{"fri 22:00-06:00", "2026-03-07T05:59:00Z", true}, // begun on Friday
		{"fri 22:00-06:00", "2026-03-06T05:00:00Z", false},
		{"fri 22:00-06:00", "2026-03-07T22:30:00Z", false},
		{"22:00-06:00 Europe/Berlin", "2026-01-05T21:30:00Z", true},  // 22:30 in winter
		{"22:00-06:00 Europe/Berlin", "2026-07-05T20:30:00Z", true},  // 22:30 in summer
		{"22:00-06:00 Europe/Berlin", "2026-07-05T04:30:00Z", false}, // 06:30
		{"02:15-02:45 Europe/Berlin", "2026-03-29T01:30:00Z", false}, // that half hour does not exist
		{"02:15-02:45 Europe/Berlin", "2026-10-25T00:30:00Z", true},  // and this one
		{"02:15-02:45 Europe/Berlin", "2026-10-25T01:30:00Z", true},  // comes twice
		{"mon 00:00-04:00 Asia/Kolkata", "2026-03-01T19:00:00Z", true},
	} {
		w, err := ParseWindow(c.window)
		at, err2 := time.Parse(time.RFC3339, c.at)
		if err != nil || err2 != nil || w.String() != c.window {
			t.Errorf("ParseWindow(%q) = %q, %v", c.window, w, err)
		}
		if got := w.Contains(at); got != c.want {
			t.Errorf("%q contains %s: %v, want %v", c.window, c.at, got, c.want)
		}
	}
	for _, s := range []string{"", "always", "mon", "10:00", "10:00-10:00", "25:00-26:00", "moon 10:00-12:00", "10:00-12:00 Mars/Olympus", "mon tue 10:00-12:00", "24:00-06:00"} {
		if w, err := ParseWindow(s); err == nil {
			t.Errorf("ParseWindow(%q) = %q; want it refused", s, w)
		}
	}
}

func TestNextWindow(t *testing.T) {
	at := time.Date(2026, 3, 4, 12, 0, 30, 0, time.UTC) // a Wednesday
	for _, c := range []struct {
		windows []Window
		want    time.Time
	}{
		{nil, at},
		{[]Window{{From: "12:00", To: "13:00"}}, at},
		{[]Window{{Days: "sat", From: "01:00", To: "02:00"}, {Days: "fri", From: "22:00", To: "23:00"}}, time.Date(2026, 3, 6, 22, 0, 0, 0, time.UTC)},
		{[]Window{{Zone: "Mars/Olympus"}}, time.Time{}},
	} {
		p := Policy{Windows: c.windows}
		if got := p.NextWindow(at); !got.Equal(c.want) {
			t.Errorf("NextWindow with %v = %s, want %s", c.windows, got, c.want)
		}
	}
}
