package demo

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/vmtest"
)

// PowerCuts provisions one node and then pulls its power at n random moments
// of installations into its other slot. After each cut the node must come
// back by itself, confirmed, on an image it was asked to run. The seed makes
// a run repeatable as far as the machines are.
func PowerCuts(ctx context.Context, o Options, n int, seed uint64) (err error) {
	l, err := newLab(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	random := rand.New(rand.NewPCG(seed, 0))
	if err := l.oneNode(ctx); err != nil {
		return err
	}
	node := l.rack.Nodes()[0]
	images := []string{"v2", "v1"} // asked for in turn, so that there is always something to install
	for cut := 1; cut <= n; {
		if err := l.want(ctx, node.Name, l.digests[images[0]]); err != nil {
			return err
		}
		hit, err := l.cutDuringInstall(ctx, node, random)
		if err != nil {
			return fmt.Errorf("cut %d of %d: %w", cut, n, err)
		}
		if !hit { // it was through before the cut: the next image, please
			images = append(images[1:], images[0])
			continue
		}
		if err := l.backOnConfirmed(ctx, node); err != nil {
			return fmt.Errorf("cut %d of %d: %w", cut, n, err)
		}
		l.say("cut %d of %d survived", cut, n)
		cut++
	}
	return nil
}

// oneNode builds v1 and v2 and brings up the canary alone.
func (l *lab) oneNode(ctx context.Context) error {
	if err := l.makeKeys(ctx); err != nil {
		return err
	}
	for _, v := range []string{"v1", "v2"} {
		if err := l.buildImage(ctx, v); err != nil {
			return err
		}
	}
	node, err := l.rack.AddNode(vmtest.NodeSpec{Name: names[0]})
	if err != nil {
		return err
	}
	if err := l.startServer(ctx); err != nil {
		return err
	}
	if err := l.follow(); err != nil {
		return err
	}
	for _, v := range []string{"v1", "v2"} {
		if err := l.publish(ctx, v); err != nil {
			return err
		}
	}
	if _, err := l.operator(ctx, "pool", "set", "canary", "--image", l.digests["v1"]); err != nil {
		return err
	}
	if err := node.PowerOn(); err != nil {
		return err
	}
	if err := l.approve(ctx, node); err != nil {
		return err
	}
	_, err = l.settled(ctx, node.Name, l.digests["v1"], patience)
	return err
}

// want asks for an image by reinstalling, so that a slot that already holds
// it is written again.
func (l *lab) want(ctx context.Context, name, digest string) error {
	n, err := l.node(ctx, name)
	if err != nil {
		return err
	}
	if n.Desired.Image == digest && n.Reported.BootedImage() != digest {
		return nil // an interrupted installation goes on by itself
	}
	_, err = l.operator(ctx, "reimage", name, "--image", digest, "--yes")
	return err
}

// cutDuringInstall waits for an installation to begin and pulls the power at
// a random moment of it. It returns false if the node got through it first.
func (l *lab) cutDuringInstall(ctx context.Context, node *vmtest.Node, random *rand.Rand) (bool, error) {
	through := false
	err := l.until(ctx, "an installation on "+node.Name, patience, func() (bool, string) {
		n, err := l.node(ctx, node.Name)
		if err != nil {
			return false, err.Error()
		}
		through = runs(n, n.Desired.Image)
		return through || strings.HasPrefix(n.Reported.Activity, "install"), l.describe(n)
	})
	if err != nil || through {
		return false, err
	}
	select {
	case <-ctx.Done():
		return false, ctx.Err()
	case <-time.After(time.Duration(random.Int64N(int64(25 * time.Second)))):
	}
	return true, node.PowerOff()
}

// backOnConfirmed switches the node on and waits until it runs a confirmed
// slot, healthy and attested in this boot.
func (l *lab) backOnConfirmed(ctx context.Context, node *vmtest.Node) error {
	before, err := l.node(ctx, node.Name)
	if err != nil {
		return err
	}
	if err := node.PowerOn(); err != nil {
		return err
	}
	return l.until(ctx, node.Name+" to come back on a confirmed slot", patience, func() (bool, string) {
		n, err := l.node(ctx, node.Name)
		if err != nil {
			return false, err.Error()
		}
		r := n.Reported
		return r.BootID != before.Reported.BootID && r.Stage == fleet.StageSystem && runs(n, r.BootedImage()), l.describe(n)
	})
}
