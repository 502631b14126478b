// Package localvm boots an image on the build host: a disk with the image in
// slot A, UEFI firmware, a software TPM, and the serial console on the
// terminal. It needs neither root nor a network, in contrast to the racks of
// vmtest, whose machines talk to each other and whose power the tests cut.
package localvm

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"syscall"
	"time"

	"github.com/turnout-project/turnout/internal/oci"
)

// Options say how an image is booted.
type Options struct {
	Dir       string // work folder of this machine alone: disk, NVRAM, TPM
	MemoryMiB int
	CPUs      int
	Accel     string    // of QEMU: "kvm", "tcg,thread=multi"; "" takes kvm if the host has it
	In        io.Reader // console input; nil: none
	Out       io.Writer // console output
	// Until ends the machine once the console shows it; "" leaves it to the
	// machine and to whoever sits at the console.
	Until string
	// Seen is called with the control socket of the machine's TPM once the
	// console has shown Until and the machine was ended; nil: not wanted.
	Seen func(tpm string) error
}

// ErrEnded is wrapped when the machine ended before it showed Until.
var ErrEnded = errors.New("the machine ended")

// Run boots an image and returns when the machine has ended, ctx has, or the
// console shows Until.
func Run(ctx context.Context, l *oci.Layout, img *oci.Image, o Options) error {
	m, err := machineFor(img.Manifest.Architecture)
	if err != nil {
		return fmt.Errorf("image %s is for %s: %w", img.Manifest.Label(), img.Manifest.Architecture, err)
	}
	if err := WriteDisk(ctx, l, img, filepath.Join(o.Dir, "disk.img")); err != nil {
		return err
	}
	vars, err := os.ReadFile(m.vars)
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(o.Dir, "vars.fd"), vars, 0o600); err != nil {
		return err
	}
	life, end := context.WithCancel(ctx) // of the TPM: longer than the machine's
	defer end()
	tpm, err := startTPM(life, o.Dir)
	if err != nil {
		return err
	}
	defer func() { end(); _ = tpm.Wait() }() // killed by its context
	running, cancel := context.WithCancel(life)
	defer cancel()
	if err := o.boot(running, cancel, m, img.Manifest.Architecture); err != nil || o.Seen == nil {
		return err
	}
	return o.Seen(filepath.Join(o.Dir, "tpm.sock"))
}

// boot runs QEMU.
func (o *Options) boot(ctx context.Context, cancel func(), m machine, architecture string) error {
	console := &watcher{out: o.Out, text: o.Until, seen: cancel}
	cmd := exec.CommandContext(ctx, m.qemu, o.arguments(m, architecture)...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = o.In, console, os.Stderr
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	cmd.WaitDelay = time.Second // a terminal that nobody types at keeps Wait no longer
	err := cmd.Run()
	switch {
	case console.found():
		return nil
	case ctx.Err() != nil:
		return ctx.Err()
	case err != nil:
		return fmt.Errorf("%s: %w", m.qemu, err)
	case o.Until != "":
		return fmt.Errorf("%w without showing %q", ErrEnded, o.Until)
	}
	return nil
}

func (o *Options) arguments(m machine, architecture string) []string {
	accel, cpu := m.accelerator(o.Accel, architecture)
	in := func(name string) string { return filepath.Join(o.Dir, name) }
	return []string{
		"-machine", m.board, "-accel", accel, "-cpu", cpu, "-smp", fmt.Sprint(max(o.CPUs, 1)), "-m", fmt.Sprint(max(o.MemoryMiB, 512)),
		"-display", "none", "-nodefaults", "-no-reboot", "-nic", "none",
		"-drive", "if=pflash,format=raw,readonly=on,file=" + m.code,
		"-drive", "if=pflash,format=raw,file=" + in("vars.fd"),
		"-chardev", "socket,id=tpm,path=" + in("tpm.sock"), "-tpmdev", "emulator,id=tpm0,chardev=tpm", "-device", m.tpm + ",tpmdev=tpm0",
		"-drive", "if=none,id=disk,format=raw,discard=unmap,file=" + in("disk.img"), "-device", "virtio-blk-pci,drive=disk,bootindex=1",
		"-device", "virtio-rng-pci", "-device", "i6300esb", "-action", "watchdog=reset",
		"-serial", "mon:stdio",
	}
}

// startTPM runs a new TPM and waits for its socket.
func startTPM(ctx context.Context, dir string) (*exec.Cmd, error) {
	state, socket := filepath.Join(dir, "tpm"), filepath.Join(dir, "tpm.sock")
	if err := os.MkdirAll(state, 0o700); err != nil {
		return nil, err
	}
	_ = os.Remove(socket) // of an earlier run
	cmd := exec.CommandContext(ctx, "swtpm", "socket", "--tpm2", "--tpmstate", "dir="+state, "--ctrl", "type=unixio,path="+socket,
		"--log", "level=1,file="+filepath.Join(dir, "swtpm.log"))
	cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("swtpm: %w", err)
	}
	for range 200 {
		if _, err := os.Stat(socket); err == nil {
			return cmd, nil
		}
		select {
		case <-ctx.Done():
			return nil, errors.Join(ctx.Err(), cmd.Wait())
		case <-time.After(50 * time.Millisecond):
		}
	}
	_ = cmd.Process.Kill()
	return nil, fmt.Errorf("swtpm did not open %q: %w; see swtpm.log beside it", socket, cmd.Wait())
}

// watcher copies the console and looks for a text, colours aside.
type watcher struct {
	mu    sync.Mutex
	out   io.Writer
	text  string
	tail  string // what was shown last
	seen  func()
	shown bool
}

// escape matches what terminals do not show (ECMA-48, CSI sequences).
var escape = regexp.MustCompile(`\x1b\[[0-9;?]*[A-Za-z]`)

// tailBytes is more than any escape sequence has.
const tailBytes = 256

func (w *watcher) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.text != "" && !w.shown {
		// A sequence that is not whole yet stays in the tail, and is none then.
		w.tail = escape.ReplaceAllString(w.tail+string(p), "")
		if strings.Contains(w.tail, w.text) {
			w.shown = true
			w.seen()
		}
		w.tail = w.tail[max(0, len(w.tail)-len(w.text)-tailBytes):]
	}
	return w.out.Write(p)
}

func (w *watcher) found() bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.shown
}
