// Package dm makes and removes device-mapper devices through the ioctls of
// /dev/mapper/control (Linux include/uapi/linux/dm-ioctl.h, interface 4).
// It knows no target: the table's parameters are the caller's, see
// internal/verity.
package dm

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Control is the device that takes the ioctls. devtmpfs makes it once the
// kernel has device-mapper.
const Control = "/dev/mapper/control"

// Target is the one line of a device's table; it starts at sector 0.
type Target struct {
	Type    string // "verity"
	Sectors uint64 // of 512 bytes
	Params  string
}

// The layout of struct dm_ioctl and of struct dm_target_spec, in bytes.
const (
	headerSize = 312
	specSize   = 40
	nameSize   = 128
	uuidSize   = 129
	bufferSize = 16 << 10

	offDataSize    = 12
	offDataStart   = 16
	offTargetCount = 20
	offFlags       = 28
	offDev         = 40
	offName        = 48
	offUUID        = 176
)

const (
	cmdCreate      = 3
	cmdRemove      = 4
	cmdSuspend     = 6 // resumes when flagSuspend is absent
	cmdTableLoad   = 9
	cmdTableStatus = 12

	flagReadOnly = 1 << 0
)

// Create makes a read-only device with the table t and starts it. uuid may be
// empty; the convention for verity is "CRYPT-VERITY-<hex>-<name>". It returns
// the device's path, "/dev/dm-N". A device that could not be started is
// removed again.
func Create(name, uuid string, t Target) (string, error) {
	c, err := os.OpenFile(Control, os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("device-mapper: %w; is the module dm_mod loaded?", err)
	}
	defer c.Close()
	b, err := request(name, uuid, flagReadOnly)
	if err != nil {
		return "", err
	}
	if err := call(c, cmdCreate, b); err != nil {
		return "", fmt.Errorf("making device-mapper device %s: %w", name, err)
	}
	if err := start(c, name, t); err != nil {
		return "", errors.Join(err, remove(c, name))
	}
	dev := binary.NativeEndian.Uint64(b[offDev:])
	return fmt.Sprintf("/dev/dm-%d", unix.Minor(dev)), nil
}

// start loads the table and resumes the device.
func start(c *os.File, name string, t Target) error {
	b, err := request(name, "", flagReadOnly)
	if err != nil {
		return err
	}
	if err := putTarget(b, t); err != nil {
		return err
	}
	if err := call(c, cmdTableLoad, b); err != nil {
		return fmt.Errorf("loading table of device-mapper device %s (%s %s): %w", name, t.Type, t.Params, err)
	}
	if b, err = request(name, "", flagReadOnly); err != nil {
		return err
	}
	if err := call(c, cmdSuspend, b); err != nil {
		return fmt.Errorf("starting device-mapper device %s: %w", name, err)
	}
	return nil
}

// Remove removes a device that nobody uses.
func Remove(name string) error {
	c, err := os.OpenFile(Control, os.O_RDWR, 0)
	if err != nil {
		return fmt.Errorf("device-mapper: %w", err)
	}
	defer c.Close()
	return remove(c, name)
}

func remove(c *os.File, name string) error {
	b, err := request(name, "", 0)
	if err != nil {
		return err
	}
	if err := call(c, cmdRemove, b); err != nil {
		return fmt.Errorf("removing device-mapper device %s: %w", name, err)
	}
	return nil
}

// Status returns the target's own words about its state; verity says "V" for
// valid and "C" once a block was found corrupt.
func Status(name string) (string, error) {
	c, err := os.OpenFile(Control, os.O_RDWR, 0)
	if err != nil {
		return "", fmt.Errorf("device-mapper: %w", err)
	}
	defer c.Close()
	b, err := request(name, "", 0)
	if err != nil {
		return "", err
	}
	if err := call(c, cmdTableStatus, b); err != nil {
		return "", fmt.Errorf("status of device-mapper device %s: %w", name, err)
	}
	if binary.NativeEndian.Uint32(b[offTargetCount:]) == 0 {
		return "", fmt.Errorf("device-mapper device %s has no table", name)
	}
	at := int(binary.NativeEndian.Uint32(b[offDataStart:])) + specSize
	if at < 0 || at >= len(b) {
		return "", fmt.Errorf("status of device-mapper device %s: answer does not fit", name)
	}
	s, _, _ := bytes.Cut(b[at:], []byte{0})
	return string(s), nil
}

// request returns a buffer that starts with a struct dm_ioctl.
func request(name, uuid string, flags uint32) ([]byte, error) {
	if name == "" || len(name) >= nameSize || strings.ContainsAny(name, "/\x00") {
		return nil, fmt.Errorf("device-mapper name %q: want 1 to %d characters without a slash", name, nameSize-1)
	}
	if len(uuid) >= uuidSize {
		return nil, fmt.Errorf("device-mapper uuid %q: want at most %d characters", uuid, uuidSize-1)
	}
	b := make([]byte, bufferSize)
	ne := binary.NativeEndian
	ne.PutUint32(b, 4) // interface version 4.0.0: the oldest with all that is used here
	ne.PutUint32(b[offDataSize:], bufferSize)
	ne.PutUint32(b[offDataStart:], headerSize)
	ne.PutUint32(b[offFlags:], flags)
	copy(b[offName:], name)
	copy(b[offUUID:], uuid)
	return b, nil
}

// putTarget appends t as a struct dm_target_spec with its parameters.
func putTarget(b []byte, t Target) error {
	if headerSize+specSize+len(t.Params)+8 > len(b) || len(t.Type) >= 16 {
		return fmt.Errorf("device-mapper table of %d characters does not fit", len(t.Params))
	}
	ne := binary.NativeEndian
	ne.PutUint32(b[offTargetCount:], 1)
	spec := b[headerSize:]
	ne.PutUint64(spec[8:], t.Sectors)
	ne.PutUint32(spec[20:], uint32((specSize+len(t.Params)+1+7)&^7)) // next
	copy(spec[24:], t.Type)
	copy(spec[specSize:], t.Params)
	return nil
}

func call(c *os.File, cmd uintptr, b []byte) error {
	const iowr, typ = 3 << 30, 0xfd << 8
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, c.Fd(), iowr|headerSize<<16|typ|cmd, uintptr(unsafe.Pointer(&b[0])))
	if errno != 0 {
		return errno
	}
	return nil
}
