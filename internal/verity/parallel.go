package verity

import (
	"context"
	"runtime"
	"sync"
)

// inOrder runs newWorker()(i) for i in [0, n) on several goroutines, handing
// the numbers out in rising order. After an error no more are handed out, and
// the error of the lowest number is returned, so the answer does not depend
// on timing.
func inOrder(ctx context.Context, n int64, workers int, newWorker func() func(i int64) error) error {
	if workers <= 0 {
		workers = runtime.GOMAXPROCS(0)
	}
	var (
		mu       sync.Mutex
		next     int64
		failed   = n
		firstErr error
		wg       sync.WaitGroup
	)
	take := func() (int64, bool) {
		mu.Lock()
		defer mu.Unlock()
		if firstErr != nil || next >= n || ctx.Err() != nil {
			return 0, false
		}
		next++
		return next - 1, true
	}
	fail := func(i int64, err error) {
		mu.Lock()
		defer mu.Unlock()
		if i < failed {
			failed, firstErr = i, err
		}
	}
	for range min(int64(workers), n) {
		wg.Go(func() {
			work := newWorker()
			for i, ok := take(); ok; i, ok = take() {
				if err := work(i); err != nil {
					fail(i, err)
				}
			}
		})
	}
	wg.Wait()
	if firstErr != nil {
		return firstErr
	}
	return ctx.Err()
}
