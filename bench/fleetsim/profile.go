package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"runtime"
	"runtime/pprof"
	"syscall"
)

// profiles writes a CPU profile of this process between each first and
// second SIGUSR1, and with it what goroutines were blocked by and what is in
// memory, into a folder.
func profiles(ctx context.Context, dir string) {
	usr1 := make(chan os.Signal, 1)
	signal.Notify(usr1, syscall.SIGUSR1)
	defer signal.Stop(usr1)
	next := func() bool {
		select {
		case <-usr1:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for i := 1; next(); i++ {
		runtime.SetBlockProfileRate(100_000)
		runtime.SetMutexProfileFraction(10)
		f, err := os.Create(filepath.Join(dir, fmt.Sprintf("server-%d.cpu", i)))
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		next()
		pprof.StopCPUProfile()
		if err != nil {
			fmt.Fprintln(os.Stderr, "fleetsim: profile:", err)
		}
		f.Close()
		for _, kind := range []string{"block", "mutex", "allocs"} {
			if out, err := os.Create(filepath.Join(dir, fmt.Sprintf("server-%d.%s", i, kind))); err == nil {
				pprof.Lookup(kind).WriteTo(out, 0) //nolint:errcheck // for people
				out.Close()
			}
		}
	}
}
