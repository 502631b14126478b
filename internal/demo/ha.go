package demo

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/turnout-project/turnout/internal/fleet"
	"github.com/turnout-project/turnout/internal/store/pgtest"
	"github.com/turnout-project/turnout/internal/vmtest"
)

// secondAddress is where the second server of a highly available rack is.
const secondAddress = "10.77.0.2"

// takeover bounds how long another server may take to lead: docs/high-availability.md
// says 11 s, and this machine is busy.
const takeover = 2 * time.Minute

// twoServers is a rack with two servers on one PostgreSQL.
type twoServers struct {
	*lab
	pg    *pgtest.Cluster
	seats [2]*seat
	done  string // the rollout of v2
}

// HighAvailability plays canary, halt and undo on a rack of three nodes with
// two servers on one PostgreSQL. The server that leads is killed while the
// canary boots its trial, and in the next rollout the other one, which leads
// by then, hangs at that moment. Nobody lends the nodes a hand.
func HighAvailability(ctx context.Context, o Options) (err error) {
	l, err := newLab(o)
	if err != nil {
		return err
	}
	h := &twoServers{lab: l}
	defer func() { err = errors.Join(err, h.close()) }()
	for i, s := range []struct {
		title string
		play  func(context.Context) error
	}{
		{"build and sign images v1 to v3", h.build},
		{"two servers on one PostgreSQL; the first leads", h.startBoth},
		{"three nodes PXE-boot, enrol, install v1, and know both servers", h.provision},
		{"the leader is killed while the canary boots v2: the other carries the rollout on", h.killLeader},
		{"the new leader hangs while the canary boots v3, which is bad: the first halts the rollout", h.hangLeader},
		{"v2 is undone on the nodes that nobody asked for something else since", h.undo},
		{"the server that hung comes to itself, and changes nothing", h.wake},
	} {
		l.heading(i+1, s.title)
		began := time.Now()
		playErr := s.play(ctx)
		l.table.add(s.title, time.Since(began), playErr)
		if playErr != nil {
			err = fmt.Errorf("scene %d: %w", i+1, playErr)
			break
		}
	}
	l.table.print(l.Out)
	return err
}

func (h *twoServers) close() error {
	h.stopStory()
	var errs []error
	for _, s := range h.seats {
		if s != nil {
			h.seat = s
			errs = append(errs, h.killServer())
		}
	}
	errs = append(errs, h.rack.Close())
	if h.pg != nil {
		h.pg.Stop()
	}
	return errors.Join(errs...)
}

func (h *twoServers) build(ctx context.Context) error {
	if err := h.makeKeys(ctx); err != nil {
		return err
	}
	for _, v := range versions[:3] {
		if err := h.buildImage(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

// startBoth does what docs/high-availability.md tells an operator to do.
func (h *twoServers) startBoth(ctx context.Context) (err error) {
	for _, name := range names { // their TPMs' maker is named in the configuration
		if _, err := h.rack.AddNode(vmtest.NodeSpec{Name: name}); err != nil {
			return err
		}
	}
	if h.pg, err = pgtest.Start(true); err != nil {
		return err
	}
	database, err := h.pg.Database()
	if err != nil {
		return err
	}
	host, err := h.rack.AddHost("s2", secondAddress)
	if err != nil {
		return err
	}
	h.seats[0] = h.seat
	h.seats[1] = &seat{dir: "server2", log: "pxeserver2.log", command: host.Command}
	if err := h.copySeat(); err != nil {
		return err
	}
	for i, x := range []struct{ own, other, leases string }{
		{vmtest.Address, secondAddress, "10.77.0.100-10.77.0.149"}, {secondAddress, vmtest.Address, "10.77.0.150-10.77.0.199"},
	} {
		if err := h.edit(h.seats[i], map[string]string{
			`address: "` + vmtest.Address + `"`: `address: "` + x.own + `"`,
			`store: ""`:                         fmt.Sprintf("store: %q", database),
			"peers: []":                         fmt.Sprintf("peers: [%q]", "https://"+x.other+":8443"),
			`range: ""`:                         fmt.Sprintf("range: %q", x.leases),
		}); err != nil {
			return err
		}
	}
	if err := h.startServer(ctx); err != nil {
		return err
	}
	if err := h.leads(ctx, 0, 1); err != nil {
		return err
	}
	h.sit(1)
	return h.startServer(ctx)
}

// copySeat gives the second server the files that servers share.
func (h *twoServers) copySeat() error {
	from, to := h.path(h.seats[0].dir), h.path(h.seats[1].dir)
	if err := os.MkdirAll(filepath.Join(to, "data"), 0o700); err != nil {
		return err
	}
	for _, f := range []string{"ca.pem", "data/ca.key", "tokens", "operator.token", "pxeserver.yaml"} {
		b, err := os.ReadFile(filepath.Join(from, f))
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, f), b, 0o600); err != nil {
			return err
		}
	}
	return nil
}

// edit changes a configuration. Each old text must be there.
func (h *twoServers) edit(s *seat, changes map[string]string) error {
	file := filepath.Join(h.path(s.dir), "pxeserver.yaml")
	text, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	for from, to := range changes {
		if !bytes.Contains(text, []byte(from)) {
			return fmt.Errorf("%s has no %q", file, from)
		}
		text = bytes.Replace(text, []byte(from), []byte(to), 1)
	}
	return os.WriteFile(file, text, 0o600)
}

// sit moves the operator to another server.
func (h *twoServers) sit(i int) {
	h.stopStory()
	h.seat = h.seats[i]
	h.say("the operator sits at %s", []string{vmtest.Address, secondAddress}[i])
}

// leads waits until a server's log says for the n-th time that it leads.
func (h *twoServers) leads(ctx context.Context, i, n int) error {
	return h.until(ctx, fmt.Sprintf("server %d to lead", i+1), takeover, func() (bool, string) {
		b, err := os.ReadFile(h.path(h.seats[i].log))
		return bytes.Count(b, []byte("this server leads:")) >= n, fmt.Sprint(err)
	})
}

// publishBoth publishes an image at both servers.
func (h *twoServers) publishBoth(ctx context.Context, v string) error {
	now := h.seat
	defer func() { h.seat = now }()
	for _, h.seat = range h.seats {
		if err := h.publish(ctx, v); err != nil {
			return err
		}
	}
	return nil
}

func (h *twoServers) provision(ctx context.Context) error {
	for _, v := range versions[:3] {
		if err := h.publishBoth(ctx, v); err != nil {
			return err
		}
	}
	if err := h.follow(); err != nil {
		return err
	}
	for _, p := range []string{"canary", "rack"} {
		if _, err := h.operator(ctx, "pool", "set", p, "--image", h.digests["v1"]); err != nil {
			return err
		}
	}
	for _, n := range h.rack.Nodes() {
		if err := n.PowerOn(); err != nil {
			return err
		}
	}
	for _, n := range h.rack.Nodes() {
		if err := h.approve(ctx, n); err != nil {
			return err
		}
	}
	return h.allRun(ctx, "v1")
}

// allRun waits until every node runs an image.
func (h *twoServers) allRun(ctx context.Context, v string) error {
	for _, name := range names {
		if _, err := h.settled(ctx, name, h.digests[v], patience); err != nil {
			return err
		}
	}
	_, err := h.operator(ctx, "node", "list")
	return err
}

// atTrial starts a rollout and waits until the canary reboots into it: the
// server that it knew may be gone when it is back.
func (h *twoServers) atTrial(ctx context.Context, v string) (rollout string, err error) {
	before, err := h.kinds(ctx, names[0], "node.rebooting")
	if err != nil {
		return "", err
	}
	if rollout, err = h.startRollout(ctx, v); err != nil {
		return "", err
	}
	return rollout, h.until(ctx, names[0]+" to reboot into "+v, patience, func() (bool, string) {
		now, err := h.kinds(ctx, names[0], "node.rebooting")
		return len(now) > len(before), fmt.Sprintf("%d reboots before and %d now, %v", len(before), len(now), err)
	})
}

func (h *twoServers) killLeader(ctx context.Context) (err error) {
	if h.done, err = h.atTrial(ctx, "v2"); err != nil {
		return err
	}
	h.say("killing the server at %s, which leads, with SIGKILL", vmtest.Address)
	now := h.seat
	h.seat = h.seats[0]
	err = h.killServer()
	h.seat = now
	if err != nil {
		return err
	}
	if err := h.leads(ctx, 1, 1); err != nil {
		return err
	}
	h.say("the server at %s leads", secondAddress)
	r, err := h.rolloutEnds(ctx, h.done)
	if err != nil {
		return err
	}
	if r.State != fleet.RolloutDone {
		return fmt.Errorf("rollout %s ended %s (%s), want done", h.done, r.State, r.Reason)
	}
	if err := canaryFirst(r); err != nil {
		return err
	}
	return h.allRun(ctx, "v2")
}

func (h *twoServers) hangLeader(ctx context.Context) error {
	h.sit(0)
	if err := h.startServer(ctx); err != nil {
		return err
	}
	if err := h.follow(); err != nil {
		return err
	}
	boots, err := h.bootIDs(ctx)
	if err != nil {
		return err
	}
	id, err := h.atTrial(ctx, "v3")
	if err != nil {
		return err
	}
	h.say("stopping the server at %s, which leads: it takes connections and answers none", secondAddress)
	if err := h.seats[1].server.Process.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	if err := h.leads(ctx, 0, 2); err != nil {
		return err
	}
	h.say("the server at %s leads again", vmtest.Address)
	r, err := h.rolloutEnds(ctx, id)
	if err != nil {
		return err
	}
	if r.State != fleet.RolloutHalted {
		return fmt.Errorf("rollout of v3 ended %s (%s), want halted", r.State, r.Reason)
	}
	if err := h.allRun(ctx, "v2"); err != nil {
		return err
	}
	after, err := h.bootIDs(ctx)
	if err != nil {
		return err
	}
	for _, name := range names[1:] {
		if boots[name] != after[name] {
			return fmt.Errorf("node %s was rebooted although the canary failed", name)
		}
	}
	status, err := h.operator(ctx, "rollout", "status", id)
	if err == nil && !strings.Contains(status, "workload") {
		err = fmt.Errorf("rollout status does not name the failed check workload:\n%s", status)
	}
	return err
}

func (h *twoServers) undo(ctx context.Context) error {
	var r fleet.Rollout
	if err := h.query(ctx, &r, "rollout", "undo", h.done, "--max-unavailable", "3", "--yes"); err != nil {
		return err
	}
	for _, name := range names[1:] {
		if _, err := h.settled(ctx, name, h.digests["v1"], patience); err != nil {
			return err
		}
	}
	if n, err := h.node(ctx, names[0]); err != nil || !runs(n, h.digests["v2"]) {
		return fmt.Errorf("node %s was asked for something else since, and is no longer on v2: %s, %v", names[0], h.describe(n), err)
	}
	_, err := h.operator(ctx, "node", "list")
	return err
}

// wake lets the server that hung go on: its plan is of a state that is gone.
func (h *twoServers) wake(ctx context.Context) error {
	wishes := func() (string, error) {
		var nodes []fleet.Node
		err := h.query(ctx, &nodes, "node", "list")
		var b strings.Builder
		for _, n := range nodes {
			fmt.Fprintf(&b, "%s %+v\n", n.Name, n.Desired)
		}
		return b.String(), err
	}
	before, err := wishes()
	if err != nil {
		return err
	}
	if err := h.seats[1].server.Process.Signal(syscall.SIGCONT); err != nil {
		return err
	}
	h.sit(1)
	if err := h.until(ctx, "the server that hung to answer", takeover, func() (bool, string) {
		_, err := h.operator(ctx, "node", "list")
		return err == nil, fmt.Sprint(err)
	}); err != nil {
		return err
	}
	if err := h.until(ctx, "the server that hung to notice that it leads no more", takeover, func() (bool, string) {
		log, err := os.ReadFile(h.path(h.log))
		return bytes.Contains(log, []byte("this server leads no more")), fmt.Sprint(err)
	}); err != nil {
		return err
	}
	after, err := wishes()
	if err == nil && after != before {
		err = fmt.Errorf("the wishes changed:\n%s\nbefore:\n%s", after, before)
	}
	return err
}
