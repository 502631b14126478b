// Package demo plays Turnout's main job on a virtual rack, with nothing
// faked but the hardware: images are built from recipes, three nodes boot
// over PXE, and canary, rollback, hang, flip and tampering are each seen to
// end as they should. It is `make demo` and, as a test, the machine test.
//
// It drives the real programs from outside, as an operator would; what it
// concludes, it concludes from what they say and from the serial consoles.
package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/turnout-project/turnout/internal/vmtest"
)

// Options say where things are and go.
type Options struct {
	Dir     string    // everything the demo writes; made anew
	Cache   string    // downloaded packages and build results; kept over runs
	Bin     string    // folder of imgbuild, pxeserver and nodeagent
	Recipes string    // folder of the recipes
	Accel   string    // QEMU -accel; "" means software emulation
	Only    []string  // play only the steps of these names (and those they need); nil means all
	Out     io.Writer // the story for people
}

// step is one scene. Later scenes build on the state that earlier ones left.
type step struct {
	name  string
	title string
	play  func(context.Context, *lab) error
}

var steps = []step{
	{"build", "build and sign images v1 to v4 from their recipes", buildImages},
	{"provision", "three nodes PXE-boot, enrol, install v1 into slot A, are confirmed", provision},
	{"canary", "v2 goes to the canary, then to the rest; the server is killed midway", canary},
	{"unhealthy", "v3 fails a health check: the canary falls back, the rollout halts", unhealthy},
	{"hang", "v4 hangs in early boot: the watchdog brings the canary back", hang},
	{"flip", "an operator flips a node to its other confirmed slot", flip},
	{"corrupt-root", "one byte of a root changes on disk: verity refuses it", corruptRoot},
	{"tampered-uki", "one byte of a UKI changes: attestation names PCR and event", tamperedUKI},
}

// Steps lists the names of all scenes in order.
func Steps() []string {
	var names []string
	for _, s := range steps {
		names = append(names, s.name)
	}
	return names
}

// Run plays the scenes and returns nil only if each was seen to end right.
// The namespace and every process are gone when it returns; logs stay.
func Run(ctx context.Context, o Options) (err error) {
	l, err := newLab(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	l.say("logs and consoles: %s", l.Dir)
	for i, s := range steps {
		if !wanted(o.Only, s.name) {
			continue
		}
		l.heading(i+1, s.title)
		started := time.Now()
		stepErr := s.play(ctx, l)
		l.table.add(s.title, time.Since(started), stepErr)
		if stepErr != nil {
			l.table.print(l.Out)
			return fmt.Errorf("step %d (%s): %w", i+1, s.name, stepErr)
		}
	}
	l.table.print(l.Out)
	return nil
}

// wanted: a scene needs all scenes before it up to "provision".
func wanted(only []string, name string) bool {
	if len(only) == 0 || name == "build" || name == "provision" {
		return true
	}
	for _, o := range only {
		if o == name {
			return true
		}
	}
	return false
}

func newLab(o Options) (*lab, error) {
	if o.Out == nil {
		o.Out = io.Discard
	}
	if err := os.RemoveAll(o.Dir); err != nil {
		return nil, err
	}
	for _, d := range []string{o.Dir, o.Cache} {
		if err := os.MkdirAll(d, 0o755); err != nil {
			return nil, err
		}
	}
	for _, p := range []string{"imgbuild", "pxeserver", "nodeagent"} {
		if _, err := os.Stat(filepath.Join(o.Bin, p)); err != nil {
			return nil, fmt.Errorf("%w; run `make build`", err)
		}
	}
	rack, err := vmtest.NewRack(filepath.Join(o.Dir, "rack"))
	if err != nil {
		return nil, err
	}
	rack.Accel = o.Accel
	first := &seat{dir: "server", log: "pxeserver.log", command: rack.Command}
	return &lab{Options: o, seat: first, rack: rack, digests: map[string]string{}, started: time.Now()}, nil
}
