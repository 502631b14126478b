package mem_test

import (
	"testing"

	"github.com/turnout-project/turnout/internal/store"
	"github.com/turnout-project/turnout/internal/store/mem"
	"github.com/turnout-project/turnout/internal/store/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Suite{New: func(*testing.T) store.Store { return mem.New() }}.Run(t)
}
