package demo

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/vmtest"
)

// failure is one way in which a node can be brought down. happen brings it
// about on a node that runs v2, confirmed, and returns when the node is back
// on it by itself. The other slot is v1's at first, and bad after an update
// that failed.
type failure struct {
	name   string
	title  string
	happen func(context.Context, *lab, *vmtest.Node) error
}

var failures = []failure{
	{"nvram", "the firmware's variables are lost while the node is off", nvramLost},
	{"network-first", "the firmware starts with the network: the confirmed slot, over it", networkFirst},
	{"no-server", "the node starts while the server is down", noServer},
	{"panic", "an update whose kernel panics in every trial boot", panicking},
	{"agent-killed", "an update that kills the agent again and again", agentKilled},
	{"esp-refused", "the same image on trial once more, and the firmware refuses to count it", espRefused},
	{"both-roots", "a byte of both roots changes on disk", bothRoots},
}

// Failures brings one node up on v2 with v1 beside it, and then down in every
// way it knows; after each the node must be back on a confirmed slot, healthy
// and attested, without a hand on it.
func Failures(ctx context.Context, o Options) (err error) {
	l, err := newLab(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	if err := l.oneNode(ctx); err != nil {
		return err
	}
	for _, v := range []string{"v5", "v6"} {
		if err := errors.Join(l.buildImage(ctx, v), l.publish(ctx, v)); err != nil {
			return err
		}
	}
	node := l.rack.Nodes()[0]
	if err := l.onSecond(ctx, node); err != nil {
		return err
	}
	for i, f := range failures {
		if len(o.Only) > 0 && !wanted(o.Only, f.name) {
			continue
		}
		l.heading(i+1, f.title)
		began := time.Now()
		failed := f.happen(ctx, l, node)
		l.table.add(f.title, time.Since(began), failed)
		if failed != nil {
			l.table.print(l.Out)
			return fmt.Errorf("failure %s: %w", f.name, failed)
		}
	}
	l.table.print(l.Out)
	return nil
}

// onSecond brings a node that runs v1 to v2.
func (l *lab) onSecond(ctx context.Context, node *vmtest.Node) error {
	if _, err := l.operator(ctx, "reimage", node.Name, "--image", l.digests["v2"], "--yes"); err != nil {
		return err
	}
	_, err := l.settled(ctx, node.Name, l.digests["v2"], patience)
	return err
}

// comesBack waits for another boot than the one before, confirmed, healthy
// and attested, on v2.
func (l *lab) comesBack(ctx context.Context, name, before string) (fleet.Node, error) {
	var n fleet.Node
	err := l.until(ctx, name+" to come back by itself", patience, func() (bool, string) {
		var err error
		if n, err = l.node(ctx, name); err != nil {
			return false, err.Error()
		}
		return n.Reported.BootID != before && runs(n, l.digests["v2"]), l.describe(n)
	})
	return n, err
}

// offAnd does something to a node that is off, and waits for it to be back.
func (l *lab) offAnd(ctx context.Context, node *vmtest.Node, do func() error) (fleet.Node, error) {
	n, err := l.node(ctx, node.Name)
	if err != nil {
		return n, err
	}
	if err := errors.Join(node.PowerOff(), do(), node.PowerOn()); err != nil {
		return n, err
	}
	return l.comesBack(ctx, node.Name, n.Reported.BootID)
}

func nvramLost(ctx context.Context, l *lab, node *vmtest.Node) error {
	n, err := l.offAnd(ctx, node, node.WipeNVRAM)
	if err == nil && n.Reported.BootPath != "disk" {
		err = fmt.Errorf("it came back from %s, want disk", n.Reported.BootPath)
	}
	return err
}

func networkFirst(ctx context.Context, l *lab, node *vmtest.Node) error {
	n, err := l.offAnd(ctx, node, func() error { node.NetworkOnce(true); return nil })
	if err == nil && n.Reported.BootPath != "network" {
		err = fmt.Errorf("it came back from %s, want network", n.Reported.BootPath)
	}
	return err
}

// noServer starts the node without a server, waits until its system is up,
// and only then brings the server back.
func noServer(ctx context.Context, l *lab, node *vmtest.Node) error {
	n, err := l.node(ctx, node.Name)
	if err != nil {
		return err
	}
	l.stopStory()
	if err := errors.Join(l.killServer(), node.PowerOff()); err != nil {
		return err
	}
	seen := len(node.Console())
	if err := node.PowerOn(); err != nil {
		return err
	}
	if err := l.until(ctx, node.Name+" to be up without a server", patience, func() (bool, string) {
		text := node.Console()[seen:]
		return strings.Contains(text, "multi-user.target"), lastLine(text)
	}); err != nil {
		return err
	}
	l.say("%s is up, on its confirmed slot, without a server; starting the server again", node.Name)
	if err := errors.Join(l.startServer(ctx), l.follow()); err != nil {
		return err
	}
	_, err = l.comesBack(ctx, node.Name, n.Reported.BootID)
	return err
}

func lastLine(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return lines[len(lines)-1]
}

func panicking(ctx context.Context, l *lab, node *vmtest.Node) error {
	return l.badUpdate(ctx, node, "v5", "ran out of trial boots")
}

func agentKilled(ctx context.Context, l *lab, node *vmtest.Node) error {
	seen := len(node.Console())
	if err := l.badUpdate(ctx, node, "v6", "ran out of trial boots"); err != nil {
		return err
	}
	if !strings.Contains(node.Console()[seen:], "no sign of life of the agent") {
		return errors.New("the console does not say that the guard ended the trial")
	}
	return nil
}

// espRefused puts the image that kills its agent on trial once more, under a
// name that the firmware may not change: the loader starts it again and again,
// and only the initrd counts. It goes on from agentKilled.
func espRefused(ctx context.Context, l *lab, node *vmtest.Node) error {
	seen := len(node.Console())
	n, err := l.offAnd(ctx, node, func() error {
		start, err := partitionStart(node.Disk(), "esp")
		if err != nil {
			return err
		}
		esp := fmt.Sprintf("%s@@%d", node.Disk(), start)
		out, err := exec.CommandContext(ctx, "mdir", "-b", "-i", esp, "::EFI/Linux").Output()
		if err != nil {
			return commandError("mdir", err)
		}
		bad, generation := "", 0
		for file := range strings.FieldsSeq(string(out)) {
			if g, _, ok := strings.Cut(strings.TrimPrefix(path.Base(file), "g"), "-"); ok {
				if x, err := strconv.Atoi(g); err == nil {
					generation = max(generation, x)
				}
			}
			if strings.Contains(file, "+0-") {
				bad = file
			}
		}
		short, _, _ := strings.Cut(path.Base(bad), "+")
		_, short, ok := strings.Cut(short, "-")
		if !ok {
			return fmt.Errorf("no bad UKI among %q: run agent-killed before", out)
		}
		armed := fmt.Sprintf("::EFI/Linux/g%06d-%s+2.efi", generation+1, short)
		for _, c := range [][]string{{"mren", "-i", esp, bad, armed}, {"mattrib", "+r", "-i", esp, armed}} {
			if _, err := exec.CommandContext(ctx, c[0], c[1:]...).Output(); err != nil {
				return commandError(c[0], err)
			}
		}
		l.say("%s is off; %s is armed as %s, and read-only for the firmware; power on", node.Name, bad, armed)
		return nil
	})
	if err != nil {
		return err
	}
	if got := strings.Count(node.Console()[seen:], "the loader could not count this boot"); got != 2 {
		return fmt.Errorf("the initrd counted %d boots, want 2", got)
	}
	l.say("%s", l.describe(n))
	return nil
}

// badUpdate rolls an image out that can never be confirmed; the node must
// come back on v2, with the reason, and the rollout must halt.
func (l *lab) badUpdate(ctx context.Context, node *vmtest.Node, v, reason string) error {
	n, err := l.node(ctx, node.Name)
	if err != nil {
		return err
	}
	id, err := l.startRolloutTo(ctx, v, "canary")
	if err != nil {
		return err
	}
	r, err := l.rolloutEnds(ctx, id)
	if err != nil {
		return err
	}
	if r.State != fleet.RolloutHalted {
		return fmt.Errorf("rollout of %s ended %s (%s), want halted", v, r.State, r.Reason)
	}
	if n, err = l.comesBack(ctx, node.Name, n.Reported.BootID); err != nil {
		return err
	}
	bad := n.Reported.Slot(n.Reported.Booted.Other())
	if bad.State != fleet.SlotBad || !strings.Contains(bad.Reason, reason) {
		return fmt.Errorf("slot %s is %s (%s), want bad: %s", bad.Slot, bad.State, bad.Reason, reason)
	}
	l.say("%s runs slot %s again; slot %s is bad: %s", node.Name, n.Reported.Booted, bad.Slot, bad.Reason)
	return nil
}

// bothRoots damages both slots: nothing on the disk can be started, so the
// node asks for the network, and the installer writes what is wanted anew.
func bothRoots(ctx context.Context, l *lab, node *vmtest.Node) error {
	n, err := l.offAnd(ctx, node, func() error {
		for _, label := range []string{"root-a", "root-b"} {
			start, err := partitionStart(node.Disk(), label)
			if err != nil {
				return err
			}
			if err := node.EditDisk(func(f *os.File) error { return vmtest.FlipByte(f, start+3<<20+17) }); err != nil {
				return err
			}
		}
		l.say("%s is off; a byte of both roots was changed; power on", node.Name)
		return nil
	})
	if err == nil {
		l.say("%s", l.describe(n))
	}
	return err
}
