//go:build linux

package installer

import (
	"context"
	"encoding/hex"
	"fmt"
	"os"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/verity"
)

// examine reads the whole root of a slot that is said to hold the image: a
// node whose only good slot is damaged comes here too, and its name shows
// nothing of that. why is nil for a slot that is whole.
func (i *installer) examine(ctx context.Context, dsk *disk.Disk, s fleet.Slot, rootHash string) (why, err error) {
	root, err := dsk.PartitionPath(disk.RootLabel(s))
	if err != nil {
		return nil, err
	}
	tree, err := dsk.PartitionPath(disk.VerityLabel(s))
	if err != nil {
		return nil, err
	}
	why = verifyRoot(ctx, root, tree, rootHash, func(int64) { i.Grant(callTime) })
	return why, ctx.Err()
}

func verifyRoot(ctx context.Context, root, tree, rootHash string, progress func(int64)) error {
	hash, err := hex.DecodeString(rootHash)
	if err != nil {
		return err
	}
	r, err := os.Open(root)
	if err != nil {
		return err
	}
	defer r.Close()
	t, err := os.Open(tree)
	if err != nil {
		return err
	}
	defer t.Close()
	_, err = verity.Verify(ctx, r, t, hash, verity.VerifyOptions{Progress: progress})
	return err
}

// discard gives a damaged slot up so that it can be written again. The image
// is not to blame, so it is not banned.
func discard(ctx context.Context, m *abslot.Machine, s fleet.Slot, short string, why error) error {
	if err := m.Condemn(ctx, s, fmt.Sprintf("damaged on the disk: %v", why), true); err != nil {
		return err
	}
	if err := m.Begin(ctx, s); err != nil {
		return err
	}
	return m.Lift(ctx, short)
}
