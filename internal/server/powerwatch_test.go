package server_test

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/turnout-project/turnout/internal/api"
)

// The power of a node that reports is on, whatever its BMC said once; the
// BMCs of silent nodes are asked, and an answer does not last.
func TestPowerOfSilentNodes(t *testing.T) {
	l := newLab(t, withKeys(t))
	m := l.ready(1, "rack", "sha256:"+strings.Repeat("1", 64))
	machine := &powered{}
	_, req := newBMC(t, machine)
	_, err := l.admin.SetBMC(ctx, "n1", req)
	l.must(err)
	deadline, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for _, step := range []struct {
		what  string
		do    func()
		power string
	}{
		{"reports", func() { m.beat() }, api.PowerOn},
		{"silent, nobody has asked", func() { l.clock.add(2 * time.Minute) }, ""},
		{"silent and off", func() { l.must(l.srv.AskPower(ctx)) }, api.PowerOff},
		{"switched on through its BMC", func() { machine.on.Store(true); _, err := l.view.Power(ctx, "n1"); l.must(err) }, api.PowerOn},
		{"an old answer", func() { l.clock.add(6 * time.Minute) }, ""},
		{"asked again", func() { machine.on.Store(false); l.must(l.srv.AskPower(ctx)) }, api.PowerOff},
		{"back", func() { m.beat() }, api.PowerOn},
	} {
		step.do()
		for { // the fleet is looked up anew now and then only
			rows := l.rows(l.watch(deadline, "?rows=1", l.bearer("viewer"))).Rows
			if len(rows) == 1 && rows[0].Power == step.power {
				break
			}
			if deadline.Err() != nil {
				t.Fatalf("%s: %+v; want power %q", step.what, rows, step.power)
			}
		}
	}
}
