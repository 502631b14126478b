package install

import (
	"io"
	"sync"
)

// follower reads what another goroutine writes, never ahead of it: a read
// waits until all of it was written and flushed.
type follower struct {
	io.ReaderAt

	mu    sync.Mutex
	moved sync.Cond
	upTo  int64 // bytes that may be read
	err   error // why there will not be more
}

func newFollower(r io.ReaderAt) *follower {
	f := &follower{ReaderAt: r}
	f.moved.L = &f.mu
	return f
}

// advance lets readers go on to byte n, or fail with err.
func (f *follower) advance(n int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.upTo, f.err = max(f.upTo, n), err
	f.moved.Broadcast()
}

// ReadAt implements io.ReaderAt.
func (f *follower) ReadAt(b []byte, off int64) (int, error) {
	if err := f.wait(off + int64(len(b))); err != nil {
		return 0, err
	}
	return f.ReaderAt.ReadAt(b, off)
}

func (f *follower) wait(n int64) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	for f.upTo < n {
		if f.err != nil {
			return f.err
		}
		f.moved.Wait()
	}
	return nil
}
