// Package top draws the fleet as it is now for a terminal: a bar for each
// pool, the rollouts under way, the nodes that need a person, and the last
// things that happened. It is pure: what it is given it draws.
package top

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/mattn/go-runewidth"

	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/fleet"
)

// Fleet is what is known. The zero value knows nothing.
type Fleet struct {
	rows     map[string]api.FleetRow
	whole    bool // all rows have come
	events   []fleet.Event
	Rollouts []api.RolloutSummary // newest last
	Trouble  string               // why there is no news; ""
}

// keptEvents is how many events are kept: more than a screen shows.
const keptEvents = 200

// Take adds news.
func (f *Fleet) Take(n api.News) {
	if n.Rows != nil {
		if n.Rows.Reset || f.rows == nil {
			f.rows, f.whole = map[string]api.FleetRow{}, false
		}
		for _, r := range n.Rows.Rows {
			f.rows[r.Name] = r
		}
		for _, name := range n.Rows.Gone {
			delete(f.rows, name)
		}
		f.whole = f.whole || n.Rows.Whole
	}
	f.events = append(f.events, n.Events...)
	if extra := len(f.events) - keptEvents; extra > 0 {
		f.events = slices.Delete(f.events, 0, extra)
	}
}

// Screen is where it is drawn.
type Screen struct {
	Width, Height int  // cells; 0 is no limit
	Colour        bool // SGR sequences are understood and wanted
	Now           time.Time
}

// Draw returns the lines of a screen, none wider, not more than fit.
func (f *Fleet) Draw(s Screen) []string {
	d := &drawing{Screen: s}
	d.head(f)
	d.pools(f)
	d.rollouts(f)
	d.trouble(f)
	d.history(f)
	return d.lines
}

type drawing struct {
	Screen
	lines []string
}

// room is how many lines are left.
func (d *drawing) room() int {
	if d.Height == 0 {
		return 1 << 30
	}
	return d.Height - len(d.lines)
}

// add adds a line of parts; each is text with its colour ("" is none).
func (d *drawing) add(parts ...[2]string) {
	if d.room() <= 0 {
		return
	}
	var b strings.Builder
	left := d.Width
	for _, p := range parts {
		text := clean(p[0])
		if d.Width > 0 {
			if left <= 0 {
				break
			}
			text = runewidth.Truncate(text, left, "…")
			left -= runewidth.StringWidth(text)
		}
		if text == "" {
			continue
		}
		if d.Colour && p[1] != "" {
			text = "\x1b[" + p[1] + "m" + text + "\x1b[0m"
		}
		b.WriteString(text)
	}
	d.lines = append(d.lines, strings.TrimRight(b.String(), " "))
}

func plain(format string, args ...any) [2]string { return [2]string{fmt.Sprintf(format, args...), ""} }
func bold(format string, args ...any) [2]string  { return [2]string{fmt.Sprintf(format, args...), "1"} }
func faint(format string, args ...any) [2]string { return [2]string{fmt.Sprintf(format, args...), "2"} }

// clean takes control characters out of what a node or a file said: on a
// terminal they are commands.
func clean(s string) string {
	return strings.Map(func(r rune) rune {
		if r < ' ' || r == 0x7f || r >= 0x80 && r < 0xa0 {
			return ' '
		}
		return r
	}, s)
}

func (d *drawing) head(f *Fleet) {
	tally := f.tally("")
	parts := [][2]string{bold("Turnout"), plain("  %s", count(len(f.rows), "node"))}
	for s := range statuses {
		if n := tally[s]; n > 0 {
			parts = append(parts, [2]string{fmt.Sprintf("  %s %d %s", looks[s].sign, n, looks[s].text), looks[s].colour})
		}
	}
	parts = append(parts, faint("  %s", d.Now.Format("15:04:05")))
	d.add(parts...)
	switch {
	case f.Trouble != "":
		d.add([2]string{"no news: " + f.Trouble, "33"})
	case !f.whole:
		d.add(faint("waiting for the fleet …"))
	}
}

// tally counts the nodes of a pool by status; "" is all pools.
func (f *Fleet) tally(pool string) (n [statuses]int) {
	for _, r := range f.rows {
		if pool == "" || r.Pool == pool {
			n[StatusOf(r)]++
		}
	}
	return n
}

// poolBar is how wide the bar of a pool is.
const poolBar = 30

func (d *drawing) pools(f *Fleet) {
	of := map[string][]api.FleetRow{}
	for _, r := range f.rows {
		of[r.Pool] = append(of[r.Pool], r)
	}
	if len(of) == 0 {
		return
	}
	d.add()
	width := 4
	for p := range of {
		width = max(width, min(runewidth.StringWidth(p), 24))
	}
	for _, p := range slices.Sorted(maps.Keys(of)) {
		parts := [][2]string{plain("%s %5d ", runewidth.FillRight(runewidth.Truncate(p, width, "…"), width), len(of[p]))}
		parts = append(parts, bar(f.tally(p), len(of[p]))...)
		d.add(append(parts, plain("  %s", imagesOf(of[p])))...)
	}
}

// bar is a bar of poolBar cells, in which every status that occurs has one
// at least.
func bar(tally [statuses]int, all int) [][2]string {
	var parts [][2]string
	left := poolBar
	for s := range statuses {
		if tally[s] == 0 {
			continue
		}
		n := min(max(tally[s]*poolBar/all, 1), left)
		if s == Well {
			n = left
		}
		left -= n
		parts = append(parts, [2]string{strings.Repeat(looks[s].sign, n), looks[s].colour})
	}
	return append(parts, plain("%s", strings.Repeat(" ", left)))
}

// imagesOf names the images that nodes run, the most common first.
func imagesOf(rows []api.FleetRow) string {
	n := map[string]int{}
	for _, r := range rows {
		if r.ImageName != "" {
			n[r.ImageName]++
		}
	}
	names := slices.SortedFunc(maps.Keys(n), func(a, b string) int {
		return cmp.Or(cmp.Compare(n[b], n[a]), strings.Compare(a, b))
	})
	for i, name := range names {
		names[i] = fmt.Sprintf("%s ×%d", name, n[name])
	}
	return strings.Join(names, ", ")
}

// rollouts draws those under way and the newest that ended.
func (d *drawing) rollouts(f *Fleet) {
	var live []api.RolloutSummary
	for i, r := range f.Rollouts {
		under := r.State == fleet.RolloutRunning || r.State == fleet.RolloutPaused
		if under || i == len(f.Rollouts)-1 {
			live = append(live, r)
		}
	}
	if len(live) > 0 {
		d.add()
	}
	for _, r := range live {
		n := map[fleet.MoveState]int{}
		all := 0
		for _, stage := range r.Counts {
			for state, c := range stage {
				n[state] += c
				all += c
			}
		}
		colour := map[fleet.RolloutState]string{fleet.RolloutRunning: "36", fleet.RolloutDone: "32"}[r.State]
		if colour == "" {
			colour = "33"
		}
		d.add(bold("rollout %s ", r.ID), [2]string{string(r.State), colour},
			plain("  stage %d of %d  %s  %d of %d done, %d moving, %d failed  ", min(r.Stage+1, len(r.Counts)), len(r.Counts),
				progress(n[fleet.MoveDone], all, 20), n[fleet.MoveDone], all, n[fleet.MoveMoving], n[fleet.MoveFailed]),
			[2]string{r.Reason, "33"})
	}
}

func progress(done, all, width int) string {
	n := 0
	if all > 0 {
		n = done * width / all
	}
	return "[" + strings.Repeat("#", n) + strings.Repeat("-", width-n) + "]"
}

// historyLines are kept for the history, however many nodes are in trouble.
const historyLines = 8

// trouble lists the nodes that are not well, the worst first.
func (d *drawing) trouble(f *Fleet) {
	var rows []api.FleetRow
	for _, r := range f.rows {
		if s := StatusOf(r); s != Well {
			rows = append(rows, r)
		}
	}
	if len(rows) == 0 {
		return
	}
	slices.SortFunc(rows, func(a, b api.FleetRow) int {
		return cmp.Or(cmp.Compare(StatusOf(a), StatusOf(b)), strings.Compare(a.Name, b.Name))
	})
	d.add()
	fit := max(d.room()-historyLines, 3)
	for i, r := range rows {
		if i == fit-1 && len(rows) > fit {
			d.add(faint("… and %d more: pxeserver node list", len(rows)-i))
			break
		}
		s := StatusOf(r)
		slot := ""
		if r.Slot != fleet.NoSlot {
			slot = fmt.Sprintf("%s %s", r.Slot, r.SlotState)
		}
		d.add([2]string{looks[s].sign + " ", looks[s].colour}, plain("%-16s %-12s %-9s ", r.Name, r.Pool, slot),
			[2]string{fmt.Sprintf("%-20s", looks[s].text), looks[s].colour}, plain(" %s", detail(r, s, d.Now)))
	}
}

func (d *drawing) history(f *Fleet) {
	if len(f.events) == 0 || d.room() < 2 {
		return
	}
	d.add()
	ev := f.events
	if n := min(d.room(), 30); len(ev) > n {
		ev = ev[len(ev)-n:]
	}
	for _, e := range ev {
		d.add(faint("%s ", e.At.Local().Format("15:04:05")), plain("%-12s %-20s %s", cmp.Or(e.Node, "-"), e.Kind, e.Message))
	}
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}
