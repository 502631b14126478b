package demo

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"strings"
	"syscall"
	"text/tabwriter"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
)

func (l *lab) say(format string, args ...any) {
	fmt.Fprintf(l.Out, "%7.1fs  %s\n", time.Since(l.started).Seconds(), fmt.Sprintf(format, args...))
}

func (l *lab) heading(n int, title string) {
	fmt.Fprintf(l.Out, "\n%7.1fs  == %d. %s\n", time.Since(l.started).Seconds(), n, title)
}

// follow prints the fleet's new events as they happen, until stopStory.
func (l *lab) follow() error {
	cmd := l.command(context.Background(), l.bin("pxeserver"), "--config", l.config(), "events", "--follow", "--last", "0", "-o", "json")
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if cmd.Stderr, err = os.OpenFile(l.path("story.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644); err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	l.story = cmd
	go func() {
		lines := bufio.NewScanner(out)
		for lines.Scan() {
			var e fleet.Event
			if json.Unmarshal(lines.Bytes(), &e) != nil {
				continue
			}
			who := e.Node
			if who == "" {
				who = e.Actor
			}
			l.say("    %-8s %-20s %s", who, e.Kind, l.shorten(e.Message))
		}
	}()
	return nil
}

// shorten replaces digests by the names the story uses.
func (l *lab) shorten(s string) string {
	for name, d := range l.digests {
		s = strings.ReplaceAll(s, d, name)
	}
	return s
}

func (l *lab) stopStory() {
	if l.story != nil {
		_ = l.story.Process.Signal(syscall.SIGTERM)
		_ = l.story.Wait()
		l.story = nil
	}
}

// table is the summary at the end.
type table struct{ rows []row }

type row struct {
	title string
	took  time.Duration
	err   error
}

func (t *table) add(title string, took time.Duration, err error) {
	t.rows = append(t.rows, row{title, took, err})
}

func (t *table) print(w io.Writer) {
	fmt.Fprintln(w)
	tw := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(tw, "STEP\tSEEN\tTIME\tWHAT")
	var total time.Duration
	for i, r := range t.rows {
		seen := "yes"
		if r.err != nil {
			seen = "NO"
		}
		total += r.took
		fmt.Fprintf(tw, "%d\t%s\t%s\t%s\n", i+1, seen, r.took.Round(time.Second), r.title)
	}
	fmt.Fprintf(tw, "\t\t%s\ttotal\n", total.Round(time.Second))
	tw.Flush()
}
