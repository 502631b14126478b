package fleet

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// Window is a time of the week in which a rollout may start nodes. It goes
// by the wall clock of its zone, so that "22:00" stays 22:00 when summer
// time begins or ends. One that ends at or before it begins ends on the next
// day, and belongs to the day on which it begins.
type Window struct {
	Days string `json:"days"` // three letters each: "mon-fri", "sat,sun", "fri-mon"; "" is every day
	From string `json:"from"` // "22:00"
	To   string `json:"to"`   // "06:00"; "24:00" is allowed
	Zone string `json:"zone"` // IANA name, "Europe/Berlin"; "" is UTC
}

// ParseWindow reads "[DAYS ]FROM-TO[ ZONE]", such as
// "mon-fri 22:00-06:00 Europe/Berlin".
func ParseWindow(s string) (Window, error) {
	var w Window
	bad := fmt.Errorf("window %q: want [DAYS] FROM-TO [ZONE], such as mon-fri 22:00-06:00 Europe/Berlin", s)
	f := strings.Fields(s)
	i := slices.IndexFunc(f, func(x string) bool { return strings.Contains(x, ":") })
	if i < 0 || i > 1 || len(f) > i+2 {
		return w, bad
	}
	if i == 1 {
		w.Days = strings.ToLower(f[0])
	}
	var ok bool
	if w.From, w.To, ok = strings.Cut(f[i], "-"); !ok {
		return w, bad
	}
	if len(f) == i+2 {
		w.Zone = f[i+1]
	}
	return w, w.Check()
}

// String writes what ParseWindow reads.
func (w Window) String() string {
	return strings.TrimSpace(w.Days + " " + w.From + "-" + w.To + " " + w.Zone)
}

// Check reports what is wrong with a window.
func (w Window) Check() error {
	if _, err := w.days(); err != nil {
		return err
	}
	from, err := minutes(w.From)
	if err != nil {
		return err
	}
	to, err := minutes(w.To)
	if err != nil {
		return err
	}
	if from == to || from == dayMinutes {
		return fmt.Errorf("window %q has no length; for whole days say 00:00-24:00", w)
	}
	if _, err := time.LoadLocation(w.Zone); err != nil {
		return fmt.Errorf("window %q: time zone: %w", w, err)
	}
	return nil
}

const dayMinutes = 24 * 60

func minutes(s string) (int, error) {
	if s == "24:00" {
		return dayMinutes, nil
	}
	t, err := time.Parse("15:04", s)
	if err != nil {
		return 0, fmt.Errorf("time of day %q: want HH:MM", s)
	}
	return t.Hour()*60 + t.Minute(), nil
}

var weekdays = []string{"sun", "mon", "tue", "wed", "thu", "fri", "sat"}

// days returns on which weekdays the window begins.
func (w Window) days() (on [7]bool, err error) {
	if w.Days == "" {
		return [7]bool{true, true, true, true, true, true, true}, nil
	}
	for part := range strings.SplitSeq(w.Days, ",") {
		first, last, isRange := strings.Cut(part, "-")
		if !isRange {
			last = first
		}
		a, b := slices.Index(weekdays, first), slices.Index(weekdays, last)
		if a < 0 || b < 0 {
			return on, fmt.Errorf("days %q: want names such as mon-fri or sat,sun", w.Days)
		}
		for d := a; ; d = (d + 1) % 7 {
			on[d] = true
			if d == b {
				break
			}
		}
	}
	return on, nil
}

// Contains reports whether the window is open at t. A window that Check
// refuses never is.
func (w Window) Contains(t time.Time) bool {
	zone, err := time.LoadLocation(w.Zone)
	if err != nil {
		return false
	}
	on, err := w.days()
	from, err1 := minutes(w.From)
	to, err2 := minutes(w.To)
	if err != nil || err1 != nil || err2 != nil {
		return false
	}
	t = t.In(zone)
	now, today := t.Hour()*60+t.Minute(), int(t.Weekday())
	if from < to {
		return on[today] && from <= now && now < to
	}
	return on[today] && now >= from || on[(today+6)%7] && now < to
}

// InWindow reports whether nodes may be started at t: in one of the windows,
// or at any time if there are none.
func (p *Policy) InWindow(t time.Time) bool {
	return len(p.Windows) == 0 || slices.ContainsFunc(p.Windows, func(w Window) bool { return w.Contains(t) })
}

// NextWindow returns when nodes may be started again, to the minute: t
// itself if it is in a window, the zero time if no window opens within eight
// days.
func (p *Policy) NextWindow(t time.Time) time.Time {
	for at, end := t, t.AddDate(0, 0, 8); at.Before(end); at = at.Truncate(time.Minute).Add(time.Minute) {
		if p.InWindow(at) {
			return at
		}
	}
	return time.Time{}
}
