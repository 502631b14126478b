//go:build linux

package boot

import (
	"errors"
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// mounts are the file systems of the initrd, in order. All but the optional
// ones must succeed.
var mounts = []struct {
	fstype, target, options string
	flags                   uintptr
	optional                bool
}{
	{"devtmpfs", "/dev", "mode=0755", unix.MS_NOSUID, false},
	{"proc", "/proc", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, false},
	{"sysfs", "/sys", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, false},
	{"tmpfs", "/run", "mode=0755", unix.MS_NOSUID | unix.MS_NODEV, false},
	{"securityfs", "/sys/kernel/security", "", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, true},
}

// mountKernel mounts the kernel's own file systems.
func mountKernel() error {
	for _, m := range mounts {
		if err := os.MkdirAll(m.target, 0o755); err != nil && !m.optional {
			return err
		}
		err := unix.Mount(m.fstype, m.target, m.fstype, m.flags, m.options)
		if err != nil && !errors.Is(err, unix.EBUSY) && !m.optional {
			return fmt.Errorf("mounting %s on %s: %w", m.fstype, m.target, err)
		}
	}
	return nil
}

// mountEFI mounts the EFI variables; a kernel without EFI has none, and the
// file system may be a module.
func mountEFI(log Log) {
	const dir = "/sys/firmware/efi/efivars"
	if _, err := os.Stat(dir); err != nil {
		log("no EFI variables: the machine was not started by UEFI")
		return
	}
	err := unix.Mount("efivarfs", dir, "efivarfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "")
	if err != nil && !errors.Is(err, unix.EBUSY) {
		log("mounting the EFI variables: %v", err)
	}
}

// mountAt mounts a file system on target, which it makes.
func mountAt(source, target, fstype string, flags uintptr, options string) error {
	if err := os.MkdirAll(target, 0o755); err != nil {
		return err
	}
	if err := unix.Mount(source, target, fstype, flags, options); err != nil {
		return fmt.Errorf("mounting %s (%s) on %s: %w", source, fstype, target, err)
	}
	return nil
}
