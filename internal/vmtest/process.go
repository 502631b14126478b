package vmtest

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"runtime"
	"sync"
)

// neverDone is the context of machines: their end is PowerOff.
var neverDone = context.Background()

// starter runs every fork on one locked thread that lives as long as the
// program: Pdeathsig goes by the death of the forking thread, not process.
var starter = sync.OnceValue(func() chan func() {
	work := make(chan func())
	go func() {
		runtime.LockOSThread()
		for f := range work {
			f()
		}
	}()
	return work
})

// startLocked starts cmd from the long-lived thread.
func startLocked(cmd *exec.Cmd) error {
	result := make(chan error)
	starter() <- func() { result <- cmd.Start() }
	return <-result
}

// endProcess kills a process this package started and waits for it. A nil
// command, or one that has ended, is fine.
func endProcess(cmd *exec.Cmd) error {
	if cmd == nil || cmd.Process == nil {
		return nil
	}
	if err := cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	_ = cmd.Wait()
	return nil
}
