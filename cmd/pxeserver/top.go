package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"
	"golang.org/x/term"

	"github.com/turnout-project/turnout/cmd/internal/cli"
	"github.com/turnout-project/turnout/internal/api"
	"github.com/turnout-project/turnout/internal/pause"
	"github.com/turnout-project/turnout/internal/top"
)

func newTopCommand(g *globals) *cobra.Command {
	var once bool
	cmd := &cobra.Command{
		Use: "top", Short: "Watch the fleet live in the terminal",
		Long: `Shows the fleet as it is now, and again as it changes: a bar for each pool, the
rollouts under way, the nodes that need a person (the worst first, with the
reason), and the last things that happened. q or Ctrl-C ends it.

Without a terminal, or with --once, it is printed once. NO_COLOR is respected.
` + exitCodes,
		Example: "  pxeserver top\n  pxeserver top --once | head",
		Args:    cli.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := g.client()
			if err != nil {
				return err
			}
			out, isFile := cmd.OutOrStdout().(*os.File)
			if once || !isFile || !term.IsTerminal(int(out.Fd())) {
				return topOnce(cmd.Context(), c, cmd.OutOrStdout())
			}
			return topLive(cmd.Context(), c, out)
		},
	}
	cmd.Flags().BoolVar(&once, "once", false, "print it once")
	return cmd
}

// errEnough ends a watch that has shown what was wanted.
var errEnough = errors.New("enough")

func topOnce(ctx context.Context, c *api.Client, w io.Writer) error {
	var f top.Fleet
	var err error
	if f.Rollouts, err = c.RolloutSummaries(ctx); err != nil {
		return err
	}
	err = c.Watch(ctx, func(n api.News) error {
		f.Take(n)
		if n.Rows != nil && n.Rows.Whole {
			return errEnough
		}
		return nil
	})
	if !errors.Is(err, errEnough) {
		return err
	}
	_, err = fmt.Fprintln(w, strings.Join(f.Draw(top.Screen{Now: time.Now()}), "\n"))
	return err
}

// Sequences of a terminal (ECMA-48, xterm): the other screen without a
// cursor, and back; from the top; the rest of the line, of the screen.
const (
	enterScreen = "\x1b[?1049h\x1b[?25l"
	leaveScreen = "\x1b[?25h\x1b[?1049l"
	home        = "\x1b[H"
	clearLine   = "\x1b[K"
	clearRest   = "\x1b[J"
)

// topLive draws until the person or ctx ends it.
func topLive(ctx context.Context, c *api.Client, out *os.File) error {
	ctx, stop := context.WithCancel(ctx)
	defer stop()
	if keys := int(os.Stdin.Fd()); term.IsTerminal(keys) {
		old, err := term.MakeRaw(keys)
		if err == nil {
			defer term.Restore(keys, old) //nolint:errcheck // nothing to be done about it
			go quitOnKey(os.Stdin, stop)
		}
	}
	fmt.Fprint(out, enterScreen)
	defer fmt.Fprint(out, leaveScreen)

	news := make(chan api.News)
	trouble := make(chan string)
	rollouts := make(chan []api.RolloutSummary)
	parts, ctx := errgroup.WithContext(ctx)
	parts.Go(func() error { return watchFleet(ctx, c, news, trouble) })
	parts.Go(func() error { return pollRollouts(ctx, c, rollouts) })
	parts.Go(func() error { return drawLoop(ctx, out, news, trouble, rollouts) })
	err := parts.Wait()
	if errors.Is(err, context.Canceled) {
		return nil // told to stop
	}
	return err
}

// quitOnKey waits for q, Q, Escape or Ctrl-C.
func quitOnKey(keys io.Reader, stop func()) {
	b := make([]byte, 1)
	for {
		if _, err := keys.Read(b); err != nil {
			return
		}
		if strings.ContainsRune("qQ\x1b\x03", rune(b[0])) {
			stop()
			return
		}
	}
}

// watchFleet watches, and again after a server that restarts.
func watchFleet(ctx context.Context, c *api.Client, news chan<- api.News, trouble chan<- string) error {
	for {
		err := c.Watch(ctx, func(n api.News) error {
			if n.Hello != nil {
				if err := put(ctx, trouble, ""); err != nil {
					return err
				}
			}
			return put(ctx, news, n)
		})
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if !errors.Is(err, api.ErrUnreachable) && api.StatusOf(err) < 500 {
			return err
		}
		if err := put(ctx, trouble, err.Error()); err != nil {
			return err
		}
		if err := pause.For(ctx, time.Second); err != nil {
			return err
		}
	}
}

func pollRollouts(ctx context.Context, c *api.Client, to chan<- []api.RolloutSummary) error {
	for {
		if rs, err := c.RolloutSummaries(ctx); err == nil { // watchFleet says what is wrong
			if err := put(ctx, to, rs); err != nil {
				return err
			}
		}
		if err := pause.For(ctx, 2*time.Second); err != nil {
			return err
		}
	}
}

func put[T any](ctx context.Context, to chan<- T, v T) error {
	select {
	case to <- v:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// drawLoop draws at most five times a second, and once a second for the clock.
func drawLoop(ctx context.Context, out *os.File, news <-chan api.News, trouble <-chan string, rollouts <-chan []api.RolloutSummary) error {
	var f top.Fleet
	resized := make(chan os.Signal, 1)
	signal.Notify(resized, syscall.SIGWINCH)
	defer signal.Stop(resized)
	clock := time.NewTicker(time.Second)
	defer clock.Stop()
	pause := time.NewTicker(200 * time.Millisecond)
	defer pause.Stop()
	stale := true
	for {
		select {
		case n := <-news:
			f.Take(n)
			stale = true
		case f.Trouble = <-trouble:
			stale = true
		case f.Rollouts = <-rollouts:
			stale = true
		case <-resized:
			stale = true
		case <-clock.C:
			stale = true
		case <-pause.C:
			if stale {
				draw(out, &f)
				stale = false
			}
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

func draw(out *os.File, f *top.Fleet) {
	w, h, err := term.GetSize(int(out.Fd()))
	if err != nil || w <= 0 || h <= 0 {
		w, h = 80, 24
	}
	colour := os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb"
	lines := f.Draw(top.Screen{Width: w, Height: h, Colour: colour, Now: time.Now()})
	fmt.Fprint(out, home+strings.Join(lines, clearLine+"\r\n")+clearLine+clearRest)
}
