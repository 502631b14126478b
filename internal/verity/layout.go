package verity

import (
	"crypto/sha256"
	"fmt"
	"hash"
)

// hashesPerBlock is how many hashes fit in one hash block.
const hashesPerBlock = BlockSize / HashSize

// maxDataBlocks keeps every offset of data and tree within an int64.
const maxDataBlocks = 1 << 48

// level is one level of a tree: blocks hash blocks that start at hash block
// start of the tree file and hold entries hashes.
type level struct {
	start, blocks, entries int64
}

// layout returns the levels of a tree over n data blocks, leaves first. In
// the file the order is the other way round: superblock, top, …, leaves. One
// data block needs no level at all: its hash is the root hash.
func layout(n uint64) []level {
	var ls []level
	for entries := int64(n); entries > 1; {
		blocks := (entries + hashesPerBlock - 1) / hashesPerBlock
		ls = append(ls, level{blocks: blocks, entries: entries})
		entries = blocks
	}
	next := int64(1) // hash block 0 is the superblock
	for i := len(ls) - 1; i >= 0; i-- {
		ls[i].start = next
		next += ls[i].blocks
	}
	return ls
}

// TreeSize returns the size in bytes of the tree, superblock included, over
// dataSize bytes of data, which must be a positive multiple of BlockSize.
func TreeSize(dataSize int64) (int64, error) {
	n, err := dataBlocks(dataSize)
	if err != nil {
		return 0, err
	}
	total := int64(1)
	for _, l := range layout(n) {
		total += l.blocks
	}
	return total * BlockSize, nil
}

func dataBlocks(size int64) (uint64, error) {
	if size <= 0 || size%BlockSize != 0 || size/BlockSize > maxDataBlocks {
		return 0, fmt.Errorf("verity: data of %d bytes: want a positive multiple of %d", size, BlockSize)
	}
	return uint64(size / BlockSize), nil
}

// hasher computes salted block hashes. It serves one goroutine.
type hasher struct {
	salt []byte
	h    hash.Hash
}

func newHasher(salt []byte) *hasher { return &hasher{salt, sha256.New()} }

// sum appends the hash of one block to dst.
func (h *hasher) sum(dst, block []byte) []byte {
	h.h.Reset()
	h.h.Write(h.salt)
	h.h.Write(block)
	return h.h.Sum(dst)
}
