// Package disk lays out, opens and probes a node's disk: a GPT with an EFI
// system partition (FAT32), two slots of root and verity tree, and a state
// partition. It is the only user of go-diskfs, and works on block devices and
// image files alike, without udev or outside programs.
//
// It writes a partition table once, at installation, and never changes one.
// What the slots hold is not its business.
//
// Standards: UEFI 2.10 chapter 5 (GPT), the Discoverable Partitions
// Specification (type GUIDs), Microsoft's FAT specification 1.03.
package disk
