//go:build linux

package boot

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// machineIDFile is the file of the state partition that holds the machine id,
// in the format of machine-id(5).
const machineIDFile = "machine-id"

// bindMachineID puts the node's own machine id in the place of the image's
// empty /etc/machine-id. Without it systemd invents one at every boot, and
// journald opens a new folder of the journal for each.
func bindMachineID(root, state string) error {
	target := filepath.Join(root, "etc/machine-id")
	if fi, err := os.Lstat(target); err != nil || !fi.Mode().IsRegular() {
		return errors.Join(fmt.Errorf("the image has no file /etc/machine-id"), err)
	}
	file, err := keepMachineID(state)
	if err != nil {
		return err
	}
	if err := unix.Mount(file, target, "", unix.MS_BIND, ""); err != nil {
		return fmt.Errorf("binding /etc/machine-id: %w", err)
	}
	const flags = unix.MS_REMOUNT | unix.MS_BIND | unix.MS_RDONLY | unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC
	if err := unix.Mount("", target, "", flags, ""); err != nil {
		return fmt.Errorf("making /etc/machine-id read-only: %w", err)
	}
	return nil
}

// keepMachineID returns the path of the file on the state partition, which it
// makes unless there is a valid one.
func keepMachineID(state string) (string, error) {
	file := filepath.Join(state, machineIDFile)
	if b, err := os.ReadFile(file); err == nil && isMachineID(string(b)) {
		return file, nil
	}
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		return "", err
	}
	id[6], id[8] = id[6]&0x0f|0x40, id[8]&0x3f|0x80 // as a random UUID (RFC 9562, section 5.4)
	if err := writeWhole(file, []byte(hex.EncodeToString(id[:])+"\n")); err != nil {
		return "", fmt.Errorf("keeping a machine id: %w", err)
	}
	return file, nil
}

// isMachineID accepts 32 lower-case hexadecimal digits, not all zero, and a
// newline.
func isMachineID(s string) bool {
	id, ok := strings.CutSuffix(s, "\n")
	return ok && len(id) == 32 && strings.Trim(id, "0123456789abcdef") == "" && strings.Trim(id, "0") != ""
}

// writeWhole leaves the old file or the whole new one, whenever power fails.
func writeWhole(file string, b []byte) (err error) {
	tmp := file + ".new"
	f, err := os.OpenFile(tmp, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o444)
	if err != nil {
		return err
	}
	if _, err = f.Write(b); err == nil {
		err = f.Sync()
	}
	if err = errors.Join(err, f.Close()); err == nil {
		err = os.Rename(tmp, file)
	}
	if err != nil {
		return errors.Join(err, os.Remove(tmp))
	}
	return nil
}
