package squashfs

import (
	"encoding/binary"
	"slices"

	"github.com/klauspost/compress/zstd"
)

// table is metadata in compressed blocks of 8 KiB.
type table struct {
	enc    *zstd.Encoder
	out    []byte
	starts []int // of the blocks in out
	open   []byte
}

// position is where the next byte will be: the block's place in the table,
// and the place in the block.
func (t *table) position() (block uint32, offset uint16) {
	return uint32(len(t.out)), uint16(len(t.open))
}

func (t *table) add(b []byte) {
	t.open = append(t.open, b...)
	for len(t.open) >= metaBytes {
		t.block(t.open[:metaBytes])
		t.open = slices.Clone(t.open[metaBytes:])
	}
}

func (t *table) flush() {
	if len(t.open) > 0 {
		t.block(t.open)
		t.open = nil
	}
}

func (t *table) block(b []byte) {
	t.starts = append(t.starts, len(t.out))
	packed := t.enc.EncodeAll(b, nil)
	head := uint16(len(packed))
	if len(packed) >= len(b) {
		packed, head = b, uint16(len(b))|metaStored
	}
	t.out = append(binary.LittleEndian.AppendUint16(t.out, head), packed...)
}
