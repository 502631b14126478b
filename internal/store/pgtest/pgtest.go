// Package pgtest runs a PostgreSQL of its own for tests and simulations: in
// a folder that goes with it, on a Unix socket, as an unprivileged user,
// beside any that the machine may have.
package pgtest

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
)

// ErrNone says that no PostgreSQL is installed.
var ErrNone = errors.New("no PostgreSQL is installed: Debian's package postgresql has it")

// Cluster is a running PostgreSQL.
type Cluster struct {
	dir, bin string
	cred     *syscall.Credential // nil: as we are
	cmd      *exec.Cmd
	log      *os.File
	made     atomic.Int64
}

// Start makes a cluster and starts it. Sync says whether it is to be as
// durable as one in use; a test that loses no power need not wait for that.
func Start(sync bool) (*Cluster, error) {
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin/postgres")
	if err != nil || len(found) == 0 {
		return nil, ErrNone
	}
	c := &Cluster{bin: filepath.Dir(found[len(found)-1])}
	if c.dir, err = os.MkdirTemp("", "pg"); err != nil { // short: a socket's path has 107 bytes
		return nil, err
	}
	if err = c.start(sync); err != nil {
		c.Stop()
		return nil, err
	}
	return c, nil
}

func (c *Cluster) start(sync bool) error {
	if os.Getuid() == 0 { // it refuses to run as root
		u, err := user.Lookup("postgres")
		if err != nil {
			return fmt.Errorf("PostgreSQL does not run as root: %w", err)
		}
		uid, err1 := strconv.ParseUint(u.Uid, 10, 32)
		gid, err2 := strconv.ParseUint(u.Gid, 10, 32)
		if err := errors.Join(err1, err2, os.Chown(c.dir, int(uid), int(gid))); err != nil {
			return err
		}
		c.cred = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
	}
	out, err := c.command("initdb", "-D", c.data(), "-U", "turnout", "-A", "trust", "-E", "UTF8", "--locale=C.UTF-8", "--no-sync").CombinedOutput()
	if err != nil {
		return fmt.Errorf("initdb: %w: %s", err, out)
	}
	if c.log, err = os.Create(filepath.Join(c.dir, "log")); err != nil {
		return err
	}
	args := []string{"-D", c.data(), "-k", c.dir, "-h", "", "-c", "max_connections=100"}
	if !sync {
		args = append(args, "-c", "fsync=off", "-c", "full_page_writes=off")
	}
	c.cmd = c.command("postgres", args...)
	c.cmd.Stdout, c.cmd.Stderr = c.log, c.log
	c.cmd.SysProcAttr.Pdeathsig = syscall.SIGQUIT // a test that is killed leaves none behind
	if err := c.cmd.Start(); err != nil {
		return err
	}
	return c.ready()
}

// command is a program of PostgreSQL that ends when we do.
func (c *Cluster) command(name string, args ...string) *exec.Cmd {
	cmd := exec.Command(filepath.Join(c.bin, name), args...)
	cmd.Dir = c.dir
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C.UTF-8", "HOME=" + c.dir}
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: c.cred, Setpgid: true}
	return cmd
}

func (c *Cluster) data() string { return filepath.Join(c.dir, "data") }

// ready waits until it answers.
func (c *Cluster) ready() error {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	for {
		out, err := c.command("pg_isready", "-q", "-h", c.dir, "-d", "postgres").CombinedOutput()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			log, _ := os.ReadFile(c.log.Name()) //nolint:errcheck // for people
			return fmt.Errorf("PostgreSQL does not answer: %w: %s\n%s", err, out, log)
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// Database makes an empty database and returns its URL.
func (c *Cluster) Database() (string, error) {
	name := fmt.Sprint("fleet", c.made.Add(1))
	out, err := c.command("createdb", "-h", c.dir, "-U", "turnout", name).CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("createdb: %w: %s", err, out)
	}
	return "postgres://turnout@/" + name + "?host=" + url.QueryEscape(c.dir), nil
}

// Size returns the bytes of the cluster's files.
func (c *Cluster) Size() (n int64) {
	filepath.WalkDir(c.data(), func(_ string, d fs.DirEntry, err error) error { //nolint:errcheck // files come and go
		if err == nil && !d.IsDir() {
			if st, err := d.Info(); err == nil {
				n += st.Size()
			}
		}
		return nil
	})
	return n
}

// Stop ends it and forgets all it held.
func (c *Cluster) Stop() {
	if c.cmd != nil && c.cmd.Process != nil {
		c.cmd.Process.Signal(syscall.SIGQUIT) //nolint:errcheck // at once: nothing is to be kept
		c.cmd.Wait()                          //nolint:errcheck // told to
	}
	if c.log != nil {
		c.log.Close()
	}
	os.RemoveAll(c.dir)
}

// Main runs the tests of a package with one cluster for all. Without an
// installed PostgreSQL they get nil, which is a fault where CI is set.
func Main(m *testing.M, use func(*Cluster)) int {
	c, err := Start(false)
	switch {
	case errors.Is(err, ErrNone) && os.Getenv("CI") == "":
		return m.Run()
	case err != nil:
		fmt.Fprintln(os.Stderr, err)
		return 1
	}
	defer c.Stop()
	use(c)
	return m.Run()
}
