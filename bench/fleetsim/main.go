// Command fleetsim measures a server under the load of a fleet. It starts
// the API, the executor and the SQLite store of pxeserver in a process of
// their own, adds, enrols and connects N simulated nodes over mutual TLS,
// each with a key and a certificate of its own, lets them send heartbeats,
// and optionally has them attest, drives a rollout and kills the server in the
// middle. Only the TPMs' arithmetic at enrolment and the nodes' disks are
// simulated; quotes are signed by keys in memory.
//
// It prints rates and latencies as the nodes see them, and exits with 1 if a
// promise was broken: a wish that went back, more nodes on the move than
// allowed (by the server's word, and by the nodes' own), a rollout that goes
// on where it should halt, a node flipped back that the rollout did not
// change, a node lost.
package main

import (
	"bufio"
	"context"
	"errors"
	"flag"
	"fmt"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strconv"
	"syscall"
	"time"

	"github.com/turnout-project/turnout/internal/server"
	"github.com/turnout-project/turnout/internal/store/pgtest"
)

// options are the command line.
type options struct {
	nodes    int
	interval time.Duration
	run      time.Duration
	failing  float64
	rollout  bool
	kill     time.Duration
	halt     bool
	atOnce   int
	postgres bool
	attest   time.Duration
	dir      string
	serve    string
	store    string
	profiles bool
	days     int
}

func main() {
	var o options
	flag.IntVar(&o.nodes, "nodes", 1000, "how many nodes")
	flag.DurationVar(&o.interval, "interval", 10*time.Second, "between the heartbeats of a node")
	flag.DurationVar(&o.run, "for", 30*time.Second, "how long heartbeats are measured before anything else happens")
	flag.BoolVar(&o.rollout, "rollout", false, "then drive a rollout over all nodes")
	flag.Float64Var(&o.failing, "failing", 1, "percentage of nodes that fail with the new image")
	flag.DurationVar(&o.kill, "kill", 0, "kill the server this long after the rollout began, and start it again")
	flag.IntVar(&o.atOnce, "at-once", 10, "percentage of a pool that rollouts move at once")
	flag.BoolVar(&o.halt, "halt", false, "then drive another one that fails on more nodes than it may, and see what is flipped back")
	flag.IntVar(&o.days, "days", 0, "then let so many days pass, as far as they leave something behind: each has a rollout over all nodes, and 20 lines of a node's story")
	flag.DurationVar(&o.attest, "attest", 0, "have every node attest within this time, with real event logs (fetched as a Go module), then again by their hashes")
	flag.BoolVar(&o.postgres, "postgres", false, "keep fleet state in a PostgreSQL that is started for it")
	flag.StringVar(&o.store, "store", "", "where fleet state is kept (used by fleetsim itself)")
	flag.BoolVar(&o.profiles, "profile", false, "write CPU profiles of the server during rollouts into -dir")
	flag.StringVar(&o.dir, "dir", "", "where state is kept; a temporary folder if empty")
	flag.StringVar(&o.serve, "serve", "", "be the server on this address (used by fleetsim itself)")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, o)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "fleetsim:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o options) error {
	if o.serve != "" {
		return serve(ctx, o)
	}
	if o.dir == "" {
		dir, err := os.MkdirTemp("", "fleetsim")
		if err != nil {
			return err
		}
		defer os.RemoveAll(dir)
		o.dir = dir
	}
	token, err := setUp(o.dir)
	if err != nil {
		return err
	}
	var boots []booted
	if o.attest > 0 {
		if boots, err = publishBoots(o.dir); err != nil {
			return err
		}
	}
	p := &child{o: o}
	if o.postgres {
		if p.pg, err = pgtest.Start(true); err != nil {
			return err
		}
		defer p.pg.Stop()
		if p.o.store, err = p.pg.Database(); err != nil {
			return err
		}
	}
	if err := p.start(ctx); err != nil {
		return err
	}
	defer p.kill()
	f, err := newFleetSim(o, p, token, boots)
	if err != nil {
		return err
	}
	return f.play(ctx)
}

// setUp makes the CA and an operator's token.
func setUp(dir string) (token string, err error) {
	_, cert, key, err := server.NewCA(time.Now())
	if err != nil {
		return "", err
	}
	token, line := server.NewToken("fleetsim", "operator")
	return token, errors.Join(
		os.WriteFile(filepath.Join(dir, "ca.pem"), cert, 0o600),
		os.WriteFile(filepath.Join(dir, "ca.key"), key, 0o600),
		os.WriteFile(filepath.Join(dir, "tokens"), []byte(line), 0o600))
}

// child is the server's process.
type child struct {
	o       options
	pg      *pgtest.Cluster // nil: state is in a file
	address string
	cmd     *exec.Cmd
}

// start starts the server, at the address it had before if it had one, and
// waits until it answers.
func (p *child) start(ctx context.Context) error {
	if p.address == "" {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			return err
		}
		p.address = l.Addr().String()
		l.Close()
	}
	p.cmd = exec.CommandContext(ctx, os.Args[0], "-serve", p.address, "-dir", p.o.dir, "-interval", p.o.interval.String(), "-store", p.o.store,
		"-attest", p.o.attest.String(), "-profile="+strconv.FormatBool(p.o.profiles))
	p.cmd.Stderr = os.Stderr
	out, err := p.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := p.cmd.Start(); err != nil {
		return err
	}
	if !bufio.NewScanner(out).Scan() {
		return fmt.Errorf("the server did not start: %w", p.cmd.Wait())
	}
	return nil
}

// profile starts a profile of the server, or ends the one under way.
func (p *child) profile() {
	if p.o.profiles {
		p.cmd.Process.Signal(syscall.SIGUSR1) //nolint:errcheck // a profile is for people
	}
}

// kill ends the server without a word, as a power cut would.
func (p *child) kill() {
	p.cmd.Process.Kill() //nolint:errcheck // it may have ended
	p.cmd.Wait()         //nolint:errcheck // killed
}
