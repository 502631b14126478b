package demo

import (
	"context"
	"testing"
)

// TestHighAvailability kills and hangs servers at the worst moments.
func TestHighAvailability(t *testing.T) {
	if err := HighAvailability(context.Background(), options(t, "ha")); err != nil {
		t.Fatal(err)
	}
}
