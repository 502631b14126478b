// Package wiretest gives tests a network of their own: the test binary runs
// inside a fresh network namespace, where it may use the real ports and make
// links, and machines on the wire are processes with a namespace each.
// Everything vanishes with the processes. For tests only; needs root.
package wiretest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

const (
	envInside = "WIRETEST_INSIDE"
	envHold   = "WIRETEST_HOLD"
)

// Main is the body of TestMain. It starts the test binary again inside a
// namespace of its own; without root it runs the tests as they are, and those
// that call NeedRoot are skipped.
func Main(m *testing.M) {
	switch {
	case os.Getenv(envHold) != "": // a namespace lives as long as a process in it
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	case os.Getenv(envInside) != "":
		if err := prepare(); err != nil {
			fmt.Fprintln(os.Stderr, "preparing network namespace:", err)
			os.Exit(1)
		}
		os.Exit(m.Run())
	case os.Getuid() != 0:
		os.Exit(m.Run())
	}
	cmd := exec.Command("/proc/self/exe", os.Args[1:]...)
	cmd.Env = append(os.Environ(), envInside+"=1")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = os.Stdin, os.Stdout, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET | syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		os.Exit(exit.ExitCode())
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "starting tests in a network namespace:", err)
		os.Exit(1)
	}
}

// prepare makes /sys show this namespace's interfaces and brings loopback up.
func prepare() error {
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

// NeedRoot skips a test that needs the namespace.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Getenv(envInside) == "" {
		Missing(t, "needs root")
	}
}

// NeedTool skips a test that needs programs which are not installed.
func NeedTool(t testing.TB, names ...string) {
	t.Helper()
	for _, n := range names {
		if _, err := exec.LookPath(n); err != nil {
			Missing(t, "needs "+n)
		}
	}
}

// Missing skips the test, or fails it on CI, where everything has to be
// there.
func Missing(t testing.TB, what string) {
	t.Helper()
	if os.Getenv("CI") != "" {
		t.Fatal(what)
	}
	t.Skip(what)
}

// Host is a machine on the wire: a namespace whose interface eth0 is cabled
// to the interface Name on our side.
type Host struct {
	Name string
	PID  int // of the process that holds the namespace
	t    testing.TB
}

// NewHost makes a host. Both ends of the cable are up and have no address.
func NewHost(t testing.TB, name string) *Host {
	t.Helper()
	NeedRoot(t)
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
	h := &Host{Name: name, PID: cmd.Process.Pid, t: t}
	veth := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: name}, PeerName: name + "p"}
	t.Cleanup(func() {
		_ = netlink.LinkDel(veth)
		stdin.Close()
		_ = cmd.Wait()
	})
	if err := netlink.LinkAdd(veth); err != nil {
		t.Fatal(err)
	}
	peer, err := netlink.LinkByName(name + "p")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetNsPid(peer, h.PID); err != nil {
		t.Fatal(err)
	}
	Link(t, name)
	h.Run("ip", "link", "set", "lo", "up")
	h.Run("ip", "link", "set", name+"p", "name", "eth0")
	h.Run("ip", "link", "set", "eth0", "up")
	return h
}

// Command is exec.Command inside the host's namespace.
func (h *Host) Command(args ...string) *exec.Cmd {
	return exec.Command("nsenter", append([]string{"-t", strconv.Itoa(h.PID), "-n", "--"}, args...)...)
}

// Run runs a command in the host to its end and returns what it printed.
func (h *Host) Run(args ...string) string {
	h.t.Helper()
	var out, errOut bytes.Buffer
	cmd := h.Command(args...)
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		h.t.Fatalf("%s: %v\n%s%s", strings.Join(args, " "), err, &out, &errOut)
	}
	return out.String()
}

// Do runs f inside the host's namespace: sockets that it opens stay there. f
// must not start goroutines that open more.
func (h *Host) Do(f func() error) {
	h.t.Helper()
	done := make(chan error)
	go func() { done <- inNamespace(fmt.Sprintf("/proc/%d/ns/net", h.PID), f) }()
	if err := <-done; err != nil {
		h.t.Fatal(err)
	}
}

// inNamespace puts the thread back where it was: a thread that ends takes the
// processes with it that it started (PR_SET_PDEATHSIG).
func inNamespace(path string, f func() error) error {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return err
	}
	defer home.Close()
	ns, err := os.Open(path)
	if err != nil {
		return err
	}
	defer ns.Close()
	if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
		return err
	}
	ferr := f()
	if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
		return err // the thread stays locked and ends with this goroutine
	}
	runtime.UnlockOSThread()
	return ferr
}

// Link brings an interface of ours up and gives it addresses.
func Link(t testing.TB, name string, addrs ...string) netlink.Link {
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

// WaitFor waits for something that happens on another goroutine or machine.
func WaitFor(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited in vain for %s", what)
		}
	}
}
