// Package progress shows how far a long piece of work is: one live line on a
// terminal, plain lines elsewhere, or JSON events for programs. It writes
// what it is told and measures time; it decides nothing.
package progress

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/term"
)

// Mode is the form of the output.
type Mode int

// The modes. Auto becomes Live on a terminal and Plain otherwise.
const (
	Auto Mode = iota
	Live
	Plain
	JSON
)

// Unit is what a task counts.
type Unit int

// The units of tasks.
const (
	Bytes Unit = iota
	Items
)

const (
	liveEvery  = 100 * time.Millisecond
	plainEvery = 10 * time.Second // between lines of one task
)

// Reporter shows the progress of tasks. Its methods, and those of its tasks,
// may be called from several goroutines. A nil *Reporter is silent.
type Reporter struct {
	mu    sync.Mutex
	w     io.Writer
	mode  Mode
	width func() int
	now   func() time.Time
	tasks []*Task
	drawn bool
	stop  chan struct{}
	done  sync.WaitGroup
}

// Task is one piece of work. A nil *Task is silent.
type Task struct {
	r           *Reporter
	name        string
	unit        Unit
	start, last time.Time
	done, total int64
}

// New makes a Reporter that writes to w. Close it.
func New(w io.Writer, mode Mode) *Reporter {
	r := &Reporter{w: w, mode: mode, now: time.Now, width: func() int { return 80 }, stop: make(chan struct{})}
	if f, ok := w.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
		if mode == Auto {
			r.mode = Live
		}
		r.width = func() int {
			if n, _, err := term.GetSize(int(f.Fd())); err == nil && n > 0 {
				return n
			}
			return 80
		}
	} else if mode == Auto {
		r.mode = Plain
	}
	if r.mode == Live {
		r.done.Go(r.redraw)
	}
	return r
}

// redraw draws the live line until Close.
func (r *Reporter) redraw() {
	t := time.NewTicker(liveEvery)
	defer t.Stop()
	for {
		select {
		case <-r.stop:
			return
		case <-t.C:
			r.mu.Lock()
			r.draw()
			r.mu.Unlock()
		}
	}
}

// Close ends the live line. Tasks that are not ended are forgotten.
func (r *Reporter) Close() {
	if r == nil {
		return
	}
	close(r.stop)
	r.done.Wait()
	r.mu.Lock()
	defer r.mu.Unlock()
	r.clear()
}

// Note writes a line of its own.
func (r *Reporter) Note(format string, args ...any) {
	if r == nil {
		return
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.line("note", "", fmt.Sprintf(format, args...), 0, 0, 0)
}

// Start begins a task.
func (r *Reporter) Start(name string, unit Unit) *Task {
	if r == nil {
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	now := r.now()
	t := &Task{r: r, name: name, unit: unit, start: now, last: now}
	r.tasks = append(r.tasks, t)
	if r.mode == JSON {
		r.line("start", name, "", 0, 0, 0)
	}
	return t
}

// Update says how much of total is done; 0 is an unknown total.
func (t *Task) Update(done, total int64) {
	if t == nil {
		return
	}
	r := t.r
	r.mu.Lock()
	defer r.mu.Unlock()
	if done < t.done && total == t.total {
		return // from a goroutine that was overtaken
	}
	t.done, t.total = done, total
	if r.mode == Live {
		return // drawn by the ticker
	}
	if now := r.now(); now.Sub(t.last) >= plainEvery {
		t.last = now
		r.line("progress", t.name, t.text(now), done, total, now.Sub(t.start))
	}
}

// End ends a task; detail, if not "", says what came of it.
func (t *Task) End(detail string) {
	if t == nil {
		return
	}
	r := t.r
	r.mu.Lock()
	defer r.mu.Unlock()
	for i, x := range r.tasks {
		if x == t {
			r.tasks = append(r.tasks[:i], r.tasks[i+1:]...)
			break
		}
	}
	took := r.now().Sub(t.start)
	text := fmt.Sprintf("%-24s %s", t.name, Elapsed(took))
	if t.done > 0 && detail == "" {
		detail = t.amount(t.done)
	}
	if detail != "" {
		text = fmt.Sprintf("%-24s %7s  %s", t.name, Elapsed(took), detail)
	}
	r.line("end", t.name, text, t.done, t.total, took)
}

// event is one line in JSON mode.
type event struct {
	Event   string  `json:"event"` // "start", "progress", "end", "note"
	Task    string  `json:"task,omitempty"`
	Text    string  `json:"text,omitempty"`
	Done    int64   `json:"done,omitempty"`
	Total   int64   `json:"total,omitempty"`
	Seconds float64 `json:"seconds,omitempty"`
}

// line writes one finished line in the reporter's mode.
func (r *Reporter) line(kind, task, text string, done, total int64, took time.Duration) {
	if r.mode == JSON {
		b, err := json.Marshal(event{kind, task, strings.Join(strings.Fields(text), " "), done, total, took.Seconds()})
		if err == nil {
			_, _ = r.w.Write(append(b, '\n')) // a reader that went away is no reason to stop
		}
		return
	}
	r.clear()
	_, _ = fmt.Fprintln(r.w, text) // as above
	r.draw()
}

// clear removes the live line.
func (r *Reporter) clear() {
	if r.drawn {
		_, _ = io.WriteString(r.w, "\r\x1b[K")
		r.drawn = false
	}
}

// draw shows the running tasks, cut to the width of the terminal.
func (r *Reporter) draw() {
	if r.mode != Live || len(r.tasks) == 0 {
		return
	}
	now := r.now()
	var parts []string
	for _, t := range r.tasks {
		parts = append(parts, t.text(now))
	}
	s := []rune(strings.Join(parts, " · "))
	if w := r.width() - 1; len(s) > w && w > 0 {
		s = s[:w]
	}
	_, _ = io.WriteString(r.w, "\r\x1b[K"+string(s))
	r.drawn = true
}

// text describes a running task: what, how much, how fast, how long.
func (t *Task) text(now time.Time) string {
	took := now.Sub(t.start)
	s := t.name
	if t.done > 0 || t.total > 0 {
		s += "  " + t.amount(t.done)
	}
	if t.total > 0 {
		s += fmt.Sprintf(" of %s (%d %%)", t.amount(t.total), t.done*100/t.total)
	}
	if t.unit == Bytes && t.done > 0 && took >= time.Second {
		s += "  " + t.amount(int64(float64(t.done)/took.Seconds())) + "/s"
	}
	return s + "  " + Elapsed(took)
}

func (t *Task) amount(n int64) string {
	if t.unit == Items {
		return fmt.Sprint(n)
	}
	return Size(n)
}

// Size writes a number of bytes for people: "512 B", "1.5 MiB".
func Size(n int64) string {
	if n < 1024 {
		return fmt.Sprintf("%d B", n)
	}
	f, unit := float64(n), ""
	for _, u := range []string{"KiB", "MiB", "GiB", "TiB"} {
		if f < 1024 {
			break
		}
		f, unit = f/1024, u
	}
	return fmt.Sprintf("%.1f %s", f, unit)
}

// Elapsed writes a duration for people: "0.3 s", "75 s", "12 min".
func Elapsed(d time.Duration) string {
	switch {
	case d < 10*time.Second:
		return fmt.Sprintf("%.1f s", d.Seconds())
	case d < 3*time.Minute:
		return fmt.Sprintf("%.0f s", d.Seconds())
	}
	return fmt.Sprintf("%.0f min", d.Minutes())
}
