// Package fatdir reads FAT32 file systems down to the directory slot, and
// mends what an interrupted rename leaves. It shares no code with go-diskfs,
// so that each can judge the other, and trusts nothing it reads: every chain
// is bounded and every number checked.
//
// Standard: Microsoft FAT32 File System Specification 1.03 (2000).
package fatdir

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
	"unicode/utf16"
)

// ErrDamaged is wrapped by every error about what is on the volume, as
// opposed to errors of reading it.
var ErrDamaged = errors.New("FAT32 is damaged")

const (
	slotBytes   = 32
	slotFree    = 0xE5
	slotEnd     = 0x00
	attrRO      = 0x01
	attrVolume  = 0x08
	attrDir     = 0x10
	attrLong    = 0x0F
	longMask    = 0x3F
	longLast    = 0x40
	longChars   = 13
	maxDirSlots = 65536 // of the specification: 2 MiB of folder
	clusterMask = 0x0FFFFFFF
	endOfChain  = 0x0FFFFFF8
)

// Volume is a FAT32 file system.
type Volume struct {
	r              io.ReaderAt
	start          int64
	fat, data      int64 // offsets on r
	cluster        int64 // bytes
	clusters, root uint32
}

// Entry is one file or folder of a folder.
type Entry struct {
	Name     string // the long name, else the short one as Linux shows it
	Short    string // "G00000~1.EFI"
	IsDir    bool
	ReadOnly bool // FAT attribute; firmware refuses to rename such a file
	Size     uint32
	Cluster  uint32  // first, 0 for an empty file
	Slots    []int64 // offsets on the device of its directory slots, the short one last
}

// Open reads the boot sector of the file system at offset start.
func Open(r io.ReaderAt, start int64) (*Volume, error) {
	b := make([]byte, 512)
	if err := readFull(r, b, start); err != nil {
		return nil, fmt.Errorf("reading the boot sector: %w", err)
	}
	sector := int64(binary.LittleEndian.Uint16(b[11:]))
	perCluster, reserved, fats := int64(b[13]), int64(binary.LittleEndian.Uint16(b[14:])), int64(b[16])
	total, fatSectors := int64(binary.LittleEndian.Uint32(b[32:])), int64(binary.LittleEndian.Uint32(b[36:]))
	isPower := func(n int64) bool { return n > 0 && n&(n-1) == 0 }
	if b[510] != 0x55 || b[511] != 0xAA || !isPower(sector) || sector < 512 || sector > 4096 || !isPower(perCluster) ||
		reserved == 0 || fats == 0 || fatSectors == 0 || binary.LittleEndian.Uint16(b[22:]) != 0 {
		return nil, fmt.Errorf("%w: no FAT32 boot sector", ErrDamaged)
	}
	dataSectors := total - reserved - fats*fatSectors
	n := min(dataSectors/perCluster, fatSectors*sector/4-2)
	v := &Volume{
		r: r, start: start, cluster: sector * perCluster, root: binary.LittleEndian.Uint32(b[44:]) & clusterMask,
		fat: start + reserved*sector, data: start + (reserved+fats*fatSectors)*sector,
	}
	if n <= 0 || n > clusterMask {
		return nil, fmt.Errorf("%w: %d clusters", ErrDamaged, n)
	}
	v.clusters = uint32(n)
	return v, nil
}

// List returns the entries of a folder in directory order, without "." and
// "..". The path is relative with slashes; "" is the root folder. Letter case
// does not count. Long names whose slots do not belong to the short one that
// follows are ignored, as every driver does.
func (v *Volume) List(dir string) ([]Entry, error) {
	at := v.root
	for _, part := range strings.FieldsFunc(dir, func(r rune) bool { return r == '/' }) {
		entries, err := v.folder(at)
		if err != nil {
			return nil, err
		}
		at = 0
		for _, e := range entries {
			if e.IsDir && strings.EqualFold(e.Name, part) {
				at = e.Cluster
			}
		}
		if at == 0 {
			return nil, fmt.Errorf("folder %q of %q: %w", part, dir, errNotExist)
		}
	}
	return v.folder(at)
}

var errNotExist = errors.New("no such folder")

// folder reads the folder that starts at a cluster.
func (v *Volume) folder(first uint32) ([]Entry, error) {
	chain, err := v.chain(first, maxDirSlots*slotBytes)
	if err != nil {
		return nil, fmt.Errorf("folder at cluster %d: %w", first, err)
	}
	var out []Entry
	var long longName
	b := make([]byte, v.cluster)
	for _, c := range chain {
		if err := readFull(v.r, b, v.offset(c)); err != nil {
			return nil, err
		}
		for at := int64(0); at < v.cluster; at += slotBytes {
			s := b[at : at+slotBytes]
			pos := v.offset(c) + at
			switch {
			case s[0] == slotEnd:
				return out, nil
			case s[0] == slotFree:
				long = longName{}
			case s[11]&longMask == attrLong:
				long.add(s, pos)
			case s[11]&attrVolume != 0 || s[0] == '.':
				long = longName{}
			default:
				out = append(out, entry(s, pos, long))
				long = longName{}
			}
		}
	}
	return out, nil
}

func entry(s []byte, pos int64, long longName) Entry {
	e := Entry{
		Short: shortName(s, 0), Name: shortName(s, s[12]), IsDir: s[11]&attrDir != 0, ReadOnly: s[11]&attrRO != 0,
		Size:    binary.LittleEndian.Uint32(s[28:]),
		Cluster: (uint32(binary.LittleEndian.Uint16(s[20:]))<<16 | uint32(binary.LittleEndian.Uint16(s[26:]))) & clusterMask,
	}
	if name, ok := long.complete(checksum(s[:11])); ok {
		e.Name, e.Slots = name, long.slots
	}
	e.Slots = append(e.Slots, pos)
	return e
}

// longName gathers the slots of a long name, last part first.
type longName struct {
	parts [][]uint16
	slots []int64
	next  byte // number the next slot must have
	sum   byte
}

func (l *longName) add(s []byte, pos int64) {
	n := s[0]
	if n&longLast != 0 {
		*l = longName{next: n &^ longLast, sum: s[13]}
	}
	if l.next == 0 || n&^longLast != l.next || s[13] != l.sum {
		*l = longName{}
		return
	}
	l.next--
	l.slots = append(l.slots, pos)
	part := make([]uint16, 0, longChars)
	for _, r := range [][2]int{{1, 11}, {14, 26}, {28, 32}} {
		for i := r[0]; i < r[1]; i += 2 {
			part = append(part, binary.LittleEndian.Uint16(s[i:]))
		}
	}
	l.parts = append(l.parts, part)
}

func (l *longName) complete(sum byte) (string, bool) {
	if len(l.parts) == 0 || l.next != 0 || l.sum != sum {
		return "", false
	}
	var u []uint16
	for i := len(l.parts) - 1; i >= 0; i-- {
		u = append(u, l.parts[i]...)
	}
	for i, c := range u {
		if c == 0 {
			u = u[:i]
			break
		}
	}
	return string(utf16.Decode(u)), len(u) > 0
}

// shortName renders an 8.3 name; caseBits is byte 12 of the slot, by which
// Windows NT and Linux show base (8) or extension (16) in lower case.
func shortName(s []byte, caseBits byte) string {
	base, ext := strings.TrimRight(string(s[:8]), " "), strings.TrimRight(string(s[8:11]), " ")
	if caseBits&8 != 0 {
		base = strings.ToLower(base)
	}
	if caseBits&16 != 0 {
		ext = strings.ToLower(ext)
	}
	if ext == "" {
		return base
	}
	return base + "." + ext
}

func checksum(name []byte) (sum byte) {
	for _, c := range name {
		sum = sum>>1 | sum<<7
		sum += c
	}
	return sum
}

// ReadFile returns the content of a file.
func (v *Volume) ReadFile(e Entry) ([]byte, error) {
	if e.Size == 0 {
		return nil, nil
	}
	chain, err := v.chain(e.Cluster, int64(e.Size))
	if err != nil {
		return nil, fmt.Errorf("file %q: %w", e.Name, err)
	}
	if want := (int64(e.Size) + v.cluster - 1) / v.cluster; int64(len(chain)) < want {
		return nil, fmt.Errorf("file %q: %w: %d clusters for %d bytes", e.Name, ErrDamaged, len(chain), e.Size)
	}
	out := make([]byte, 0, int64(len(chain))*v.cluster)
	for _, c := range chain {
		b := make([]byte, v.cluster)
		if err := readFull(v.r, b, v.offset(c)); err != nil {
			return nil, fmt.Errorf("file %q: %w", e.Name, err)
		}
		out = append(out, b...)
	}
	return out[:e.Size], nil
}

// chain follows the allocation table from a cluster, as far as limit bytes
// reach.
func (v *Volume) chain(first uint32, limit int64) ([]uint32, error) {
	var out []uint32
	b := make([]byte, 4)
	for c := first; ; {
		if c < 2 || c-2 >= v.clusters || len(out) >= int(v.clusters) {
			return nil, fmt.Errorf("%w: chain leads to cluster %d", ErrDamaged, c)
		}
		out = append(out, c)
		if int64(len(out))*v.cluster >= limit {
			return out, nil
		}
		if err := readFull(v.r, b, v.fat+4*int64(c)); err != nil {
			return nil, err
		}
		if c = binary.LittleEndian.Uint32(b) & clusterMask; c >= endOfChain {
			return out, nil
		}
	}
}

func (v *Volume) offset(cluster uint32) int64 { return v.data + int64(cluster-2)*v.cluster }

func readFull(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		err = io.ErrUnexpectedEOF
	}
	return err
}
