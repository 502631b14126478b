package demo

import (
	"bytes"
	"context"
	"crypto/sha256"
	"crypto/tls"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/vmtest"
	"github.com/turnout-project/turnout/internal/vmtest/redfish"
)

// hungFor bounds how long a hung node may take to be back: the server waits
// ten minutes after its start, a node is lost after five, and cycled two
// minutes later.
const hungFor = 20*time.Minute + patience

// Recovery brings one node up with a BMC, hangs it, and waits until the
// server has cycled its power and the node is back, healthy and attested,
// without a hand on it.
func Recovery(ctx context.Context, o Options) (err error) {
	l, err := newLab(o)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, l.close()) }()
	node, err := l.recoverable(ctx)
	if err != nil {
		return err
	}
	before, err := l.settled(ctx, node.Name, l.digests["v1"], patience)
	if err != nil {
		return err
	}
	bmc, stop, err := l.addBMC(ctx, node)
	if err != nil {
		return err
	}
	defer stop()
	if _, err := l.operator(ctx, "power", "status", node.Name); err != nil {
		return err
	}
	l.say("%s hangs: its processor stands still, its watchdog too", node.Name)
	if err := node.Freeze(); err != nil {
		return err
	}
	if err := l.until(ctx, node.Name+" to be back from a hang", hungFor, func() (bool, string) {
		n, err := l.node(ctx, node.Name)
		if err != nil {
			return false, err.Error()
		}
		return n.Reported.BootID != before.Reported.BootID && runs(n, l.digests["v1"]), l.describe(n)
	}); err != nil {
		return err
	}
	if open, ever := bmc.Sessions(); open != 0 || ever == 0 {
		return fmt.Errorf("the BMC has %d of %d sessions open", open, ever)
	}
	kinds, err := l.kinds(ctx, node.Name, "recovery.")
	if err != nil {
		return err
	}
	if want := []string{"recovery.recheck", "recovery.power-cycle"}; !slices.Equal(kinds, want) {
		return fmt.Errorf("the story of the recovery is %v, want %v", kinds, want)
	}
	_, err = l.operator(ctx, "recovery", "status")
	return err
}

// kinds are those of a node's events that begin so, in their order.
func (l *lab) kinds(ctx context.Context, node, prefix string) ([]string, error) {
	out, err := l.pxeserver(ctx, "events", "--node", node, "--kind", prefix, "-o", "json")
	if err != nil {
		return nil, err
	}
	var kinds []string
	for d := json.NewDecoder(strings.NewReader(out)); ; {
		var e fleet.Event
		switch err := d.Decode(&e); {
		case errors.Is(err, io.EOF):
			return kinds, nil
		case err != nil:
			return nil, fmt.Errorf("events of node %s: %w", node, err)
		}
		kinds = append(kinds, e.Kind)
	}
}

// recoverable brings one node up under a server that acts by itself.
func (l *lab) recoverable(ctx context.Context) (*vmtest.Node, error) {
	if err := errors.Join(l.makeKeys(ctx), l.recoveryActs()); err != nil {
		return nil, err
	}
	if err := l.buildImage(ctx, "v1"); err != nil {
		return nil, err
	}
	node, err := l.rack.AddNode(vmtest.NodeSpec{Name: names[0]})
	if err != nil {
		return nil, err
	}
	for _, do := range []func() error{
		func() error { return l.startServer(ctx) },
		l.follow,
		func() error { return l.publish(ctx, "v1") },
		func() error {
			_, err := l.operator(ctx, "pool", "set", "canary", "--image", l.digests["v1"])
			return err
		},
		node.PowerOn,
		func() error { return l.approve(ctx, node) },
	} {
		if err := do(); err != nil {
			return nil, err
		}
	}
	return node, nil
}

// recoveryActs switches recovery on in the server's configuration.
func (l *lab) recoveryActs() error {
	text, err := os.ReadFile(l.config())
	if err != nil {
		return err
	}
	acts := bytes.Replace(text, []byte("  mode: tell "), []byte("  mode: act "), 1)
	if bytes.Equal(acts, text) {
		return errors.New("the configuration has no recovery mode to switch on")
	}
	return os.WriteFile(l.config(), acts, 0o600)
}

// addBMC gives a node a BMC inside the rack, and the server its password.
func (l *lab) addBMC(ctx context.Context, node *vmtest.Node) (*redfish.BMC, func(), error) {
	const user, password = "turnout", "s3cret-of-the-bmc"
	bmc := redfish.New(node, user, password, redfish.Manners{})
	listener, err := l.rack.Listen(net.JoinHostPort(vmtest.Address, "8444"))
	if err != nil {
		return nil, nil, err
	}
	ts := httptest.NewUnstartedServer(bmc)
	_ = ts.Listener.Close()
	ts.Listener, ts.TLS = listener, &tls.Config{NextProtos: []string{"http/1.1"}}
	ts.Config.ErrorLog = nil
	ts.Config.ReadHeaderTimeout = time.Minute
	ts.StartTLS()
	stop := func() { ts.Close() }
	h := sha256.Sum256(ts.Certificate().Raw)
	file := l.path("bmc.pw")
	if err := os.WriteFile(file, []byte(password+"\n"), 0o600); err != nil {
		stop()
		return nil, nil, err
	}
	// UUID and serial number of the lab's BMC are its own.
	_, err = l.operator(ctx, "bmc", "set", node.Name, "--address", strings.TrimPrefix(ts.URL, "https://"), "--user", user, "--password-file", file, "--pin", hex.EncodeToString(h[:]))
	if err != nil {
		stop()
		return nil, nil, err
	}
	return bmc, stop, nil
}
