package progress

import (
	"bytes"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// clock is a time that only tests move.
type clock struct{ t time.Time }

func (c *clock) add(d time.Duration) { c.t = c.t.Add(d) }

// reporter makes one without its ticker, on a test clock.
func reporter(mode Mode) (*Reporter, *bytes.Buffer, *clock) {
	var b bytes.Buffer
	c := &clock{time.Unix(1000, 0)}
	return &Reporter{w: &b, mode: mode, now: func() time.Time { return c.t }, width: func() int { return 60 }, stop: make(chan struct{})}, &b, c
}

func script(r *Reporter, c *clock) {
	t := r.Start("fetch", Bytes)
	c.add(2 * time.Second)
	t.Update(10<<20, 40<<20)
	c.add(9 * time.Second)
	t.Update(22<<20, 40<<20)
	t.Update(20<<20, 40<<20) // overtaken
	r.Note("using %d workers", 2)
	c.add(time.Second)
	t.End("40.0 MiB, all cached")
	n := r.Start("configure", Items)
	n.Update(7, 0)
	c.add(200 * time.Second)
	n.End("")
	r.Start("quick", Bytes).End("")
}

func TestModes(t *testing.T) {
	tests := []struct {
		name string
		mode Mode
		want string
	}{
		{"plain", Plain, `fetch  22.0 MiB of 40.0 MiB (55 %)  2.0 MiB/s  11 s
using 2 workers
fetch                       12 s  40.0 MiB, all cached
configure                  3 min  7
quick                    0.0 s
`},
		{"json", JSON, `{"event":"start","task":"fetch"}
{"event":"progress","task":"fetch","text":"fetch 22.0 MiB of 40.0 MiB (55 %) 2.0 MiB/s 11 s","done":23068672,"total":41943040,"seconds":11}
{"event":"note","text":"using 2 workers"}
{"event":"end","task":"fetch","text":"fetch 12 s 40.0 MiB, all cached","done":23068672,"total":41943040,"seconds":12}
{"event":"start","task":"configure"}
{"event":"end","task":"configure","text":"configure 3 min 7","done":7,"seconds":200}
{"event":"start","task":"quick"}
{"event":"end","task":"quick","text":"quick 0.0 s"}
`},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			r, b, c := reporter(tt.mode)
			script(r, c)
			r.Close()
			if d := cmp.Diff(tt.want, b.String()); d != "" {
				t.Errorf("output (-want +got):\n%s", d)
			}
		})
	}
}

func TestLive(t *testing.T) {
	r, b, c := reporter(Live)
	one, two := r.Start("slot initrd", Bytes), r.Start("installer initrd", Bytes)
	one.Update(1<<20, 0)
	c.add(3 * time.Second)
	r.draw()
	one.End("")
	two.End("")
	r.Close()
	want := "\r\x1b[Kslot initrd  1.0 MiB  341.3 KiB/s  3.0 s · installer initrd" +
		"\r\x1b[Kslot initrd                3.0 s  1.0 MiB\n" +
		"\r\x1b[Kinstaller initrd  3.0 s" +
		"\r\x1b[Kinstaller initrd         3.0 s\n"
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("output (-want +got):\n%s", d)
	}
}

// A Reporter as New makes it, with its ticker, under several goroutines.
func TestConcurrent(t *testing.T) {
	var b bytes.Buffer
	r := New(&b, Live)
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			task := r.Start("work", Items)
			for i := range int64(100) {
				task.Update(i, 100)
			}
			task.End("done")
		})
	}
	wg.Wait()
	r.Close()
	if n := strings.Count(b.String(), "done\n"); n != 8 {
		t.Errorf("%d tasks ended; want 8", n)
	}
}

func TestNilIsSilent(t *testing.T) {
	var r *Reporter
	r.Note("x")
	task := r.Start("x", Bytes)
	task.Update(1, 2)
	task.End("x")
	r.Close()
	if task != nil {
		t.Error("a nil Reporter made a task")
	}
}

func TestAutoIsPlainOnABuffer(t *testing.T) {
	r := New(&bytes.Buffer{}, Auto)
	defer r.Close()
	if r.mode != Plain {
		t.Errorf("mode = %d; want Plain", r.mode)
	}
}

func TestSize(t *testing.T) {
	for n, want := range map[int64]string{0: "0 B", 1023: "1023 B", 1536: "1.5 KiB", 5 << 30: "5.0 GiB", 9 << 50: "9216.0 TiB"} {
		if got := Size(n); got != want {
			t.Errorf("Size(%d) = %q; want %q", n, got, want)
		}
	}
}
