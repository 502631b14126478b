package vmtest

import (
	"context"
	"fmt"
	"net"
	"path/filepath"
	"runtime"

	"golang.org/x/sys/unix"
)

// Listen opens a TCP listener inside the rack's namespace, for a service of
// this program that machines and the server in there use.
func (r *Rack) Listen(address string) (net.Listener, error) {
	return inside(r, func() (net.Listener, error) { return net.Listen("tcp", address) })
}

// Dial connects to a TCP address inside the rack's namespace.
func (r *Rack) Dial(ctx context.Context, address string) (net.Conn, error) {
	return inside(r, func() (net.Conn, error) { return (&net.Dialer{}).DialContext(ctx, "tcp", address) })
}

// inside calls open on a thread inside the rack's namespace: what it opens
// stays there.
func inside[T any](r *Rack, open func() (T, error)) (T, error) {
	type result struct {
		v   T
		err error
	}
	out := make(chan result)
	go func() {
		runtime.LockOSThread() // and never unlocked: the thread ends with the goroutine
		var x result
		fd, err := unix.Open(filepath.Join("/run/netns", r.Namespace), unix.O_RDONLY|unix.O_CLOEXEC, 0)
		if err == nil {
			err = unix.Setns(fd, unix.CLONE_NEWNET)
			_ = unix.Close(fd)
		}
		if err != nil {
			x.err = fmt.Errorf("virtual rack: entering its namespace: %w", err)
		} else {
			x.v, x.err = open()
		}
		out <- x
	}()
	x := <-out
	return x.v, x.err
}
