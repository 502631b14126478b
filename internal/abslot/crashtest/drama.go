package crashtest

import (
	"context"

	"github.com/turnout-project/turnout/internal/abslot/slottest"
	"github.com/turnout-project/turnout/internal/fleet"
)

// The images of the drama.
var (
	V1 = slottest.NewImage("v1")
	V2 = slottest.NewImage("v2")
	V3 = slottest.NewImage("v3")
)

// Act is one transition that is played and recorded by itself.
type Act struct {
	Name string
	Play func(ctx context.Context, n *slottest.Node) error
}

// Prologue brings a fresh node to where the acts begin: V1 confirmed in A.
func Prologue(ctx context.Context, n *slottest.Node) error { return n.Provision(ctx, V1) }

// Acts are every transition there is, each from the state in which the one
// before left the node.
var Acts = []Act{
	{"begin", func(ctx context.Context, n *slottest.Node) error { return n.Machine().Begin(ctx, fleet.SlotB) }},
	{"write and stage", func(ctx context.Context, n *slottest.Node) error {
		n.Write(fleet.SlotB, V2)
		return n.Machine().Stage(ctx, fleet.SlotB, V2.Staged())
	}},
	{"arm", func(ctx context.Context, n *slottest.Node) error { return n.Machine().Arm(ctx, fleet.SlotB, 2, 2) }},
	{"cancel", func(ctx context.Context, n *slottest.Node) error { return n.Machine().Cancel(ctx, fleet.SlotB) }},
	{"arm again", func(ctx context.Context, n *slottest.Node) error { return n.Machine().Arm(ctx, fleet.SlotB, 3, 3) }},
	{"trial boot that the initrd counts", func(ctx context.Context, n *slottest.Node) error {
		n.RefusesRename = true
		defer func() { n.RefusesRename = false }()
		if err := boot(ctx, n); err != nil {
			return err
		}
		path, err := n.Machine().Recount(ctx)
		n.Evidence.CountPath = path
		return err
	}},
	{"trial boot", boot},
	{"confirm", func(ctx context.Context, n *slottest.Node) error { return n.Confirm(ctx) }},
	{"flip", func(ctx context.Context, n *slottest.Node) error {
		return n.Machine().Flip(ctx, fleet.SlotA, V1.Short, 4, 1)
	}},
	{"cancel the flip", func(ctx context.Context, n *slottest.Node) error { return n.Machine().Cancel(ctx, fleet.SlotA) }},
	{"flip again", func(ctx context.Context, n *slottest.Node) error {
		return n.Machine().Flip(ctx, fleet.SlotA, V1.Short, 5, 1)
	}},
	{"last trial boot", boot},
	{"condemn", func(ctx context.Context, n *slottest.Node) error {
		return n.Machine().Condemn(ctx, fleet.SlotA, "check failed", false)
	}},
	{"fall back", boot},
	{"begin over a condemned slot", func(ctx context.Context, n *slottest.Node) error { return n.Machine().Begin(ctx, fleet.SlotA) }},
	{"install another", func(ctx context.Context, n *slottest.Node) error { return n.Install(ctx, fleet.SlotA, V3, 6) }},
	{"boot it", boot},
	{"demote", func(ctx context.Context, n *slottest.Node) error {
		_, err := n.Machine().Demote(ctx, "root does not verify")
		return err
	}},
}

func boot(ctx context.Context, n *slottest.Node) error {
	_, err := n.Boot(ctx)
	return err
}
