package demo

import (
	"context"
	"testing"
)

// TestRecovery hangs a node and waits for the server to bring it back through
// its BMC.
func TestRecovery(t *testing.T) {
	if err := Recovery(context.Background(), options(t, "recovery")); err != nil {
		t.Fatal(err)
	}
}
