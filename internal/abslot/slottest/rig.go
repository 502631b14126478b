// Package slottest is the suite that every carrier of slot states passes, and
// a simulated node to test what stands above the slot machine. Only tests
// import it.
package slottest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/turnout-project/turnout/internal/abslot"
	"github.com/turnout-project/turnout/internal/abslot/sdboot"
	"github.com/turnout-project/turnout/internal/fleet"
)

// Image is a pretended image: its short digest and root hash follow from its
// name, its UKI is UKISize bytes with the command line in front.
type Image struct {
	Short    string
	RootHash string
	UKI      []byte
}

// UKISize is the size of a pretended UKI.
const UKISize = 24 << 10

// NewImage returns the image of that name.
func NewImage(name string) Image {
	h := fmt.Sprintf("%x", sha256.Sum256([]byte(name)))
	r := fmt.Sprintf("%x", sha256.Sum256([]byte("root of "+name)))
	u := make([]byte, UKISize)
	copy(u, "roothash="+r+"\n")
	for i := 128; i < len(u); i++ {
		u[i] = name[i%len(name)] ^ byte(i/255)
	}
	return Image{Short: h[:abslot.ShortLen], RootHash: r, UKI: u}
}

// Manifest returns the pretended manifest of the image.
func (i Image) Manifest() []byte {
	return fmt.Appendf(nil, `{"digest": "sha256:%s", "config": {"verity": {"rootHash": %q}}}`, i.Short, i.RootHash)
}

// Staged returns what Machine.Stage wants of the image.
func (i Image) Staged() abslot.Staged {
	return abslot.Staged{Short: i.Short, RootHash: i.RootHash, UKI: bytes.NewReader(i.UKI), UKISize: int64(len(i.UKI)), Manifest: i.Manifest()}
}

// UKIHash reads the root hash of a pretended UKI.
func UKIHash(r io.ReaderAt, size int64) (string, error) {
	b := make([]byte, min(size, 128))
	if _, err := r.ReadAt(b, 0); err != nil && err != io.EOF {
		return "", err
	}
	line, _, ok := strings.Cut(string(b), "\n")
	h, isHash := strings.CutPrefix(line, "roothash=")
	if !ok || !isHash {
		return "", fmt.Errorf("no command line in the UKI")
	}
	return h, nil
}

// Node is a machine without hardware: slots that hold a root hash, an ESP,
// and a loader that behaves as the model of systemd-boot says.
type Node struct {
	ESP      abslot.ESP
	Hashes   map[fleet.Slot]string // what the verity trees say
	Evidence abslot.Evidence
	Lines    []string // what the machine logged
	// OnWrite, when set, is told what a slot's tree says from now on:
	// Partial while it is being written, then the root hash.
	OnWrite func(s fleet.Slot, hash string)
	// RefusesRename is firmware that does not let the loader count.
	RefusesRename bool
	boots         int
}

// NewNode returns a node that runs the installer.
func NewNode(esp abslot.ESP) *Node {
	n := &Node{ESP: esp, Hashes: map[fleet.Slot]string{}}
	n.BootInstaller()
	return n
}

// Machine returns a slot machine of the node.
func (n *Node) Machine() *abslot.Machine {
	return abslot.New(abslot.Config{
		ESP:      n.ESP,
		Booted:   func(context.Context) (abslot.Evidence, error) { return n.Evidence, nil },
		SlotHash: func(_ context.Context, s fleet.Slot) (string, error) { return n.Hashes[s], nil },
		UKIHash:  UKIHash,
		Log:      func(format string, a ...any) { n.Lines = append(n.Lines, fmt.Sprintf(format, a...)) },
	})
}

// BootInstaller starts the installer over the network.
func (n *Node) BootInstaller() {
	n.boots++
	n.Evidence = abslot.Evidence{BootID: fmt.Sprintf("boot-%d", n.boots), Path: abslot.PathInstaller}
}

// Entries returns the names in LinuxDir without what a loader would not take
// for a UKI because it is empty or cannot be read.
func (n *Node) Entries(ctx context.Context) ([]string, error) {
	files, err := n.ESP.List(ctx, abslot.LinuxDir)
	if err != nil {
		return nil, err
	}
	var names []string
	for _, x := range files {
		f, size, err := n.ESP.Open(ctx, abslot.LinuxDir+"/"+x.Name)
		if err != nil {
			return nil, err
		}
		if _, err := UKIHash(f, size); err == nil {
			names = append(names, x.Name)
		}
		if err := f.Close(); err != nil {
			return nil, err
		}
	}
	return names, nil
}

// Boot starts the node from its disk and returns the file that was started.
// A UKI whose root is in no slot leaves the node without evidence.
func (n *Node) Boot(ctx context.Context) (string, error) {
	names, err := n.Entries(ctx)
	if err != nil {
		return "", err
	}
	selected, ok := sdboot.Select(names)
	if !ok {
		return "", fmt.Errorf("nothing to boot among %q", names)
	}
	started, _, _ := sdboot.Boot(names)
	if n.RefusesRename {
		started = selected
	}
	if started != selected {
		if err := n.ESP.Rename(ctx, abslot.LinuxDir+"/"+selected, abslot.LinuxDir+"/"+started); err != nil {
			return "", err
		}
	}
	n.boots++
	n.Evidence = abslot.Evidence{
		BootID: fmt.Sprintf("boot-%d", n.boots), Path: abslot.PathDisk, Entry: sdboot.ID(selected),
	}
	if started != selected {
		n.Evidence.CountPath = `\EFI\Linux\` + started
	}
	f, size, err := n.ESP.Open(ctx, abslot.LinuxDir+"/"+started)
	if err != nil {
		return "", err
	}
	defer f.Close()
	if n.Evidence.RootHash, err = UKIHash(f, size); err != nil {
		return started, err
	}
	for s, h := range n.Hashes {
		if h == n.Evidence.RootHash {
			n.Evidence.Backing = s
		}
	}
	return started, nil
}

// BootNetwork starts a slot's UKI over the network.
func (n *Node) BootNetwork(s fleet.Slot) {
	n.boots++
	n.Evidence = abslot.Evidence{BootID: fmt.Sprintf("boot-%d", n.boots), Path: abslot.PathNetwork, RootHash: n.Hashes[s], Backing: s}
}

// Partial is the root hash of a tree that is only half written.
const Partial = "0000000000000000000000000000000000000000000000000000000000000000"

// Write pretends to write an image into a slot's partitions.
func (n *Node) Write(s fleet.Slot, i Image) {
	for _, h := range []string{Partial, i.RootHash} {
		n.Hashes[s] = h
		if n.OnWrite != nil {
			n.OnWrite(s, h)
		}
	}
}

// Install brings an image into a slot and arms it.
func (n *Node) Install(ctx context.Context, s fleet.Slot, i Image, generation uint64) error {
	m := n.Machine()
	if err := m.Begin(ctx, s); err != nil {
		return err
	}
	n.Write(s, i)
	if err := m.Stage(ctx, s, i.Staged()); err != nil {
		return err
	}
	return m.Arm(ctx, s, generation, 0)
}

// Confirm confirms the booted slot as it stands.
func (n *Node) Confirm(ctx context.Context) error {
	st, err := n.Machine().Status(ctx)
	if err != nil {
		return err
	}
	if st.Booted == fleet.NoSlot {
		return fmt.Errorf("no slot is booted")
	}
	return n.Machine().Confirm(ctx, abslot.ConfirmRequest{BootID: n.Evidence.BootID, Slot: st.Booted, Generation: st.Slot(st.Booted).Generation})
}

// Provision installs an image into slot A of a fresh node, boots and confirms
// it.
func (n *Node) Provision(ctx context.Context, i Image) error {
	if err := n.Install(ctx, fleet.SlotA, i, 1); err != nil {
		return err
	}
	if _, err := n.Boot(ctx); err != nil {
		return err
	}
	return n.Confirm(ctx)
}

// must fails the test on an error.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
