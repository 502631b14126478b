//go:build linux

package boot

import (
	"context"
	"fmt"
	"os"
	"runtime/debug"
	"time"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/buildinfo"
)

// resetDelay is how long a failure stays on the console before the reset.
const resetDelay = 10 * time.Second

// machine is the initrd at work.
type machine struct {
	cmdline  Cmdline
	modules  []string
	watchdog *Watchdog
	log      Log
	quiet    func() // gives the console its old level back
}

// Main is the whole life of PID 1 in an initrd. It does not return: either
// another program takes its place, or the machine is reset.
func Main() {
	m := &machine{log: func(string, ...any) {}, quiet: func() {}}
	err := m.guard()
	m.log("error: %v", err)
	m.reset(resetDelay)
}

// guard turns a panic into an error: a kernel whose PID 1 dies says less.
func (m *machine) guard() (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("bug in nodeagent: %v\n%s", r, debug.Stack())
		}
	}()
	return m.run(context.Background())
}

func (m *machine) run(ctx context.Context) error {
	if err := mountKernel(); err != nil {
		return err
	}
	m.log, m.quiet = kernelLog()
	m.log("nodeagent %s is PID 1", buildinfo.Version())
	b, err := os.ReadFile("/proc/cmdline")
	if err != nil {
		return err
	}
	panicResets(m.log)
	if m.cmdline, err = ParseCmdline(string(b)); err != nil {
		return err
	}
	if m.modules, err = readModules(ModulesList); err != nil {
		return fmt.Errorf("list of modules: %w", err)
	}
	loadModules(m.modules, m.log)
	if m.cmdline.Installer && m.cmdline.Watchdog == 0 {
		m.cmdline.Watchdog = installerWatchdog
	}
	m.watchdog = openWatchdog(m.cmdline.Watchdog, m.modules, m.log)
	mountEFI(m.log)
	m.measure(ctx, "enter-initrd")
	if m.cmdline.Installer {
		return m.install(ctx)
	}
	return m.bootSlot(ctx)
}

// panicResets makes the kernel reset the machine some seconds after a panic
// where the command line does not say so.
func panicResets(log Log) {
	const file = "/proc/sys/kernel/panic"
	if b, err := os.ReadFile(file); err == nil && len(b) > 0 && b[0] == '0' {
		if err := os.WriteFile(file, []byte("10"), 0); err != nil {
			log("warning: %s: %v", file, err)
		}
	}
}

// reset restarts the machine after a pause in which people may read.
func (m *machine) reset(after time.Duration) {
	m.log("the machine is reset in %s", after)
	unix.Sync()
	time.Sleep(after)
	if err := unix.Reboot(unix.LINUX_REBOOT_CMD_RESTART); err != nil {
		m.log("error: reset: %v", err)
	}
	for { // the watchdog's turn
		time.Sleep(time.Hour)
	}
}
