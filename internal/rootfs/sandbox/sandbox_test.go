package sandbox

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"
)

// victim names the tree in which a second run of this test program opens a
// sandbox, to be killed.
const victim = "TURNOUT_TEST_SANDBOX_VICTIM"

func TestMain(m *testing.M) {
	if root := os.Getenv(victim); root != "" {
		if err := beVictim(root); err != nil {
			fmt.Println(err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func beVictim(root string) error {
	s, err := Open(root, Options{})
	if err != nil {
		return err
	}
	return s.Run(context.Background(), Command{Args: []string{"/bin/sh", "-c", "/bin/sleep 86399 & echo ready; exec /bin/sleep 86399"}, Output: os.Stdout})
}

// newTree returns a tree with a few of the host's programs in it.
func newTree(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		if os.Getenv("CI") != "" {
			t.Fatal("this test needs root")
		}
		t.Skip("this test needs root")
	}
	root := t.TempDir()
	lib := regexp.MustCompile(`/\S+`)
	for _, name := range []string{"/bin/sh", "/bin/cat", "/bin/sleep", "/bin/ls", "/bin/sync", "/bin/mknod", "/bin/true", "/bin/false", "/bin/mount"} {
		files := []string{name}
		out, err := exec.Command("ldd", name).Output()
		if err != nil {
			t.Fatalf("ldd %s: %v", name, err)
		}
		for _, f := range append(files, lib.FindAllString(string(out), -1)...) {
			data, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			at := filepath.Join(root, f)
			if err := os.MkdirAll(filepath.Dir(at), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(at, data, 0o755); err != nil {
				t.Fatal(err)
			}
		}
	}
	return root
}

func newSandbox(t *testing.T, root string, o Options) *Sandbox {
	t.Helper()
	s, err := Open(root, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func shell(t *testing.T, s *Sandbox, script string) (string, error) {
	t.Helper()
	var out bytes.Buffer
	err := s.Run(t.Context(), Command{Args: []string{"/bin/sh", "-c", script}, Output: &out, Env: []string{"A=b", "PATH=/bin"}})
	return out.String(), err
}

func TestInside(t *testing.T) {
	root := newTree(t)
	if err := os.MkdirAll(root+"/etc", 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("SECRET", "of the caller")
	s := newSandbox(t, root, Options{Hostname: "inside", Covers: []Cover{{"/bin/false", "/bin/true"}, {"/bin/missing", "/bin/true"}}})
	tests := []struct{ name, script, want string }{
		{"hostname", "cat /proc/sys/kernel/hostname", "inside\n"},
		{"environment", "echo $A $SECRET", "b\n"},
		{"network", "while read -r line; do echo ${line%%:*}; done < /proc/net/dev", "Inter-|   Receive                                                |  Transmit\nface |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\nlo\n"},
		{"init", "cat /proc/1/cmdline", "/bin/cat\x00"},
		{"root", "ls -d /proc /etc " + root + " 2>/dev/null; true", "/etc\n/proc\n"},
		{"umask", "umask", "0022\n"},
		{"cover", "/bin/false && echo covered", "covered\n"},
		{"devices", "echo x > /dev/null; ls /dev", "fd\nfull\nnull\nrandom\nshm\nstderr\nstdin\nstdout\nurandom\nzero\n"},
		{"/proc/sys cannot be written", "(echo 1 > /proc/sys/kernel/panic) 2>/dev/null || echo no", "no\n"},
		{"own devices do not work", "mknod /tmp/null c 1 3; mknod /null c 1 3 && (echo x > /null) 2>/dev/null || echo no", "no\n"},
		{"mounting", "mount -t tmpfs t /etc 2>/dev/null || echo no", "no\n"},
		{"sync", "sync && echo done", "done\n"},
		{"/tmp", "echo x > /tmp/left; ls /tmp/left", "/tmp/left\n"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got, err := shell(t, s, tt.script)
			if err != nil || strings.Join(strings.Fields(got), " ") != strings.Join(strings.Fields(tt.want), " ") {
				t.Errorf("%s = %q, %v; want %q", tt.script, got, err, tt.want)
			}
		})
	}
	if _, err := shell(t, s, "exit 3"); !isExit(err, 3) {
		t.Errorf("exit 3 = %v", err)
	}
	if mounts, err := os.ReadFile("/proc/self/mountinfo"); err != nil || bytes.Contains(mounts, []byte(root)) {
		t.Errorf("mounts of the sandbox are visible outside: %s, %v", mounts, err)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(root + "/tmp/left"); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("what was written to /tmp is in the tree: %v", err)
	}
	if host, err := os.Hostname(); err != nil || host == "inside" {
		t.Errorf("the host's name is %q, %v", host, err)
	}
}

func isExit(err error, code int) bool {
	var e *exec.ExitError
	return errors.As(err, &e) && e.ExitCode() == code
}

// sleepers counts the processes of the machine that sleep for so long.
func sleepers(t *testing.T, seconds string) int {
	t.Helper()
	n := 0
	names, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if line, err := os.ReadFile(name); err == nil && string(line) == "/bin/sleep\x00"+seconds+"\x00" {
			n++
		}
	}
	return n
}

// TestCloseKills: a daemon that a script left behind does not outlive the
// sandbox, and does not keep Run waiting.
func TestCloseKills(t *testing.T) {
	s := newSandbox(t, newTree(t), Options{})
	if out, err := shell(t, s, "/bin/sleep 86398 >/dev/null 2>&1 & echo started"); err != nil || out != "started\n" {
		t.Fatalf("%q, %v", out, err)
	}
	if n := sleepers(t, "86398"); n != 1 {
		t.Fatalf("%d daemons; want 1", n)
	}
	if err := s.Close(); err != nil {
		t.Fatal(err)
	}
	if n := sleepers(t, "86398"); n != 0 {
		t.Errorf("%d daemons after Close; want none", n)
	}
	if err := s.Close(); err != nil {
		t.Errorf("second Close: %v", err)
	}
}

func TestCancel(t *testing.T) {
	s := newSandbox(t, newTree(t), Options{})
	ctx, cancel := context.WithCancel(t.Context())
	r, w := io.Pipe()
	go func() {
		_, _ = r.Read(make([]byte, 1)) // it runs
		cancel()
		_, _ = io.Copy(io.Discard, r)
	}()
	err := s.Run(ctx, Command{Args: []string{"/bin/sh", "-c", "echo; /bin/sleep 86397; echo"}, Output: w})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Run = %v; want %v", err, context.Canceled)
	}
	if n := sleepers(t, "86397"); n != 0 {
		t.Errorf("%d processes after cancelling; want none", n)
	}
}

// TestKilled: when the builder is killed, the kernel ends everything in the
// sandbox; its mounts never were anywhere else.
func TestKilled(t *testing.T) {
	root := newTree(t)
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), victim+"="+root)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line := make([]byte, len("ready\n"))
	if _, err := io.ReadFull(out, line); err != nil || string(line) != "ready\n" {
		rest, _ := io.ReadAll(out)
		t.Fatalf("victim said %q%s, %v", line, rest, err)
	}
	if err := cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait()
	deadline := time.Now().Add(30 * time.Second)
	for sleepers(t, "86399") > 0 {
		if time.Now().After(deadline) {
			t.Fatal("processes of the sandbox outlived the builder")
		}
		time.Sleep(time.Millisecond)
	}
	if err := os.RemoveAll(root); err != nil {
		t.Errorf("something is still mounted: %v", err)
	}
}

// TestManyThreads opens sandboxes from every kind of thread. One that took the
// main thread would leave the whole process inside.
func TestManyThreads(t *testing.T) {
	root := newTree(t)
	for range 50 {
		s, err := Open(root, Options{})
		if err != nil {
			t.Fatal(err)
		}
		mounts, err := os.ReadFile("/proc/self/mountinfo") // that of the main thread
		if err != nil || bytes.Contains(mounts, []byte(root)) {
			t.Errorf("the main thread is inside (%v)", err)
		}
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

func TestOpenErrors(t *testing.T) {
	root := newTree(t)
	outside := t.TempDir()
	if err := os.Remove(root + "/dev"); err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	if err := os.Symlink(outside, root+"/dev"); err != nil {
		t.Fatal(err)
	}
	if s, err := Open(root, Options{}); err == nil {
		s.Close()
		t.Error("a tree whose /dev leads out was opened")
	}
	if entries, err := os.ReadDir(outside); err != nil || len(entries) > 0 {
		t.Errorf("outside: %v, %v", entries, err)
	}
	if s, err := Open(t.TempDir(), Options{}); err == nil {
		s.Close()
		t.Error("an empty tree was opened")
	}
}
