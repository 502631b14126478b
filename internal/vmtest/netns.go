package vmtest

import (
	"fmt"
	"net"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Listen opens a TCP listener inside the rack's namespace, for a service of
// this program that machines and the server in there use.
func (r *Rack) Listen(address string) (net.Listener, error) {
	type result struct {
		l   net.Listener
		err error
	}
	out := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		fd, err := unix.Open(filepath.Join("/run/netns", r.Namespace), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			_ = unix.Close(fd)
		}
		if err != nil {
			out <- result{nil, fmt.Errorf("virtual rack: entering its namespace: %w", err)}
			return
		}
		l, err := net.Listen("tcp", address)
		out <- result{l, err}
	}()
	x := <-out
	return x.l, x.err
}
