package disk

import (
	"crypto/rand"
	"fmt"

	"github.com/google/uuid"

	"github.com/turnout-project/turnout/internal/fleet"
)

// Labels are the names of the partitions of a Turnout disk, in the order in
// which they lie on it; partition numbers start at 1.
var Labels = [6]string{LabelESP, "root-a", "verity-a", "root-b", "verity-b", LabelState}

// Labels of the partitions that belong to no slot.
const (
	LabelESP   = "esp"
	LabelState = "state"
)

// RootLabel and VerityLabel return the names of a slot's partitions. They
// panic on NoSlot.
func RootLabel(s fleet.Slot) string   { return Labels[1+2*s.Index()] }
func VerityLabel(s fleet.Slot) string { return Labels[2+2*s.Index()] }

// Units and limits of a layout, in bytes.
const (
	MiB = 1 << 20
	GiB = 1 << 30

	align       = MiB
	espSmall    = 512 * MiB // on disks below smallDisk
	espDefault  = 2 * GiB
	smallDisk   = 32 * GiB
	espSpare    = 32 * MiB // loader, manifests, journal, and what must stay free
	ukisOnESP   = 3        // booted, other slot, and one on its way
	stateMin    = 256 * MiB
	rootDefault = 16 * GiB // per slot, where there is plenty
	tableBytes  = align    // kept at each end for the partition tables
)

// Geometry is what matters of a disk.
type Geometry struct {
	SizeBytes  int64
	SectorSize int // logical, 512 or 4096
}

// Want says what the disk must hold.
type Want struct {
	RootBytes    int64  // root file system of the image to be installed
	VerityBytes  int64  // its verity tree
	UKIBytes     int64  // its UKI
	ESPBytes     int64  // size of the ESP; 0 lets Plan choose
	Architecture string // "amd64" (also "") or "arm64": partition types
}

// Partition is one partition of a layout.
type Partition struct {
	Number     int    // from 1
	Label      string // GPT partition name
	Type       string // GUID, upper case
	GUID       string // unique, upper case
	StartBytes int64
	SizeBytes  int64
}

// Layout is where the partitions of one disk are.
type Layout struct {
	Geometry
	DiskGUID   string
	Partitions []Partition
}

// TooSmallError says that a disk cannot hold an image.
type TooSmallError struct {
	NeedBytes, HaveBytes int64
}

func (e *TooSmallError) Error() string {
	return fmt.Sprintf("disk of %d MiB is too small: two slots of this image, the ESP and the state partition need %d MiB",
		e.HaveBytes/MiB, (e.NeedBytes+MiB-1)/MiB)
}

// Plan computes a layout: the ESP, two slots with room for the image to grow
// by half at least, and all the rest for state. Every partition starts and
// ends on a MiB. Disk and partition GUIDs are random. It fails with a
// *TooSmallError.
func Plan(g Geometry, w Want) (Layout, error) {
	if g.SectorSize != 512 && g.SectorSize != 4096 {
		return Layout{}, fmt.Errorf("disk has logical sectors of %d bytes; only 512 and 4096 are supported", g.SectorSize)
	}
	types, err := typesFor(w.Architecture)
	if err != nil {
		return Layout{}, err
	}
	sizes, err := sizesFor(g, w)
	if err != nil {
		return Layout{}, err
	}
	l := Layout{Geometry: g}
	if l.DiskGUID, err = newGUID(); err != nil {
		return Layout{}, err
	}
	at := int64(tableBytes)
	for i, label := range Labels {
		p := Partition{Number: i + 1, Label: label, Type: types[i], StartBytes: at, SizeBytes: sizes[i]}
		if p.GUID, err = newGUID(); err != nil {
			return Layout{}, err
		}
		l.Partitions = append(l.Partitions, p)
		at += p.SizeBytes
	}
	return l, nil
}

// sizesFor returns the sizes of the partitions in the order of Labels.
func sizesFor(g Geometry, w Want) ([6]int64, error) {
	esp := w.ESPBytes
	if esp == 0 {
		esp = espDefault
		if g.SizeBytes < smallDisk {
			esp = espSmall
		}
	}
	esp = roundUp(max(esp, ukisOnESP*w.UKIBytes+espSpare))
	usable := g.SizeBytes/align*align - 2*tableBytes
	rootMin := roundUp(max(w.RootBytes+w.RootBytes/2, MiB))
	verityMin := max(verityFor(rootMin), roundUp(w.VerityBytes+w.VerityBytes/2))
	if need := esp + 2*(rootMin+verityMin) + stateMin; need > usable {
		return [6]int64{}, &TooSmallError{NeedBytes: need + 2*tableBytes, HaveBytes: g.SizeBytes}
	}
	root := max(rootMin, min(rootDefault, (usable-esp)/5/align*align))
	verity := max(verityFor(root), verityMin)
	if esp+2*(root+verity)+stateMin > usable {
		root, verity = rootMin, verityMin
	}
	return [6]int64{esp, root, verity, root, verity, usable - esp - 2*(root+verity)}, nil
}

// verityFor returns the room that the SHA-256 tree of a root of that size
// needs with 4096-byte blocks: 1/128 for each level and the superblock.
func verityFor(root int64) int64 { return roundUp(root/126 + MiB) }

func roundUp(n int64) int64 { return (n + align - 1) / align * align }

// typesFor returns the partition types in the order of Labels. The state
// partition has the generic type: nothing but nodeagent shall mount it.
func typesFor(arch string) ([6]string, error) {
	const (
		esp     = "C12A7328-F81F-11D2-BA4B-00A0C93EC93B"
		generic = "0FC63DAF-8483-4772-8E79-3D69D8477DE4"
	)
	switch arch {
	case "", "amd64":
		const root, verity = "4F68BCE3-E8CD-4DB1-96E7-FBCAF984B709", "2C7357ED-EBD2-46D9-AEC1-23D437EC2BF5"
		return [6]string{esp, root, verity, root, verity, generic}, nil
	case "arm64":
		const root, verity = "B921B045-1DF0-41C3-AF44-4C6F280D3FAE", "DF3300CE-D69F-4C92-978C-9BFB0F38D820"
		return [6]string{esp, root, verity, root, verity, generic}, nil
	}
	return [6]string{}, fmt.Errorf("architecture %q: want amd64 or arm64", arch)
}

func newGUID() (string, error) {
	u, err := uuid.NewRandomFromReader(rand.Reader)
	if err != nil {
		return "", fmt.Errorf("making a GUID: %w", err)
	}
	return upper(u.String()), nil
}

// Partition returns the partition of that label.
func (l *Layout) Partition(label string) (Partition, error) {
	for _, p := range l.Partitions {
		if p.Label == label {
			return p, nil
		}
	}
	return Partition{}, fmt.Errorf("disk has no partition %q", label)
}
