//go:build linux

package guest

import (
	"fmt"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/turnout-project/turnout/internal/initrd"
)

// IsInit reports whether the program runs as PID 1 of a guest.
func IsInit() bool { return os.Getpid() == 1 }

// Main is the life of a guest: it mounts what programs expect, loads the
// modules of the initrd, calls f and switches the machine off. It does not
// return.
func Main(f func() error) {
	err := prepare()
	if err == nil {
		err = f()
	}
	if err != nil {
		fmt.Println("guest failed:", err)
	}
	unix.Sync()
	_ = unix.Reboot(unix.LINUX_REBOOT_CMD_POWER_OFF)
	select {}
}

func prepare() error {
	for _, m := range []struct{ fs, at string }{{"proc", "/proc"}, {"sysfs", "/sys"}, {"devtmpfs", "/dev"}, {"tmpfs", "/tmp"}, {"tmpfs", "/run"}} {
		if err := os.MkdirAll(m.at, 0o755); err != nil {
			return err
		}
		if err := unix.Mount(m.fs, m.at, m.fs, 0, ""); err != nil && err != unix.EBUSY {
			return fmt.Errorf("mounting %s: %w", m.at, err)
		}
	}
	list, err := os.ReadFile(initrd.ListPath)
	if err != nil {
		return err
	}
	for _, p := range strings.Fields(string(list)) {
		f, err := os.Open(p)
		if err != nil {
			return err
		}
		if err := unix.FinitModule(int(f.Fd()), "", 0); err != nil {
			return fmt.Errorf("loading %s: %w", p, err)
		}
		f.Close()
	}
	return nil
}
