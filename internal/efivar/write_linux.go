package efivar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// Attributes of a variable (UEFI 2.10, section 8.2): kept without power, seen
// by boot services and by the running system.
const attributes = 0x1 | 0x2 | 0x4

// immutableFlag is FS_IMMUTABLE_FL of linux/fs.h: efivarfs sets it on what it
// fears to be deleted by mistake.
const immutableFlag = 0x10

// SetBootNext makes the firmware boot an option at the next start, once: it
// deletes the variable before it obeys. An error that wraps ENOSPC means that
// the firmware has no room left for variables.
func SetBootNext(dir string, number uint16) error {
	if err := write(filepath.Join(dir, "BootNext-"+Global), binary.LittleEndian.AppendUint16(nil, number)); err != nil {
		return fmt.Errorf("EFI variable BootNext: %w", err)
	}
	return nil
}

// write sets a variable. Efivarfs wants attributes and value in one write.
func write(file string, value []byte) (err error) {
	if err := makeMutable(file); err != nil {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	_, err = f.Write(append(binary.LittleEndian.AppendUint32(nil, attributes), value...))
	return err
}

// makeMutable clears the immutable flag of a variable that is set already.
func makeMutable(file string) error {
	f, err := os.Open(file)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	defer f.Close()
	fd := int(f.Fd())
	flags, err := unix.IoctlGetUint32(fd, unix.FS_IOC_GETFLAGS)
	if err != nil || flags&immutableFlag == 0 {
		return nil // a file system without flags has none to clear
	}
	if err := unix.IoctlSetPointerInt(fd, unix.FS_IOC_SETFLAGS, int(flags&^immutableFlag)); err != nil {
		return fmt.Errorf("clearing the immutable flag: %w", err)
	}
	return nil
}
