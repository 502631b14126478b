//go:build linux

package installer

import (
	"bytes"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/turnout-project/turnout/internal/abslot/memesp"
	"github.com/turnout-project/turnout/internal/abslot/slottest"
	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/verity"
)

func TestVerifyRoot(t *testing.T) {
	dir := t.TempDir()
	root, tree := filepath.Join(dir, "root"), filepath.Join(dir, "tree")
	data := bytes.Repeat([]byte("root file system"), 4*verity.BlockSize)
	f, err := os.Create(tree)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	res, err := verity.Build(t.Context(), bytes.NewReader(data), int64(len(data)), f, verity.Params{Salt: []byte("salt")})
	if err != nil {
		t.Fatal(err)
	}
	hash := hex.EncodeToString(res.RootHash[:])
	verify := func() error {
		if err := os.WriteFile(root, data, 0o600); err != nil {
			t.Fatal(err)
		}
		return verifyRoot(t.Context(), root, tree, hash, func(int64) {})
	}
	if err := verify(); err != nil {
		t.Errorf("a whole root: %v", err)
	}
	data[9*verity.BlockSize] ^= 1
	if err := verify(); !errors.Is(err, verity.ErrCorrupt) {
		t.Errorf("one bit changed: %v, want ErrCorrupt", err)
	}
}

// TestDiscard: the only good slot is damaged, and takes the same image again.
func TestDiscard(t *testing.T) {
	ctx := t.Context()
	n, im := slottest.NewNode(&memesp.ESP{}), slottest.NewImage("v1")
	if err := n.Provision(ctx, im); err != nil {
		t.Fatal(err)
	}
	n.BootInstaller()
	st, err := n.Machine().Status(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if s, isThere := pick(st, im.Short, im.RootHash); s != fleet.SlotA || !isThere {
		t.Fatalf("pick = %s, %v, want A, which holds the image", s, isThere)
	}
	if err := discard(ctx, n.Machine(), fleet.SlotA, im.Short, verity.ErrCorrupt); err != nil {
		t.Fatal(err)
	}
	if st, err = n.Machine().Status(ctx); err != nil {
		t.Fatal(err)
	}
	if s, isThere := pick(st, im.Short, im.RootHash); s != fleet.SlotA || isThere || st.Slot(s).State != fleet.SlotWriting {
		t.Errorf("afterwards pick = %s, %v, slot A is %s; want it to be written", s, isThere, st.Slot(fleet.SlotA).State)
	}
	if bans := n.Machine().Bans(ctx); len(bans) != 0 {
		t.Errorf("the image is banned for the disk's fault: %+v", bans)
	}
	if err := n.Install(ctx, fleet.SlotA, im, 2); err != nil {
		t.Errorf("installing it again: %v", err)
	}
}

// TestBothBad: both slots are bad, and the image that is in B is wanted again.
func TestBothBad(t *testing.T) {
	ctx := t.Context()
	n, v1, v2 := slottest.NewNode(&memesp.ESP{}), slottest.NewImage("v1"), slottest.NewImage("v2")
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(n.Provision(ctx, v1))
	must(n.Install(ctx, fleet.SlotB, v2, 2))
	n.BootInstaller()
	must(n.Machine().Condemn(ctx, fleet.SlotB, "test", false))
	must(n.Machine().Condemn(ctx, fleet.SlotA, "test", true))
	st, err := n.Machine().Status(ctx)
	must(err)
	s, isThere := pick(st, v2.Short, v2.RootHash)
	if s != fleet.SlotB || isThere {
		t.Errorf("pick = %s, %v, want B", s, isThere)
	}
	m := n.Machine()
	must(m.Begin(ctx, s))
	n.Write(s, v2)
	must(m.Stage(ctx, s, v2.Staged()))
	must(lift(ctx, m, v2.Short))
	must(m.Arm(ctx, s, 3, 0))
}
