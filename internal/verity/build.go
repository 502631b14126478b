package verity

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync/atomic"
)

// Params are the choices of a tree. The same data and Params give the same
// bytes.
type Params struct {
	Salt     []byte // at most MaxSaltSize bytes
	UUID     [16]byte
	Workers  int               // goroutines; 0 means one per CPU
	Progress func(bytes int64) // called from any worker with data bytes done so far; may be nil
}

// Result describes a finished tree.
type Result struct {
	RootHash   [HashSize]byte
	DataBlocks uint64
	SizeBytes  int64 // of the tree, superblock included
}

// Build writes the hash tree of the first size bytes of data to out. Every
// byte of out in [0, Result.SizeBytes) is written, leaves in no fixed order.
func Build(ctx context.Context, data io.ReaderAt, size int64, out io.WriterAt, p Params) (Result, error) {
	n, err := dataBlocks(size)
	if err != nil {
		return Result{}, err
	}
	if len(p.Salt) > MaxSaltSize {
		return Result{}, fmt.Errorf("verity: salt of %d bytes, at most %d fit", len(p.Salt), MaxSaltSize)
	}
	levels := layout(n)
	hashes, err := hashData(ctx, data, n, levels, out, p)
	if err != nil {
		return Result{}, err
	}
	root, err := writeUpper(levels, hashes, out, p.Salt)
	if err != nil {
		return Result{}, err
	}
	sb := Superblock{UUID: p.UUID, DataBlocks: n, Salt: p.Salt}
	if _, err := out.WriteAt(sb.marshal(), 0); err != nil {
		return Result{}, fmt.Errorf("writing verity superblock: %w", err)
	}
	total, err := TreeSize(size)
	if err != nil {
		return Result{}, err
	}
	return Result{RootHash: root, DataBlocks: n, SizeBytes: total}, nil
}

// hashData hashes all data blocks, writes the leaf level and returns the
// concatenated hashes of the leaf blocks (of the data block when there is no
// level).
func hashData(ctx context.Context, data io.ReaderAt, n uint64, levels []level, out io.WriterAt, p Params) ([]byte, error) {
	leaves := int64(1)
	if len(levels) > 0 {
		leaves = levels[0].blocks
	}
	hashes := make([]byte, leaves*HashSize)
	var done atomic.Int64
	err := inOrder(ctx, leaves, p.Workers, func() func(int64) error {
		h := newHasher(p.Salt)
		buf := make([]byte, hashesPerBlock*BlockSize)
		leaf := make([]byte, 0, BlockSize)
		return func(i int64) error {
			chunk := buf[:chunkBlocks(n, i)*BlockSize]
			if err := readFull(data, chunk, i*int64(len(buf))); err != nil {
				return fmt.Errorf("reading data at byte %d: %w", i*int64(len(buf)), err)
			}
			leaf = h.sumAll(leaf[:0], chunk)
			if len(levels) == 0 {
				copy(hashes, leaf)
				return nil
			}
			leaf = padBlock(leaf)
			if _, err := out.WriteAt(leaf, (levels[0].start+i)*BlockSize); err != nil {
				return fmt.Errorf("writing verity leaf %d: %w", i, err)
			}
			h.sum(hashes[i*HashSize:i*HashSize], leaf)
			if d := done.Add(int64(len(chunk))); p.Progress != nil {
				p.Progress(d)
			}
			return nil
		}
	})
	return hashes, err
}

// writeUpper writes every level above the leaves and returns the root hash.
func writeUpper(levels []level, hashes []byte, out io.WriterAt, salt []byte) ([HashSize]byte, error) {
	h := newHasher(salt)
	for i := 1; i < len(levels); i++ {
		b := make([]byte, levels[i].blocks*BlockSize)
		copy(b, hashes)
		if _, err := out.WriteAt(b, levels[i].start*BlockSize); err != nil {
			return [HashSize]byte{}, fmt.Errorf("writing verity level %d: %w", i, err)
		}
		hashes = h.sumAll(nil, b)
	}
	if len(hashes) != HashSize {
		return [HashSize]byte{}, errors.New("verity: levels do not end in one hash")
	}
	return [HashSize]byte(hashes), nil
}

// sumAll appends the hash of each block of b to dst.
func (h *hasher) sumAll(dst, b []byte) []byte {
	for ; len(b) > 0; b = b[BlockSize:] {
		dst = h.sum(dst, b[:BlockSize])
	}
	return dst
}

// chunkBlocks is the number of data blocks that leaf i covers.
func chunkBlocks(n uint64, i int64) int64 {
	return min(hashesPerBlock, int64(n)-i*hashesPerBlock)
}

// padBlock extends b, which has the capacity for it, with zeroes to a block.
func padBlock(b []byte) []byte {
	rest := b[len(b):BlockSize]
	clear(rest)
	return b[:BlockSize]
}

// readFull fills b from off. The end of the file right after b is no error.
func readFull(r io.ReaderAt, b []byte, off int64) error {
	n, err := r.ReadAt(b, off)
	if n == len(b) {
		return nil
	}
	if err == nil || errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}

func isZero(b []byte) bool { return len(bytes.Trim(b, "\x00")) == 0 }
