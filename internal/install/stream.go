package install

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/turnout-project/turnout/internal/manifest"
)

const (
	wholeChunk = 4 << 20  // piece size of a blob that lists no chunks
	flushEvery = 64 << 20 // bytes written between two flushes
	inFlight   = 3        // writes on their way at once
	chunkTries = 5        // downloads of one chunk before it is given up
	keepMisses = 4        // chunks in a row that the partition did not hold before that is no longer asked
)

// copyBlob writes a blob to the start of dev. A blob with chunk hashes is
// checked chunk by chunk before a byte of it is written; a chunk that the
// partition holds already is not fetched, so that an interrupted installation
// goes on where it stopped. A blob without is checked at its end.
func copyBlob(ctx context.Context, src Source, image string, b manifest.Blob, dev Device, pace *pacer) error {
	return (&copier{ctx: ctx, src: src, image: image, blob: b, pace: pace}).copyTo(dev)
}

// copyUnchecked writes a blob that whoever calls will check when it is read
// back: chunks that are fetched are written as they come. It does not fetch
// either what d knows to be on the node, and tells flushed, unless it is nil,
// up to which byte the blob is on the medium. A blob without chunk hashes is
// checked at its end nevertheless.
func copyUnchecked(ctx context.Context, src Source, image string, b manifest.Blob, dev Device, d *delta, pace *pacer, progress, flushed func(int64)) error {
	return (&copier{ctx: ctx, src: src, image: image, blob: b, delta: d, pace: pace, progress: progress, flushed: flushed, isUnchecked: true}).copyTo(dev)
}

// mend goes over a blob that was written and is not right: every chunk of the
// partition that does not match is fetched anew, and checked before it is
// written.
func mend(ctx context.Context, src Source, image string, b manifest.Blob, dev Device, pace *pacer) error {
	return (&copier{ctx: ctx, src: src, image: image, blob: b, pace: pace, isMending: true}).copyTo(dev)
}

func (c *copier) copyTo(dev Device) error {
	if c.blob.SizeBytes > dev.Size() {
		return fmt.Errorf("%w: blob of %d bytes does not fit its partition of %d", ErrRefused, c.blob.SizeBytes, dev.Size())
	}
	if c.size = c.blob.ChunkSize; c.size == 0 {
		c.size = wholeChunk
	}
	defer c.drop()
	return c.run(dev)
}

// copier is one blob on its way.
type copier struct {
	ctx      context.Context
	src      Source
	image    string
	blob     manifest.Blob
	size     int64 // of a chunk
	delta    *delta
	pace     *pacer // of fetching
	progress func(int64)
	flushed  func(int64) // told up to which byte the blob is on the medium; nil: nobody asks

	isUnchecked bool // chunks are written as they come: they are checked when they are read back
	isMending   bool // every chunk is looked for in the partition, however many are not there

	body io.ReadCloser // stream, at offset at; nil when there is none
	at   int64
	end  int64 // of the stream
	next int64 // byte that Read gives next
}

func (c *copier) drop() {
	if c.body != nil {
		_ = c.body.Close() // nothing was promised of the rest
		c.body = nil
	}
}

// piece is a chunk on its way to the disk.
type piece struct {
	off    int64
	b      []byte
	isHeld bool // the partition has it
}

// run reads and checks in this goroutine while another writes.
func (c *copier) run(dev Device) error {
	ctx, cancel := context.WithCancelCause(c.ctx)
	defer cancel(nil)
	c.ctx = ctx
	full, empty := make(chan piece), make(chan []byte, inFlight+2)
	for range cap(empty) {
		empty <- make([]byte, c.size)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		if err := c.write(dev, full, empty); err != nil {
			cancel(err)
			for p := range full { // let the reader go on to its end
				empty <- p.b[:cap(p.b)]
			}
		}
	}()
	err := c.read(dev, full, empty)
	close(full)
	<-done
	if cause := context.Cause(ctx); cause != nil {
		return cause
	}
	return err
}

// write keeps some writes on their way at once, and has what was written
// flushed now and then, while it goes on.
func (c *copier) write(dev Device, full <-chan piece, empty chan<- []byte) error {
	var flushing errgroup.Group
	marks := make(chan int64, 1)
	flushing.Go(func() error { return c.flush(dev, marks) })
	err := c.writePieces(dev, full, empty, marks)
	close(marks)
	return errors.Join(err, flushing.Wait())
}

// flush flushes once for each mark: the byte up to which the blob was written.
func (c *copier) flush(dev Device, marks <-chan int64) (err error) {
	for n := range marks {
		if err != nil {
			continue // nobody is to wait for a mark to be taken
		}
		if err = dev.Sync(); err != nil {
			err = fmt.Errorf("flushing the slot at byte %d: %w", n, err)
		} else if c.flushed != nil {
			c.flushed(n)
		}
	}
	return err
}

func (c *copier) writePieces(dev Device, full <-chan piece, empty chan<- []byte, marks chan<- int64) error {
	for since := int64(0); ; since = 0 {
		var g errgroup.Group
		g.SetLimit(inFlight)
		n := int64(0)
		for p := range full {
			n = p.off + int64(len(p.b))
			g.Go(func() (err error) {
				if !p.isHeld {
					_, err = dev.WriteAt(p.b, p.off)
				}
				empty <- p.b[:cap(p.b)]
				if err != nil {
					return fmt.Errorf("writing the slot at byte %d: %w", p.off, err)
				}
				return nil
			})
			if c.progress != nil {
				c.progress(n)
			}
			if since += int64(len(p.b)); since >= flushEvery {
				break
			}
		}
		if err := g.Wait(); err != nil {
			return err
		}
		if n == 0 {
			return nil // full is closed
		}
		marks <- n
	}
}

func (c *copier) read(dev Device, full chan<- piece, empty <-chan []byte) error {
	whole, misses := sha256.New(), 0
	for i, off := int64(0), int64(0); off < c.blob.SizeBytes; i, off = i+1, off+c.size {
		b := (<-empty)[:min(c.size, c.blob.SizeBytes-off)]
		if (misses < keepMisses || c.isMending) && c.blob.ChunkSize > 0 {
			if c.holds(dev, b, off, i) {
				misses = 0
				full <- piece{off, b, true}
				continue
			}
			misses++
		}
		if err := c.chunk(b, off, i); err != nil {
			return err
		}
		if c.blob.ChunkSize == 0 {
			whole.Write(b)
		}
		full <- piece{off, b, false}
	}
	if c.blob.ChunkSize == 0 {
		if got := "sha256:" + hex.EncodeToString(whole.Sum(nil)); got != c.blob.Digest {
			return fmt.Errorf("blob %s came with digest %s", c.blob.Digest, got)
		}
	}
	return nil
}

// holds reports whether the partition has chunk i already, and leaves it in b.
func (c *copier) holds(dev Device, b []byte, off, i int64) bool {
	if n, err := dev.ReadAt(b, off); n < len(b) || err != nil && !errors.Is(err, io.EOF) {
		return false
	}
	return c.matches(b, i)
}

func (c *copier) matches(b []byte, i int64) bool {
	want, err := hex.DecodeString(c.blob.Chunks[i])
	got := sha256.Sum256(b)
	return err == nil && bytes.Equal(got[:], want)
}

// chunk downloads chunk i to b, again when it comes damaged.
func (c *copier) chunk(b []byte, off, i int64) error {
	known := c.delta
	defer func() { c.delta = known }()
	for try := 1; ; try++ {
		err := c.fill(b, off)
		if err == nil && (c.blob.ChunkSize == 0 || c.isUnchecked || c.matches(b, i)) {
			return nil
		}
		if err == nil {
			err = fmt.Errorf("chunk %d of blob %s (byte %d) came damaged", i, c.blob.Digest, off)
			c.delta = nil // whatever it was of, this piece is fetched whole
		}
		c.drop()
		if c.ctx.Err() != nil {
			return c.ctx.Err()
		}
		if try == chunkTries || c.blob.ChunkSize == 0 {
			return err
		}
		select {
		case <-c.ctx.Done():
			return c.ctx.Err()
		case <-time.After(time.Duration(try) * 200 * time.Millisecond):
		}
	}
}

// fill reads len(b) bytes at off, from the node or from the source.
func (c *copier) fill(b []byte, off int64) error {
	for len(b) > 0 {
		n, end := 0, c.blob.SizeBytes
		if c.delta != nil {
			if n = c.delta.local(b, off); n == 0 {
				end = c.delta.remote(off)
			}
		}
		if n == 0 {
			n = int(min(int64(len(b)), end-off))
			if err := c.fetch(b[:n], off, end); err != nil {
				return err
			}
		}
		b, off = b[n:], off+int64(n)
	}
	return nil
}

// fetch reads len(b) bytes at off, from the open stream where it is there
// already, else from a new one that goes up to end.
func (c *copier) fetch(b []byte, off, end int64) error {
	if c.body == nil || c.at != off || c.end < off+int64(len(b)) {
		c.drop()
		c.body, c.at, c.end = c.src.Blob(c.ctx, c.image, c.blob.Digest, off, end), off, end
	}
	if err := c.pace.wait(c.ctx, len(b)); err != nil {
		return err
	}
	n, err := io.ReadFull(c.body, b)
	c.at += int64(n)
	if err != nil {
		return fmt.Errorf("fetching blob %s at byte %d: %w", c.blob.Digest, c.at, err)
	}
	return nil
}

// Read gives the blob from its start, unchecked: a copier is a stream as well.
func (c *copier) Read(p []byte) (int, error) {
	n := min(int64(len(p)), c.blob.SizeBytes-c.next)
	if n == 0 && len(p) > 0 {
		return 0, io.EOF
	}
	if err := c.fill(p[:n], c.next); err != nil {
		return 0, err
	}
	c.next += n
	return int(n), nil
}
