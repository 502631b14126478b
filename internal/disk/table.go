package disk

import (
	"encoding/binary"
	"fmt"
	"io"
	"strings"

	"github.com/diskfs/go-diskfs/partition/gpt"
)

// noAuto is the GPT attribute by which the Discoverable Partitions
// Specification keeps generators from mounting a partition on their own.
const noAuto = 1 << 63

func upper(s string) string { return strings.ToUpper(s) }

// writeTable writes protective MBR, backup and primary GPT, each flushed
// before the next.
func writeTable(dev Device, l Layout) error {
	s := uint64(l.SectorSize)
	t := &gpt.Table{LogicalSectorSize: l.SectorSize, PhysicalSectorSize: l.SectorSize, GUID: l.DiskGUID}
	for _, p := range l.Partitions {
		t.Partitions = append(t.Partitions, &gpt.Partition{
			Index: p.Number, Name: p.Label, GUID: p.GUID, Type: gpt.Type(p.Type), Attributes: noAuto,
			Start: uint64(p.StartBytes) / s,
			End:   uint64(p.StartBytes+p.SizeBytes)/s - 1,
			Size:  uint64(p.SizeBytes),
		})
	}
	// go-diskfs leaves CHS zero, cuts the size at 2 TiB and keeps old boot
	// code: the protective MBR is ours.
	if _, err := dev.WriteAt(protectiveMBR(l.Geometry), 0); err != nil {
		return fmt.Errorf("writing the protective MBR: %w", err)
	}
	if err := t.Write(newStorage(dev, l.SizeBytes), l.SizeBytes); err != nil {
		return fmt.Errorf("writing the GPT: %w", err)
	}
	return dev.Sync()
}

// protectiveMBR returns sector 0 (its first 512 bytes) as UEFI 2.10 section
// 5.2.3 wants it: one entry of type 0xEE from LBA 1 to the end of the disk,
// capped at 0xFFFFFFFF sectors.
func protectiveMBR(g Geometry) []byte {
	b := make([]byte, 512)
	sectors := min(uint64(g.SizeBytes)/uint64(g.SectorSize)-1, 0xFFFFFFFF)
	e := b[446:462]
	copy(e, []byte{0x00, 0x00, 0x02, 0x00, 0xEE, 0xFF, 0xFF, 0xFF})
	binary.LittleEndian.PutUint32(e[8:], 1)
	binary.LittleEndian.PutUint32(e[12:], uint32(sectors))
	b[510], b[511] = 0x55, 0xAA
	return b
}

// readTable reads the GPT of a disk. A damaged primary table is answered from
// the backup. found is false where there is neither.
func readTable(dev io.ReaderAt, g Geometry) (l Layout, found bool, err error) {
	var sig [8]byte
	primary := readFull(dev, sig[:], int64(g.SectorSize)) == nil && string(sig[:]) == "EFI PART"
	backup := readFull(dev, sig[:], g.SizeBytes-int64(g.SectorSize)) == nil && string(sig[:]) == "EFI PART"
	if !primary && !backup {
		return Layout{}, false, nil
	}
	t, err := gpt.Read(newStorage(readOnly{dev}, g.SizeBytes), g.SectorSize, g.SectorSize)
	if err != nil {
		return Layout{}, true, fmt.Errorf("reading the GPT: %w", err)
	}
	l = Layout{Geometry: g, DiskGUID: upper(t.GUID)}
	sector := int64(g.SectorSize)
	for _, p := range t.Partitions {
		if p.Type == gpt.Unused {
			continue
		}
		start, end := int64(p.Start)*sector, int64(p.End+1)*sector
		if start < sector || end <= start || end > g.SizeBytes {
			return Layout{}, true, fmt.Errorf("reading the GPT: partition %d (%q) lies outside the disk", p.Index, p.Name)
		}
		l.Partitions = append(l.Partitions, Partition{
			Number: p.Index, Label: p.Name, Type: upper(string(p.Type)), GUID: upper(p.GUID),
			StartBytes: start, SizeBytes: end - start,
		})
	}
	return l, true, nil
}

// isTurnout reports whether the partitions are those of a Turnout disk, each
// once, under its number.
func (l *Layout) isTurnout() bool {
	if len(l.Partitions) != len(Labels) {
		return false
	}
	for i, p := range l.Partitions {
		if p.Label != Labels[i] || p.Number != i+1 {
			return false
		}
	}
	return true
}

func readFull(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	return err
}
