// Package sandbox runs programs inside a root file system that is being
// built: in mount, PID, network, UTS and IPC namespaces of their own, with the
// tree as their only file system, without network, without the capabilities
// that reach the machine below, and with fsync(2) doing nothing (the tree is
// thrown away after a crash).
//
// Everything that is mounted is mounted in a namespace that belongs to one
// thread of this process. Whatever happens to the process, SIGKILL included,
// the kernel ends the programs and unmounts.
package sandbox

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// Sandbox is an open sandbox. It runs one command at a time.
type Sandbox struct {
	root  string
	init  *exec.Cmd      // PID 1 of the sandbox: waits for stdin to end
	stdin io.WriteCloser // closing it ends init and with it every process in the sandbox
	jobs  chan func()
	done  chan struct{} // closed once the thread is gone
}

// Cover hides a file of the tree from the programs inside.
type Cover struct {
	Path string // absolute, in the tree; nothing is covered if it is missing
	With string // another file of the tree: "/bin/true"
}

// Options of a sandbox.
type Options struct {
	Hostname string // "" means "localhost"
	Covers   []Cover
}

// Open makes a sandbox of the tree at root, which must hold /bin/cat. It
// needs root and the host's mount program.
func Open(root string, o Options) (*Sandbox, error) {
	root, err := filepath.Abs(root)
	if err != nil {
		return nil, err
	}
	if o.Hostname == "" {
		o.Hostname = "localhost"
	}
	s := &Sandbox{root: root, jobs: make(chan func()), done: make(chan struct{})}
	ready := make(chan error)
	go s.thread(o, ready)
	if err := <-ready; err != nil {
		<-s.done
		return nil, fmt.Errorf("sandbox of %q: %w", root, err)
	}
	return s, nil
}

// thread owns the namespaces. It never unlocks its thread, so that the thread
// ends with the goroutine and the mounts with the thread.
func (s *Sandbox) thread(o Options, ready chan<- error) {
	runtime.LockOSThread()
	if unix.Gettid() == unix.Getpid() {
		// The main thread cannot end before the process does. While this
		// goroutine holds it, another one is sure to get another thread.
		held := make(chan struct{})
		go func() {
			runtime.LockOSThread()
			close(held)
			s.serve(o, ready)
		}()
		<-held
		runtime.UnlockOSThread()
		return
	}
	s.serve(o, ready)
}

// serve runs jobs on this thread, inside the sandbox, until there are no more.
func (s *Sandbox) serve(o Options, ready chan<- error) {
	defer close(s.done)
	err := s.enter(o)
	ready <- err
	if err == nil {
		for job := range s.jobs {
			job()
		}
	}
	if s.stdin != nil {
		s.stdin.Close()
		_ = s.init.Wait()
	}
}

// enter moves the thread into the sandbox.
func (s *Sandbox) enter(o Options) error {
	if err := unix.Unshare(unix.CLONE_NEWNS | unix.CLONE_NEWNET | unix.CLONE_NEWUTS | unix.CLONE_NEWIPC); err != nil {
		return fmt.Errorf("making namespaces (it needs root): %w", err)
	}
	unix.Umask(0o022) // of this thread: unsharing the mounts unshared it
	if err := unix.Sethostname([]byte(o.Hostname)); err != nil {
		return err
	}
	if err := s.mounts(o.Covers); err != nil {
		return err
	}
	if err := canRun(s.root, runtime.GOARCH); err != nil {
		return err
	}
	if err := s.startInit(); err != nil {
		return err
	}
	if err := s.mountProc(); err != nil {
		return err
	}
	if err := pivot(s.root); err != nil {
		return err
	}
	return restrict()
}

// mounts makes the mounts that need no process inside.
func (s *Sandbox) mounts(covers []Cover) error {
	if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
		return fmt.Errorf("making mounts private: %w", err)
	}
	if err := unix.Mount(s.root, s.root, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("binding the tree: %w", err)
	}
	if err := unix.Mount("", s.root, "", unix.MS_BIND|unix.MS_REMOUNT|unix.MS_NODEV, ""); err != nil {
		return fmt.Errorf("binding the tree without devices: %w", err)
	}
	for _, t := range []struct {
		dir, mode string
	}{{"dev", "0755"}, {"run", "0755"}, {"tmp", "1777"}} {
		if err := s.mountpoint(t.dir); err != nil {
			return err
		}
		if err := unix.Mount("tmpfs", s.path(t.dir), "tmpfs", unix.MS_NOSUID, "mode="+t.mode); err != nil {
			return fmt.Errorf("mounting a tmpfs on /%s: %w", t.dir, err)
		}
	}
	if err := s.populateDev(); err != nil {
		return err
	}
	for _, c := range covers {
		if err := s.cover(c); err != nil {
			return err
		}
	}
	return nil
}

func (s *Sandbox) path(name string) string { return filepath.Join(s.root, name) }

// mountpoint makes the folder at the top of the tree and refuses anything
// else of that name: a link would lead the mount out of the tree.
func (s *Sandbox) mountpoint(name string) error {
	if err := os.Mkdir(s.path(name), 0o755); err != nil && !errors.Is(err, os.ErrExist) {
		return err
	}
	st, err := os.Lstat(s.path(name))
	if err != nil {
		return err
	}
	if !st.IsDir() {
		return fmt.Errorf("/%s of the tree is no folder", name)
	}
	return nil
}

func (s *Sandbox) populateDev() error {
	for _, name := range []string{"null", "zero", "full", "random", "urandom"} {
		at := s.path("dev/" + name)
		if err := os.WriteFile(at, nil, 0o666); err != nil {
			return err
		}
		if err := unix.Mount("/dev/"+name, at, "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("binding /dev/%s: %w", name, err)
		}
	}
	for name, target := range map[string]string{"fd": "/proc/self/fd", "stdin": "fd/0", "stdout": "fd/1", "stderr": "fd/2"} {
		if err := os.Symlink(target, s.path("dev/"+name)); err != nil {
			return err
		}
	}
	return os.Mkdir(s.path("dev/shm"), 0o777)
}

// cover binds one file of the tree over another; links in either path are
// resolved inside the tree.
func (s *Sandbox) cover(c Cover) error {
	root, err := unix.Open(s.root, unix.O_PATH|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(root)
	var fds [2]string
	for i, name := range []string{c.With, c.Path} {
		fd, err := unix.Openat2(root, strings.TrimPrefix(name, "/"), &unix.OpenHow{
			Flags: unix.O_PATH | unix.O_CLOEXEC, Resolve: unix.RESOLVE_IN_ROOT | unix.RESOLVE_NO_MAGICLINKS,
		})
		if err == unix.ENOENT && name == c.Path {
			return nil
		}
		if err != nil {
			return fmt.Errorf("covering %s: %q: %w", c.Path, name, err)
		}
		defer unix.Close(fd)
		fds[i] = fmt.Sprintf("/proc/thread-self/fd/%d", fd)
	}
	if err := unix.Mount(fds[0], fds[1], "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("covering %s: %w", c.Path, err)
	}
	return nil
}

// startInit starts PID 1 of the sandbox, the tree's own cat, and makes the
// thread's later children members of its PID namespace.
func (s *Sandbox) startInit() error {
	s.init = exec.Command("/bin/cat")
	s.init.Dir = "/"
	s.init.Env = []string{}
	s.init.SysProcAttr = &syscall.SysProcAttr{Chroot: s.root, Cloneflags: syscall.CLONE_NEWPID, Pdeathsig: syscall.SIGKILL}
	in, err := s.init.StdinPipe()
	if err != nil {
		return err
	}
	if err := s.init.Start(); err != nil {
		in.Close()
		return fmt.Errorf("starting /bin/cat of the tree: %w", err)
	}
	s.stdin = in
	ns, err := os.Open(fmt.Sprintf("/proc/%d/ns/pid", s.init.Process.Pid))
	if err != nil {
		return err
	}
	defer ns.Close()
	return unix.Setns(int(ns.Fd()), unix.CLONE_NEWPID)
}

// mountProc mounts the PID namespace's /proc. The kernel takes the namespace
// of the process that mounts, which must be inside: a child of this thread.
func (s *Sandbox) mountProc() error {
	if err := s.mountpoint("proc"); err != nil {
		return err
	}
	c := exec.Command("mount", "-t", "proc", "-o", "ro,nosuid,nodev,noexec", "proc", s.path("proc"))
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("mounting /proc with the host's mount program: %w: %s", err, out)
	}
	return nil
}

// pivot makes the tree this thread's root and leaves nothing else mounted.
func pivot(root string) error {
	if err := unix.Chdir(root); err != nil {
		return err
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivoting into the tree: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("leaving the host's file systems: %w", err)
	}
	return unix.Chdir("/")
}

// Command is a program to run inside.
type Command struct {
	Args   []string // the program by its absolute path in the tree, then its arguments
	Env    []string // the whole environment
	Output io.Writer
}

// Run runs a command to its end; its error is that of exec.Cmd.Run. When ctx
// ends, the program is killed; what it started lives until Close.
func (s *Sandbox) Run(ctx context.Context, c Command) error {
	result := make(chan error, 1)
	job := func() {
		cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
		cmd.Dir, cmd.Env = "/", c.Env
		cmd.Stdout, cmd.Stderr = c.Output, c.Output
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} // it dies with init: no Pdeathsig
		cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
		cmd.WaitDelay = waitDelay
		result <- cmd.Run()
	}
	select {
	case s.jobs <- job:
	case <-ctx.Done():
		return ctx.Err()
	}
	err := <-result
	if cerr := ctx.Err(); cerr != nil {
		return cerr
	}
	return err
}

// Close ends every process in the sandbox and waits until it is unmounted.
// It may be called again.
func (s *Sandbox) Close() error {
	select {
	case <-s.done:
		return nil
	default:
	}
	close(s.jobs)
	<-s.done
	return nil
}
