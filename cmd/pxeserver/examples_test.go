package main

import (
	"testing"

	"github.com/turnout-project/turnout/cmd/internal/clitest"
)

func TestExamples(t *testing.T) { clitest.Examples(t, newRootCommand) }
