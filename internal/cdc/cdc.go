// Package cdc cuts files where their content says so, so that two files that
// share a stretch of bytes share chunks, wherever in each the stretch is. It
// also holds the index of such chunks that images carry.
//
// The cut points are those of a gear hash with normalised chunking (Xia et
// al., "FastCDC", USENIX ATC 2016, section 3): table, masks and sizes below
// are part of the format, since builder and node must cut alike. The package
// is pure, and knows nothing of images or disks.
package cdc

import (
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
)

// Sizes of chunks in bytes. The last one of a file may be shorter than Min.
const (
	Min    = 4 << 10
	Normal = 16 << 10 // about the mean
	Max    = 64 << 10
)

// Masks of the gear hash: harder to meet before Normal, easier after it.
const (
	maskBefore = 0xffff << 48 // 16 bits
	maskAfter  = 0xfff << 52  // 12 bits
)

// Key names the content of a chunk: the first six bytes of its SHA-256. It
// finds candidates, of which one in tens of thousands of large images is a
// wrong one; what is made of them is to be checked by other means.
type Key [6]byte

// KeyOf returns the key of a chunk.
func KeyOf(b []byte) Key {
	sum := sha256.Sum256(b)
	return Key(sum[:len(Key{})])
}

// Chunk is a chunk of a file.
type Chunk struct {
	Key  Key
	Size int // bytes
}

// gear maps bytes to numbers: SplitMix64 from zero.
var gear = func() (t [256]uint64) {
	x := uint64(0)
	for i := range t {
		x += 0x9e3779b97f4a7c15
		z := x
		z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
		z = (z ^ z>>27) * 0x94d049bb133111eb
		t[i] = z ^ z>>31
	}
	return t
}()

// Cut returns the size of the first chunk of b. b must hold Max bytes, or end
// where the file ends.
func Cut(b []byte) int {
	if len(b) <= Min {
		return len(b)
	}
	b = b[:min(len(b), Max)]
	h, i := uint64(0), Min
	for ; i < min(Normal, len(b)); i++ {
		if h = h<<1 + gear[b[i]]; h&maskBefore == 0 {
			return i + 1
		}
	}
	for ; i < len(b); i++ {
		if h = h<<1 + gear[b[i]]; h&maskAfter == 0 {
			return i + 1
		}
	}
	return len(b)
}

// Split reads r to its end and calls each with every chunk in order. b is
// valid during the call. It holds one buffer of a MiB.
func Split(r io.Reader, each func(off int64, b []byte) error) error {
	buf := make([]byte, 1<<20)
	have, off, ended := 0, int64(0), false
	for {
		for !ended && have < len(buf) {
			n, err := r.Read(buf[have:])
			have += n
			if errors.Is(err, io.EOF) {
				ended = true
			} else if err != nil {
				return err
			}
		}
		b := buf[:have]
		for len(b) >= Max || ended && len(b) > 0 {
			n := Cut(b)
			if err := each(off, b[:n]); err != nil {
				return err
			}
			b, off = b[n:], off+int64(n)
		}
		if ended {
			return nil
		}
		have = copy(buf, b)
	}
}

// magic starts an index; its last byte is the version of index and cut.
const magic = "TNTCDC\x00\x01"

// Encode writes an index: the magic number, then per chunk its size as a
// varint and its key.
func Encode(chunks []Chunk) []byte {
	out := append(make([]byte, 0, len(magic)+9*len(chunks)), magic...)
	for _, c := range chunks {
		out = append(binary.AppendUvarint(out, uint64(c.Size)), c.Key[:]...)
	}
	return out
}

// Index cuts r and returns its encoded index.
func Index(r io.Reader) ([]byte, error) {
	var chunks []Chunk
	err := Split(r, func(_ int64, b []byte) error {
		chunks = append(chunks, Chunk{KeyOf(b), len(b)})
		return nil
	})
	return Encode(chunks), err
}

// Decode reads the index of a file of size bytes, and refuses one that does
// not cover it exactly.
func Decode(b []byte, size int64) ([]Chunk, error) {
	if len(b) < len(magic) || string(b[:len(magic)]) != magic {
		return nil, errors.New("chunk index: not one, or of a version that this program does not know")
	}
	b = b[len(magic):]
	chunks, at := make([]Chunk, 0, len(b)/8), int64(0)
	for len(b) > 0 {
		v, n := binary.Uvarint(b)
		if n <= 0 || v == 0 || v > Max || len(b) < n+len(Key{}) {
			return nil, fmt.Errorf("chunk index: damaged at chunk %d", len(chunks))
		}
		chunks = append(chunks, Chunk{Key(b[n : n+len(Key{})]), int(v)})
		at, b = at+int64(v), b[n+len(Key{}):]
	}
	if at != size {
		return nil, fmt.Errorf("chunk index: covers %d bytes, the file has %d", at, size)
	}
	return chunks, nil
}
