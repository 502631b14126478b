package image

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"os"

	"github.com/turnout-project/turnout/internal/manifest"
)

// chunkSize is the size of the pieces in which a node fetches and checks the
// root, in bytes.
const chunkSize = 4 << 20

// chunker is an io.Writer that hashes fixed-size chunks and the whole.
type chunker struct {
	whole, chunk hash.Hash
	inChunk      int
	size         int64
	chunks       []string
}

func newChunker() *chunker { return &chunker{whole: sha256.New(), chunk: sha256.New()} }

// Write never fails.
func (c *chunker) Write(p []byte) (int, error) {
	n := len(p)
	c.whole.Write(p)
	c.size += int64(n)
	for len(p) > 0 {
		k := min(len(p), chunkSize-c.inChunk)
		c.chunk.Write(p[:k])
		c.inChunk += k
		p = p[k:]
		if c.inChunk == chunkSize {
			c.flush()
		}
	}
	return n, nil
}

func (c *chunker) flush() {
	c.chunks = append(c.chunks, hex.EncodeToString(c.chunk.Sum(nil)))
	c.chunk.Reset()
	c.inChunk = 0
}

// blob returns the description of what was written.
func (c *chunker) blob() manifest.Blob {
	if c.inChunk > 0 {
		c.flush()
	}
	return manifest.Blob{
		Digest:    "sha256:" + hex.EncodeToString(c.whole.Sum(nil)),
		SizeBytes: c.size, ChunkSize: chunkSize, Chunks: c.chunks,
	}
}

// chunksOf describes a file.
func chunksOf(ctx context.Context, f *os.File) (manifest.Blob, error) {
	c := newChunker()
	buf := make([]byte, chunkSize)
	for ctx.Err() == nil {
		n, err := f.Read(buf)
		_, _ = c.Write(buf[:n]) // never fails
		if err == io.EOF {
			return c.blob(), nil
		}
		if err != nil {
			return manifest.Blob{}, fmt.Errorf("reading root file system: %w", err)
		}
	}
	return manifest.Blob{}, ctx.Err()
}
