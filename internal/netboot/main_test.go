package netboot

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/fleet"
)

// The tests run in a network namespace of their own, so that they may use the
// real ports and make links: TestMain starts the test binary again inside
// one. Machines on the wire are processes with a namespace each; everything
// vanishes with the processes.
const (
	envInside = "NETBOOT_TEST_INSIDE"
	envHold   = "NETBOOT_TEST_HOLD"
)

func TestMain(m *testing.M) {
	switch {
	case os.Getenv(envHold) != "": // a namespace lives as long as a process in it
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	case os.Getenv(envInside) != "":
		if err := prepareNamespace(); err != nil {
			fmt.Fprintln(os.Stderr, "preparing network namespace:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	case os.Getuid() != 0:
		os.Exit(m.Run()) // tests with needRoot say that they were not run
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), envInside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			os.Exit(exit.ExitCode())
		}
		fmt.Fprintln(os.Stderr, "starting tests in a network namespace:", err)
		os.Exit(1)
	}
}

// prepareNamespace makes /sys show this namespace's interfaces and brings
// loopback up.
func prepareNamespace() error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return err
	}
	if err := unix.Mount("sysfs", "/sys", "sysfs", 0, ""); err != nil && !errors.Is(err, unix.EBUSY) {
		return err // EBUSY: a fuzz worker, started from within
	}
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	return netlink.LinkSetUp(lo)
}

// needRoot skips a test that needs the namespace. On CI it must not be
// skipped.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Getenv(envInside) == "" {
		missing(t, "needs root")
	}
}

func needTool(t *testing.T, names ...string) {
	t.Helper()
	for _, n := range names {
		if _, err := exec.LookPath(n); err != nil {
			missing(t, "needs "+n)
		}
	}
}

func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// host is a machine on the wire: a network namespace held by a process.
type host struct {
	t    *testing.T
	pid  int
	name string
}

// newHost makes a namespace whose interface eth0 is wired to the interface
// name on our side, which is left without an address.
func newHost(t *testing.T, name string) *host {
	t.Helper()
	needRoot(t)
	cmd := exec.Command("/proc/self/exe")
	cmd.Env = append(os.Environ(), envHold+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	stdin, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	h := &host{t, cmd.Process.Pid, name}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = netlink.LinkDel(veth)
		stdin.Close()
		_ = cmd.Wait()
	})
	peer, err := netlink.LinkByName(name + "p")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetNsPid(peer, h.pid); err != nil {
		t.Fatal(err)
	}
	link(t, name)
	h.run("ip", "link", "set", "lo", "up")
	h.run("ip", "link", "set", name+"p", "name", "eth0")
	h.run("ip", "link", "set", "eth0", "up")
	return h
}

func (h *host) command(args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"-t", strconv.Itoa(h.pid), "-n", "--"}, args...)...)
}

func (h *host) run(args ...string) string {
	h.t.Helper()
	out, err := h.command(args...).CombinedOutput()
	if err != nil {
		h.t.Fatalf("%s: %v\n%s", strings.Join(args, " "), err, out)
	}
	return string(out)
}

// link brings an interface of ours up and gives it addresses.
func link(t *testing.T, name string, addrs ...string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range addrs {
		a, err := netlink.ParseAddr(s)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.AddrAdd(l, a); err != nil {
			t.Fatal(err)
		}
	}
	if err := netlink.LinkSetUp(l); err != nil {
		t.Fatal(err)
	}
	return l
}

// recorder collects events.
type recorder struct {
	mu  sync.Mutex
	all []string
}

func (r *recorder) event(kind string, mac fleet.MAC, message string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.all = append(r.all, fmt.Sprintf("%s %s %s", kind, mac, message))
}

func (r *recorder) String() string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return strings.Join(r.all, "\n")
}

func (r *recorder) count(kind string) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 0
	for _, e := range r.all {
		if strings.HasPrefix(e, kind+" ") {
			n++
		}
	}
	return n
}

// waitFor waits for something that happens on another goroutine or machine.
func waitFor(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}

// memFile is an Answer.Open over bytes.
func memFile(b []byte) func() (io.ReadSeekCloser, error) {
	return func() (io.ReadSeekCloser, error) { return nopCloser{bytes.NewReader(b)}, nil }
}

type nopCloser struct{ io.ReadSeeker }

func (nopCloser) Close() error { return nil }

// installer is an answer that hands out b.
func installer(b []byte) Answer {
	return Answer{Kind: AnswerInstaller, Reason: "test", File: "b/0123456789ab/installer.efi", Size: int64(len(b)), Open: memFile(b)}
}

// always is a policy with one answer.
func always(a Answer) Policy {
	return PolicyFunc(func(context.Context, Client) (Answer, error) { return a, nil })
}

// testLog writes to the test's log.
func testLog(t *testing.T) *slog.Logger {
	return slog.New(slog.NewTextHandler(testWriter{t}, &slog.HandlerOptions{Level: slog.LevelDebug}))
}

type testWriter struct{ t *testing.T }

func (w testWriter) Write(p []byte) (int, error) {
	w.t.Log(strings.TrimRight(string(p), "\n"))
	return len(p), nil
}

// start runs s until the test ends.
func start(t *testing.T, s *Server) *recorder {
	t.Helper()
	rec := &recorder{}
	s.Events = rec.event
	if s.Log == nil {
		s.Log = testLog(t)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Serve(ctx) }()
	select {
	case <-s.Ready():
	case err := <-done:
		cancel()
		t.Fatalf("Serve: %v", err)
	}
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Errorf("Serve: %v", err)
		}
	})
	return rec
}

// rackConfig serves 10.77.0.0/24 from 10.77.0.1, on the ports of the real
// world.
func rackConfig() Config {
	c := DefaultConfig()
	c.Ports.HTTP = 8080
	c.NodeAPI = "https://10.77.0.1:8443"
	c.Subnets = []Subnet{{
		Prefix: netip.MustParsePrefix("10.77.0.0/24"),
		Pools:  []Range{{netip.MustParseAddr("10.77.0.100"), netip.MustParseAddr("10.77.0.199")}},
		Router: netip.MustParseAddr("10.77.0.1"),
		DNS:    []netip.Addr{netip.MustParseAddr("10.77.0.1")},
	}}
	return c
}

// lockedBuffer collects the output of a process that still runs.
type lockedBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (b *lockedBuffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.Write(p)
}

func (b *lockedBuffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.b.String()
}
