//go:build linux

package boot

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// toolTimeout bounds mkfs and fsck of the state partition.
const toolTimeout = 10 * time.Minute

// openState mounts the state partition on target. One without a file system
// gets one; one that cannot be mended gets a new one, because a node that
// does not come up for the sake of a cache is worse than one that lost it.
// The tools are those of the verified root.
func openState(dev, root, target string, w *Watchdog, log Log) error {
	tools := tools{root: root, watchdog: w, log: log}
	has, err := hasExt4(dev)
	if err != nil {
		return err
	}
	if has {
		if err := tools.check(dev); err != nil {
			log("warning: %v", err)
		} else if err := mountState(dev, target); err != nil {
			log("warning: %v", err)
		} else {
			return nil
		}
		log("the state partition %s cannot be mended: it is made anew and what was on it is lost", dev)
	} else {
		log("the state partition %s carries no file system: making one", dev)
	}
	if err := tools.make(dev); err != nil {
		return err
	}
	return mountState(dev, target)
}

func mountState(dev, target string) error {
	return mountAt(dev, target, "ext4", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOATIME, "errors=remount-ro")
}

// hasExt4 looks for the magic number of an ext2, 3 or 4 superblock.
func hasExt4(dev string) (bool, error) {
	f, err := os.Open(dev)
	if err != nil {
		return false, fmt.Errorf("state partition: %w", err)
	}
	defer f.Close()
	var b [2]byte
	if _, err := f.ReadAt(b[:], 1024+56); err != nil {
		return false, fmt.Errorf("state partition %s: %w", dev, err)
	}
	return binary.LittleEndian.Uint16(b[:]) == 0xef53, nil
}

// tools runs programs of the verified root.
type tools struct {
	root     string
	watchdog *Watchdog
	log      Log
}

// check mends a file system: e2fsck with -p, and with -y where that is not
// enough. Exit status 0 is clean, 1 mended, 2 mended but "reboot" (which
// matters to mounted file systems only).
func (t tools) check(dev string) error {
	if err := t.run(2, "/sbin/e2fsck", "-p", dev); err == nil {
		return nil
	}
	return t.run(2, "/sbin/e2fsck", "-y", "-f", dev)
}

func (t tools) make(dev string) error {
	return t.run(0, "/sbin/mkfs.ext4", "-q", "-F", "-m", "0", "-L", "state", dev)
}

// run runs argv inside root; exit statuses up to ok are success.
func (t tools) run(ok int, argv ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), toolTimeout)
	defer cancel()
	t.watchdog.Grant(toolTimeout)
	defer t.watchdog.Revoke()
	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Dir, cmd.Env = "/", []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.SysProcAttr = &syscall.SysProcAttr{Chroot: t.root}
	cmd.WaitDelay = 5 * time.Second
	err := cmd.Run()
	var exit *exec.ExitError
	if errors.As(err, &exit) && exit.ExitCode() > 0 && exit.ExitCode() <= ok {
		err = nil
	}
	text := strings.TrimSpace(out.String())
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(argv, " "), err, text)
	}
	if text != "" {
		t.log("%s", text)
	}
	return nil
}
