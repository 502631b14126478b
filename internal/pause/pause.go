// Package pause waits, no longer than a context lives.
package pause

import (
	"context"
	"time"
)

// For waits for d and returns nil, or the error of ctx if that ends first. A
// d of 0 or less waits for nothing.
func For(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-t.C:
		return nil
	}
}
