package pause

import (
	"context"
	"errors"
	"testing"
	"time"
)

func TestFor(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	for _, d := range []time.Duration{-1, 0, time.Millisecond} {
		if err := For(ctx, d); err != nil {
			t.Errorf("For(%s) = %v", d, err)
		}
	}
	time.AfterFunc(10*time.Millisecond, cancel)
	for _, d := range []time.Duration{time.Hour, time.Hour, 0} { // ended while it waits, and before
		if err := For(ctx, d); !errors.Is(err, context.Canceled) {
			t.Errorf("For(%s) of a context that ends = %v", d, err)
		}
	}
}
