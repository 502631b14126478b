package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"
)

// Blob streams one blob of an image from offset up to size, over as many
// Range requests (RFC 9110 section 14.2) as it takes: a connection that
// breaks is continued where it stopped, with growing pauses, for as long as
// bytes keep coming (blobRetries tries without a single byte end it). size
// is the blob's size from the signed manifest, or less. The bytes are not verified.
// A cache (see UseCache) is asked first, and the server for what it does not
// deliver. The caller closes the reader; ctx bounds the whole stream.
func (c *NodeClient) Blob(ctx context.Context, image, blob string, offset, size int64) io.ReadCloser {
	return &blobReader{c: c, ctx: ctx, path: PathImages + image + "/blobs/" + blob, digest: blob, at: offset, size: size, first: c.pause, pause: c.pause}
}

// blobRetries is how many connections in a row may bring nothing.
const blobRetries = 8

// blobStall is how long a connection may bring nothing before it is given up.
const blobStall = 60 * time.Second

type blobReader struct {
	c        *NodeClient
	ctx      context.Context
	path     string
	digest   string
	cached   bool // body is the cache's
	at, size int64
	body     io.ReadCloser
	cancel   context.CancelFunc
	watch    *time.Timer
	tries    int
	first    time.Duration // pause after the first connection that broke
	pause    time.Duration
	closed   bool
}

// Read implements io.Reader.
func (r *blobReader) Read(p []byte) (int, error) {
	for {
		switch {
		case r.closed:
			return 0, errors.New("blob stream is closed")
		case r.at >= r.size:
			return 0, io.EOF
		}
		if r.body == nil {
			if err := r.open(); err != nil {
				return 0, err
			}
		}
		p = p[:min(int64(len(p)), r.size-r.at)]
		r.watch.Reset(blobStall)
		n, err := r.body.Read(p)
		r.watch.Stop() // the caller may take its time with the bytes
		if n > 0 {
			r.at += int64(n)
			r.tries, r.pause = 0, r.first
			return n, nil
		}
		if err != nil && r.cached && r.ctx.Err() == nil { // the rest is the server's
			r.c.cache.rest()
			r.drop()
			continue
		}
		if err != nil {
			r.drop()
			if err := r.again(err); err != nil {
				return 0, err
			}
		}
	}
}

// open starts a connection at the current offset, trying again where that
// can help.
func (r *blobReader) open() error {
	for {
		ctx, cancel := context.WithCancel(r.ctx)
		watch := time.AfterFunc(blobStall, cancel)
		if body, err := r.c.cache.open(ctx, r.path, r.digest, r.at, r.size); err == nil {
			r.body, r.cancel, r.watch, r.cached = body, cancel, watch, true
			return nil
		}
		h := http.Header{"Range": {fmt.Sprintf("bytes=%d-%d", r.at, r.size-1)}}
		t := r.c.transport()
		resp, err := t.do(ctx, http.MethodGet, r.path, nil, h)
		if err == nil && resp.StatusCode != http.StatusPartialContent && r.at > 0 {
			resp.Body.Close()
			cancel()
			return fmt.Errorf("fetching %s: server ignored the range", r.path)
		}
		if err == nil {
			r.body, r.cancel, r.watch, r.cached = resp.Body, cancel, watch, false
			return nil
		}
		watch.Stop()
		cancel()
		if s := StatusOf(err); s != 0 && s < 500 && s != http.StatusTooManyRequests || errors.Is(err, ErrUntrusted) && len(r.c.Servers()) == 1 {
			return fmt.Errorf("fetching %s: %w", r.path, err)
		}
		if StatusOf(err) == 0 && r.ctx.Err() == nil {
			r.c.leave(t) // no answer: the pause is for the next server, if there is one
		}
		if err := r.again(err); err != nil {
			return err
		}
	}
}

// again waits before the next connection, or says that it is over.
func (r *blobReader) again(cause error) error {
	if r.ctx.Err() != nil {
		return r.ctx.Err()
	}
	r.tries++
	if r.tries > blobRetries {
		return fmt.Errorf("fetching %s at byte %d of %d: %w", r.path, r.at, r.size, cause)
	}
	t := time.NewTimer(r.pause)
	defer t.Stop()
	r.pause = min(2*r.pause, 15*time.Second)
	select {
	case <-r.ctx.Done():
		return r.ctx.Err()
	case <-t.C:
		return nil
	}
}

func (r *blobReader) drop() {
	if r.body != nil {
		r.watch.Stop()
		r.body.Close()
		r.cancel()
		r.body = nil
	}
}

// Close implements io.Closer.
func (r *blobReader) Close() error {
	r.closed = true
	r.drop()
	return nil
}
