package disk

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"strings"
)

// Content is what lies on a disk before Turnout touches it.
type Content struct {
	Turnout bool   // a Turnout layout, as Open reads it
	Table   string // "gpt", "mbr" or ""
	// Signatures are the file systems, volumes and arrays found, as
	// "ext4 on partition 2 (\"root\")".
	Signatures []string
}

// IsBlank reports whether nothing was found that somebody may miss.
func (c Content) IsBlank() bool { return c.Table == "" && len(c.Signatures) == 0 }

// String says in one line what is there.
func (c Content) String() string {
	switch {
	case c.IsBlank():
		return "blank"
	case c.Turnout:
		return "a Turnout disk"
	}
	parts := c.Signatures
	if c.Table != "" {
		parts = append([]string{"partition table " + c.Table}, parts...)
	}
	return strings.Join(parts, ", ")
}

// Probe looks for partition tables and signatures. It writes nothing.
func Probe(path string) (Content, error) {
	f, err := os.Open(path)
	if err != nil {
		return Content{}, fmt.Errorf("opening disk: %w", err)
	}
	defer f.Close()
	g, err := GeometryOf(f)
	if err != nil {
		return Content{}, err
	}
	c := Content{}
	l, found, terr := readTable(f, g)
	if found {
		c.Table, c.Turnout = "gpt", terr == nil && l.isTurnout()
	} else if hasMBR(f) {
		c.Table = "mbr"
	}
	for _, s := range signatures(f, 0, g.SizeBytes) {
		if c.Table == "" || s != "FAT" { // boot code of an MBR may look like one
			c.Signatures = append(c.Signatures, s)
		}
	}
	for _, p := range l.Partitions {
		for _, s := range signatures(f, p.StartBytes, p.SizeBytes) {
			c.Signatures = append(c.Signatures, fmt.Sprintf("%s on partition %d (%q)", s, p.Number, p.Label))
		}
	}
	return c, nil
}

// hasMBR reports whether sector 0 is an MBR with a partition in it.
func hasMBR(r io.ReaderAt) bool {
	b := make([]byte, 512)
	if readFull(r, b, 0) != nil || b[510] != 0x55 || b[511] != 0xAA {
		return false
	}
	for i := 446; i < 510; i += 16 {
		if status := b[i]; (status == 0 || status == 0x80) && b[i+4] != 0 {
			return true
		}
	}
	return false
}

// magics are the signatures that matter on servers: name, offset (negative:
// from the end), bytes. Offsets are from the formats' own documents.
var magics = []struct {
	name   string
	offset int64
	magic  string
}{
	{"ext2/3/4", 0x438, "\x53\xef"},
	{"XFS", 0, "XFSB"},
	{"btrfs", 0x10040, "_BHRfS_M"},
	{"squashfs", 0, "hsqs"},
	{"EROFS", 1024, "\xe2\xe1\xf5\xe0"},
	{"dm-verity", 0, "verity\x00\x00"},
	{"LUKS", 0, "LUKS\xba\xbe"},
	{"LVM", 512, "LABELONE"},
	{"NTFS", 3, "NTFS    "},
	{"FAT", 0x52, "FAT32   "},
	{"FAT", 0x36, "FAT1"},
	{"swap", 4086, "SWAPSPACE2"},
	{"mdraid", 4096, "\xfc\x4e\x2b\xa9"},
	{"mdraid", 0, "\xfc\x4e\x2b\xa9"},
	{"ZFS", 128 << 10, "\x0c\xb1\xba\x00\x00\x00\x00\x00"},
	{"ISO 9660", 0x8001, "CD001"},
	{"BIOS RAID (DDF)", -512, "\xde\x11\xde\x11"},
}

func signatures(r io.ReaderAt, start, size int64) []string {
	var out []string
	for _, m := range magics {
		at := m.offset
		if at < 0 {
			at += size
		}
		b := make([]byte, len(m.magic))
		if at < 0 || at+int64(len(b)) > size || readFull(r, b, start+at) != nil || !bytes.Equal(b, []byte(m.magic)) {
			continue
		}
		out = append(out, m.name)
	}
	return out
}
