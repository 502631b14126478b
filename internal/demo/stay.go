package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"time"

	"github.com/turnout-project/turnout/internal/vmtest"
)

// Stay brings a rack up on v1, publishes the other images, and leaves it to
// whoever is at the keyboard until ctx ends: console and API of its server
// are at address of this machine.
func Stay(ctx context.Context, o Options, address string) (err error) {
	host, _, err := net.SplitHostPort(address)
	if ip := net.ParseIP(host); err != nil || ip == nil || !ip.IsLoopback() {
		return fmt.Errorf("%q: want a loopback address and a port, such as 127.0.0.1:8443", address)
	}
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return fmt.Errorf("%w; choose another with -console", err)
	}
	defer listener.Close()
	l, err := newLab(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	l.say("logs and consoles: %s", l.Dir)
	for i, s := range steps[:2] {
		l.heading(i+1, s.title)
		if err := s.play(ctx, l); err != nil {
			return fmt.Errorf("step %d (%s): %w", i+1, s.name, err)
		}
	}
	for _, v := range versions[1:] {
		if err := l.publish(ctx, v); err != nil {
			return err
		}
	}
	go l.forward(ctx, listener)
	l.invite(listener.Addr().String())
	<-ctx.Done()
	l.say("the rack is taken down")
	return nil
}

// invite says where everything is.
func (l *lab) invite(address string) {
	dir, err := filepath.Abs(l.path("server"))
	if err != nil {
		dir = l.path("server")
	}
	fmt.Fprintf(l.Out, `
The rack is up, after %s: three nodes, on v1.

  console   https://%s/console/   (its certificate is of the rack's own CA, server/ca.pem)
  token     %s

  Commands, in another terminal:
    export TURNOUT_SERVER=https://%[2]s TURNOUT_CA=%[4]s TURNOUT_TOKEN_FILE=%[3]s
    %[5]s node list

  v2 is a good image; v3 fails a health check; v4 hangs in early boot. Start a rollout of one
  to the pools canary and rack, and see what becomes of it. Ctrl-C takes the rack down.
`, time.Since(l.started).Round(time.Second), address, filepath.Join(dir, "operator.token"), filepath.Join(dir, "ca.pem"), l.bin("pxeserver"))
}

// forward takes connections to the server inside the rack until ctx ends.
func (l *lab) forward(ctx context.Context, from net.Listener) {
	go func() {
		<-ctx.Done()
		from.Close()
	}()
	for {
		c, err := from.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			s, err := l.rack.Dial(ctx, net.JoinHostPort(vmtest.Address, "8443"))
			if err != nil {
				return // the browser sees that it ends
			}
			defer s.Close()
			go func() {
				_, _ = io.Copy(s, c)
				_ = s.Close()
			}()
			_, _ = io.Copy(c, s)
		}()
	}
}
