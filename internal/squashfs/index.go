package squashfs

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
)

// ErrReuse is wrapped when blocks of the earlier file system are damaged.
// Without Reuse the same Write works.
var ErrReuse = errors.New("the earlier file system is damaged")

// indexEntry tells of a block: its SHA-256, where it is, and its CRC-32C.
type indexEntry struct {
	Sum   sum
	At    int64
	Size  uint32
	Check uint32
}

// indexHead begins an index: only blocks that were made the same way are
// reused.
func indexHead(o Options) []byte {
	return fmt.Appendf(nil, "turnout squashfs blocks 1: %d bytes, zstd level %d, mksquashfs %s\n", BlockBytes, o.Level, o.Tool)
}

// writeIndex writes the head, the entries (little endian), and the SHA-256 of
// both.
func (bs *blocks) writeIndex(o Options) error {
	var b bytes.Buffer
	b.Write(indexHead(o))
	if err := binary.Write(&b, binary.LittleEndian, bs.written); err != nil {
		return err
	}
	s := sha256.Sum256(b.Bytes())
	b.Write(s[:])
	return os.WriteFile(o.Index, b.Bytes(), 0o644)
}

// openEarlier makes the blocks of an earlier file system known. What cannot
// be read, or was made in another way, is not reused.
func (bs *blocks) openEarlier(o Options) {
	raw, err := os.ReadFile(o.ReuseIndex)
	if err != nil || len(raw) < sha256.Size {
		return
	}
	body, tail := raw[:len(raw)-sha256.Size], raw[len(raw)-sha256.Size:]
	if sum(tail) != sha256.Sum256(body) {
		return
	}
	list, ok := bytes.CutPrefix(body, indexHead(o))
	if !ok {
		return
	}
	entries := make([]indexEntry, len(list)/binary.Size(indexEntry{}))
	if err := binary.Read(bytes.NewReader(list), binary.LittleEndian, entries); err != nil {
		return
	}
	f, err := os.Open(o.Reuse)
	if err != nil {
		return
	}
	bs.reuse, bs.earlier = f, make(map[sum]packed, len(entries))
	for _, e := range entries {
		bs.earlier[e.Sum] = packed{file: f, at: e.At, size: e.Size, check: e.Check}
	}
}
