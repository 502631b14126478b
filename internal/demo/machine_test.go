package demo

import (
	"context"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// options points the machine tests at the built programs. The tests take
// many minutes of software emulation, so they run only when asked for, as
// `make machine` and CI do.
func options(t *testing.T, name string) Options {
	t.Helper()
	if os.Getenv("TURNOUT_MACHINE_TEST") == "" {
		t.Skip("set TURNOUT_MACHINE_TEST=1, or run `make machine`")
	}
	top, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return Options{
		Dir: filepath.Join(top, "out", name), Cache: filepath.Join(top, ".cache"),
		Bin: filepath.Join(top, "bin"), Recipes: filepath.Join(top, "recipes"), Out: lines{t},
	}
}

// lines writes the story to the test's log as it happens.
type lines struct{ t *testing.T }

func (l lines) Write(p []byte) (int, error) {
	_, err := os.Stdout.Write(p)
	return len(p), err
}

// TestRack plays every scene of the demo.
func TestRack(t *testing.T) {
	if err := Run(context.Background(), options(t, "rack")); err != nil {
		t.Fatal(err)
	}
}

// TestFailures brings one node down in every way that Failures knows, or in
// those that TURNOUT_FAILURES names.
func TestFailures(t *testing.T) {
	o := options(t, "failures")
	o.Only = strings.Fields(os.Getenv("TURNOUT_FAILURES"))
	if err := Failures(context.Background(), o); err != nil {
		t.Fatal(err)
	}
}

// TestPowerCuts pulls the power during installations: three times, or as
// often as TURNOUT_POWER_CUTS says.
func TestPowerCuts(t *testing.T) {
	o := options(t, "powercuts")
	cuts := 3
	if s := os.Getenv("TURNOUT_POWER_CUTS"); s != "" {
		var err error
		if cuts, err = strconv.Atoi(s); err != nil {
			t.Fatal(err)
		}
	}
	seed := uint64(time.Now().UnixNano())
	t.Logf("seed %d", seed)
	if err := PowerCuts(context.Background(), o, cuts, seed); err != nil {
		t.Fatalf("seed %d: %v", seed, err)
	}
}
