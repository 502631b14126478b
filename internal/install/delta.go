package install

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"sort"

	"github.com/turnout-project/turnout/internal/cdc"
	"github.com/turnout-project/turnout/internal/manifest"
	"github.com/turnout-project/turnout/internal/oci"
)

// maxIndex bounds the chunk index of a blob, in bytes: enough for 64 GiB.
const maxIndex = 64 << 20

// Seed is something on the node that may share content with an image: a
// partition, a UKI. Nothing it gives is believed.
type Seed struct {
	io.ReaderAt
	Size int64 // bytes
}

// place is where a chunk was seen.
type place struct {
	seed int
	off  int64
}

// delta knows which chunks of a blob are on the node already. A nil delta
// knows of none.
type delta struct {
	chunks []cdc.Chunk
	starts []int64 // of chunks, and the end of the last one
	seeds  []Seed
	places map[cdc.Key]place
	buf    [cdc.Max]byte
}

// newDelta fetches the index of a blob and looks through seeds for what it
// names; later seeds win. An image without an index for the blob, an index
// that does not hold, and a seed that cannot be read cost bytes, not the
// installation: the result is then nil or knows less.
func newDelta(ctx context.Context, src Source, im *Image, b manifest.Blob, seeds []Seed) *delta {
	if len(seeds) == 0 {
		return nil
	}
	chunks, err := fetchIndex(ctx, src, im, b)
	if err != nil || len(chunks) == 0 {
		return nil
	}
	d := &delta{chunks: chunks, seeds: seeds, starts: make([]int64, len(chunks)+1), places: make(map[cdc.Key]place, len(chunks))}
	const unseen = -1
	for i, c := range chunks {
		d.starts[i+1] = d.starts[i] + int64(c.Size)
		d.places[c.Key] = place{seed: unseen}
	}
	for n, s := range seeds {
		if isBlank(s) {
			continue
		}
		_ = cdc.Split(io.NewSectionReader(s, 0, s.Size), func(off int64, b []byte) error { // what was read before an error counts
			k := cdc.KeyOf(b)
			if _, isWanted := d.places[k]; isWanted {
				d.places[k] = place{n, off}
			}
			return ctx.Err()
		})
	}
	for k, p := range d.places {
		if p.seed == unseen {
			delete(d.places, k)
		}
	}
	return d
}

// isBlank tells a partition that was never written, as far as its start shows.
func isBlank(s Seed) bool {
	b := make([]byte, min(s.Size, 1<<20))
	n, _ := s.ReadAt(b, 0) // what cannot be read is no help either
	return bytes.Count(b[:n], []byte{0}) == n
}

// fetchIndex gets and checks the chunk index of a blob; an image that has none
// gives no chunks.
func fetchIndex(ctx context.Context, src Source, im *Image, b manifest.Blob) ([]cdc.Chunk, error) {
	var m oci.Manifest
	if err := json.Unmarshal(im.OCI, &m); err != nil {
		return nil, err
	}
	for _, l := range m.Layers {
		if l.MediaType != manifest.MediaChunkIndex || l.Annotations[manifest.AnnotationChunksOf] != b.Digest {
			continue
		}
		if l.Size <= 0 || l.Size > maxIndex {
			return nil, fmt.Errorf("chunk index of %d bytes", l.Size)
		}
		r := src.Blob(ctx, im.Digest, l.Digest, 0, l.Size)
		body, err := io.ReadAll(io.LimitReader(r, l.Size))
		if err = errors.Join(err, r.Close()); err != nil {
			return nil, fmt.Errorf("fetching the chunk index: %w", err)
		}
		if got := manifest.DigestOf(body); got != l.Digest {
			return nil, fmt.Errorf("chunk index came with digest %s, want %s", got, l.Digest)
		}
		return cdc.Decode(body, b.SizeBytes)
	}
	return nil, nil
}

// at returns the number of the chunk that holds byte off.
func (d *delta) at(off int64) int {
	return sort.Search(len(d.chunks), func(i int) bool { return d.starts[i+1] > off })
}

// local copies to b what the node has of the blob from off on, up to the first
// chunk that it does not have, and returns how much that is. A place that has
// another content by now, as in a slot that is being written, is forgotten.
func (d *delta) local(b []byte, off int64) int {
	done := 0
	for i := d.at(off); done < len(b) && i < len(d.chunks); i++ {
		p, isThere := d.places[d.chunks[i].Key]
		if !isThere {
			break
		}
		c := d.buf[:d.chunks[i].Size]
		n, err := d.seeds[p.seed].ReadAt(c, p.off)
		if n < len(c) && err != nil || cdc.KeyOf(c) != d.chunks[i].Key {
			delete(d.places, d.chunks[i].Key)
			break
		}
		done += copy(b[done:], c[off+int64(done)-d.starts[i]:])
	}
	return done
}

// remote returns where the run of chunks that the node does not have ends that
// begins with byte off.
func (d *delta) remote(off int64) int64 {
	i := d.at(off)
	for ; i < len(d.chunks); i++ {
		if _, isThere := d.places[d.chunks[i].Key]; isThere {
			break
		}
	}
	return d.starts[i]
}
