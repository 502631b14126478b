// Package efivar reads EFI variables from efivarfs. It writes BootNext, as the
// last resort of a node without a good slot, gives a boot entry back that the
// firmware dropped, and deletes what overrides systemd-boot's choice. Turnout
// decides nothing else through NVRAM.
package efivar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"unicode/utf16"
)

// Dir is where efivarfs is mounted.
const Dir = "/sys/firmware/efi/efivars"

// Vendor GUIDs.
const (
	Loader = "4a67b082-0a4c-41cf-b6c7-440b29bb8c4f" // systemd's boot loader interface
	Global = "8be4df61-93ca-11d2-aa0d-00e098032b8c" // UEFI specification, section 3.3
)

// ErrNotExist is wrapped when a variable is not set, or the machine has no
// EFI variables at all.
var ErrNotExist = errors.New("EFI variable is not set")

// Read returns the value of a variable without its attributes.
func Read(dir, name, vendor string) ([]byte, error) {
	b, err := os.ReadFile(filepath.Join(dir, name+"-"+vendor))
	if errors.Is(err, os.ErrNotExist) {
		return nil, fmt.Errorf("%s: %w", name, ErrNotExist)
	}
	if err != nil {
		return nil, fmt.Errorf("EFI variable %s: %w", name, err)
	}
	if len(b) < 4 {
		return nil, fmt.Errorf("EFI variable %s: %d bytes, want at least its 4 bytes of attributes", name, len(b))
	}
	return b[4:], nil
}

// String returns the value of a variable that holds one UTF-16 string; the
// NUL at its end is taken off. A variable that is not set gives "".
func String(dir, name, vendor string) (string, error) {
	b, err := Read(dir, name, vendor)
	if errors.Is(err, ErrNotExist) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	if len(b)%2 != 0 {
		return "", fmt.Errorf("EFI variable %s: %d bytes are no UTF-16 string", name, len(b))
	}
	u := make([]uint16, len(b)/2)
	for i := range u {
		u[i] = binary.LittleEndian.Uint16(b[2*i:])
	}
	s, _, _ := strings.Cut(string(utf16.Decode(u)), "\x00")
	return s, nil
}

// SecureBoot reports whether the firmware enforces Secure Boot.
func SecureBoot(dir string) bool {
	b, err := Read(dir, "SecureBoot", Global)
	return err == nil && len(b) == 1 && b[0] == 1
}
