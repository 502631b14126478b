// Package verity makes and checks dm-verity hash trees: hash format 1,
// SHA-256, 4096-byte data and hash blocks, with the superblock that
// veritysetup writes at offset 0 of the hash device. It follows the kernel's
// Documentation/admin-guide/device-mapper/verity.rst and reads and writes
// only through io.ReaderAt and io.WriterAt; setting up a device is the
// caller's work.
package verity

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
)

// BlockSize is the size in bytes of data and of hash blocks.
const BlockSize = 4096

// HashSize is the size in bytes of a root hash.
const HashSize = 32

// MaxSaltSize is the largest salt, in bytes, that a superblock can hold.
const MaxSaltSize = 256

// Algorithm is the name of the only hash algorithm of this package.
const Algorithm = "sha256"

const (
	superblockSize = 512
	magic          = "verity\x00\x00"
)

// ErrNoSuperblock is wrapped by ParseSuperblock when the bytes hold no verity
// superblock at all, as on a slot that was never written.
var ErrNoSuperblock = errors.New("no verity superblock")

// Superblock is the start of a tree: everything but the root hash that is
// needed to set up a device. It is not authenticated by the root hash alone;
// Verify and Top bind it.
type Superblock struct {
	UUID       [16]byte
	DataBlocks uint64 // blocks of BlockSize bytes that the tree covers
	Salt       []byte // at most MaxSaltSize bytes, may be empty
}

// ParseSuperblock reads a superblock from the first 512 bytes of b. It
// refuses versions, algorithms and block sizes other than this package's.
func ParseSuperblock(b []byte) (Superblock, error) {
	if len(b) < superblockSize {
		return Superblock{}, fmt.Errorf("%w: %d bytes, want at least %d", ErrNoSuperblock, len(b), superblockSize)
	}
	if string(b[:8]) != magic {
		return Superblock{}, ErrNoSuperblock
	}
	le := binary.LittleEndian
	if v, h := le.Uint32(b[8:]), le.Uint32(b[12:]); v != 1 || h != 1 {
		return Superblock{}, fmt.Errorf("verity superblock: version %d, hash format %d; want 1 and 1", v, h)
	}
	if a := string(bytes.TrimRight(b[32:64], "\x00")); a != Algorithm {
		return Superblock{}, fmt.Errorf("verity superblock: hash algorithm %q, want %s", a, Algorithm)
	}
	if d, h := le.Uint32(b[64:]), le.Uint32(b[68:]); d != BlockSize || h != BlockSize {
		return Superblock{}, fmt.Errorf("verity superblock: blocks of %d and %d bytes, want %d", d, h, BlockSize)
	}
	s := Superblock{DataBlocks: le.Uint64(b[72:])}
	copy(s.UUID[:], b[16:32])
	n := int(le.Uint16(b[80:]))
	if n > MaxSaltSize {
		return Superblock{}, fmt.Errorf("verity superblock: salt of %d bytes, at most %d fit", n, MaxSaltSize)
	}
	s.Salt = bytes.Clone(b[88 : 88+n])
	if s.DataBlocks == 0 || s.DataBlocks > maxDataBlocks {
		return Superblock{}, fmt.Errorf("verity superblock: %d data blocks", s.DataBlocks)
	}
	return s, nil
}

// marshal returns the superblock as a whole hash block.
func (s Superblock) marshal() []byte {
	b := make([]byte, BlockSize)
	le := binary.LittleEndian
	copy(b, magic)
	le.PutUint32(b[8:], 1)
	le.PutUint32(b[12:], 1)
	copy(b[16:32], s.UUID[:])
	copy(b[32:64], Algorithm)
	le.PutUint32(b[64:], BlockSize)
	le.PutUint32(b[68:], BlockSize)
	le.PutUint64(b[72:], s.DataBlocks)
	le.PutUint16(b[80:], uint16(len(s.Salt)))
	copy(b[88:], s.Salt)
	return b
}

// DataBytes is the number of bytes of the data device that the tree covers.
func (s Superblock) DataBytes() int64 { return int64(s.DataBlocks) * BlockSize }

// Table returns the parameters of a device-mapper "verity" target (without
// start and length) for this tree. dataDevice and hashDevice are paths or
// "major:minor"; options are appended as the kernel's optional parameters.
func (s Superblock) Table(dataDevice, hashDevice string, rootHash []byte, options ...string) string {
	salt := "-"
	if len(s.Salt) > 0 {
		salt = hex.EncodeToString(s.Salt)
	}
	t := fmt.Sprintf("1 %s %s %d %d %d 1 %s %x %s",
		dataDevice, hashDevice, BlockSize, BlockSize, s.DataBlocks, Algorithm, rootHash, salt)
	if len(options) > 0 {
		t += fmt.Sprintf(" %d %s", len(options), strings.Join(options, " "))
	}
	return t
}
