package verity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
)

// ErrCorrupt is wrapped by every *CorruptError.
var ErrCorrupt = errors.New("verity: data does not match the root hash")

// CorruptError names the first block, in the order of the data device, that
// does not match.
type CorruptError struct {
	Tree  bool   // the block lies in the hash tree, not in the data
	Block uint64 // number of the 4096-byte block in its device
	Cause string // what was found
}

// Error names device, block and byte offset.
func (e *CorruptError) Error() string {
	dev := "data"
	if e.Tree {
		dev = "hash tree"
	}
	return fmt.Sprintf("verity: block %d of the %s (byte %d) is corrupt: %s", e.Block, dev, e.Block*BlockSize, e.Cause)
}

// Unwrap makes errors.Is(err, ErrCorrupt) true.
func (e *CorruptError) Unwrap() error { return ErrCorrupt }

// VerifyOptions tune Verify. The zero value is good.
type VerifyOptions struct {
	Workers  int               // goroutines; 0 means one per CPU
	Progress func(bytes int64) // called from any worker with data bytes done so far; may be nil
}

// Verify reads the whole of data against the tree and the root hash. It needs
// about 600 KiB per worker and 64 bytes per MiB of data. A mismatch is a
// *CorruptError; a read error that is not a short read is returned as it is,
// since it says nothing of the contents.
func Verify(ctx context.Context, data, tree io.ReaderAt, rootHash []byte, o VerifyOptions) (Superblock, error) {
	sb, leaves, err := trustedLeaves(tree, rootHash)
	if err != nil {
		return Superblock{}, err
	}
	levels := layout(sb.DataBlocks)
	var done atomic.Int64
	err = inOrder(ctx, int64(len(leaves)/HashSize), o.Workers, func() func(int64) error {
		h := newHasher(sb.Salt)
		buf := make([]byte, hashesPerBlock*BlockSize)
		leaf := make([]byte, BlockSize)
		return func(i int64) error {
			want := leaves[i*HashSize : (i+1)*HashSize]
			if len(levels) > 0 {
				if err := checkTreeBlock(tree, h, leaf, levels[0], i, want); err != nil {
					return err
				}
				want = leaf
			}
			chunk := buf[:chunkBlocks(sb.DataBlocks, i)*BlockSize]
			if err := checkData(data, h, chunk, i*hashesPerBlock, want); err != nil {
				return err
			}
			if d := done.Add(int64(len(chunk))); o.Progress != nil {
				o.Progress(d)
			}
			return nil
		}
	})
	return sb, err
}

// trustedLeaves checks the superblock and every level above the leaves, and
// returns the concatenated hashes of the leaf blocks.
func trustedLeaves(tree io.ReaderAt, rootHash []byte) (Superblock, []byte, error) {
	if len(rootHash) != HashSize {
		return Superblock{}, nil, fmt.Errorf("verity: root hash of %d bytes, want %d", len(rootHash), HashSize)
	}
	sb, err := readSuperblock(tree)
	if err != nil {
		return Superblock{}, nil, err
	}
	levels := layout(sb.DataBlocks)
	h := newHasher(sb.Salt)
	trusted := rootHash
	for i := len(levels) - 1; i > 0; i-- {
		var below []byte
		block := make([]byte, BlockSize)
		for j := range levels[i].blocks {
			if err := checkTreeBlock(tree, h, block, levels[i], j, trusted[j*HashSize:(j+1)*HashSize]); err != nil {
				return Superblock{}, nil, err
			}
			below = append(below, block...)
		}
		trusted = below[:levels[i].entries*HashSize]
	}
	return sb, trusted, nil
}

// checkTreeBlock reads hash block i of l into b and compares its hash. Space
// after the last entry must be zero: that binds the superblock's number of
// data blocks to the root hash.
func checkTreeBlock(tree io.ReaderAt, h *hasher, b []byte, l level, i int64, want []byte) error {
	block := uint64(l.start + i)
	if err := readFull(tree, b, int64(block)*BlockSize); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return &CorruptError{true, block, "missing: the tree is too short"}
		}
		return fmt.Errorf("reading verity tree block %d: %w", block, err)
	}
	if got := h.sum(nil, b); !bytes.Equal(got, want) {
		return &CorruptError{true, block, fmt.Sprintf("hash %x, want %x", got, want)}
	}
	if used := min(l.entries-i*hashesPerBlock, hashesPerBlock) * HashSize; !isZero(b[used:]) {
		return &CorruptError{true, 0, fmt.Sprintf("the superblock counts fewer blocks than tree block %d lists", block)}
	}
	return nil
}

// checkData reads chunk, which starts at data block first, and compares each
// block's hash with the entries of want.
func checkData(data io.ReaderAt, h *hasher, chunk []byte, first int64, want []byte) error {
	if err := readFull(data, chunk, first*BlockSize); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return &CorruptError{false, uint64(first), "missing: the data is too short"}
		}
		return fmt.Errorf("reading data at byte %d: %w", first*BlockSize, err)
	}
	var got [HashSize]byte
	for i := 0; i*BlockSize < len(chunk); i++ {
		h.sum(got[:0], chunk[i*BlockSize:(i+1)*BlockSize])
		if w := want[i*HashSize : (i+1)*HashSize]; !bytes.Equal(got[:], w) {
			return &CorruptError{false, uint64(first) + uint64(i), fmt.Sprintf("hash %x, want %x", got, w)}
		}
	}
	return nil
}

// Top returns the superblock of a tree and the root hash that its top block
// amounts to, reading two blocks. It tells which image a slot claims to hold;
// only Verify, or the kernel as it reads, tells whether it does. A tree over
// a single data block has no top block and is refused.
func Top(tree io.ReaderAt) (Superblock, []byte, error) {
	sb, err := readSuperblock(tree)
	if err != nil {
		return Superblock{}, nil, err
	}
	levels := layout(sb.DataBlocks)
	if len(levels) == 0 {
		return Superblock{}, nil, errors.New("verity: a tree over one block has no top block")
	}
	b := make([]byte, BlockSize)
	if err := readFull(tree, b, levels[len(levels)-1].start*BlockSize); err != nil {
		return Superblock{}, nil, fmt.Errorf("reading top of verity tree: %w", err)
	}
	return sb, newHasher(sb.Salt).sum(nil, b), nil
}

func readSuperblock(tree io.ReaderAt) (Superblock, error) {
	b := make([]byte, superblockSize)
	if err := readFull(tree, b, 0); err != nil {
		if errors.Is(err, io.ErrUnexpectedEOF) {
			return Superblock{}, ErrNoSuperblock
		}
		return Superblock{}, fmt.Errorf("reading verity superblock: %w", err)
	}
	return ParseSuperblock(b)
}
