package efivar

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// choices are the variables by which somebody may have told systemd-boot what
// to start, whatever trials are left (bootctl set-default, set-oneshot,
// set-preferred).
var choices = []string{"LoaderEntryOneShot", "LoaderEntryDefault", "LoaderEntryPreferred"}

// ClearChoices deletes what tells systemd-boot to start one entry: a slot
// named so would be started again and again, without trials and without
// falling back. It returns what it deleted, as "LoaderEntryDefault=x.efi".
// Without EFI variables there is nothing to do.
func ClearChoices(dir string) (cleared []string, err error) {
	for _, name := range choices {
		file := filepath.Join(dir, name+"-"+Loader)
		if _, e := os.Stat(file); errors.Is(e, os.ErrNotExist) {
			continue
		}
		value, e := String(dir, name, Loader)
		if e != nil {
			value = "?" // damaged: gone all the same
		}
		if e = makeMutable(file); e == nil {
			e = os.Remove(file)
		}
		if e != nil {
			err = errors.Join(err, fmt.Errorf("EFI variable %s: %w", name, e))
			continue
		}
		cleared = append(cleared, name+"="+value)
	}
	return cleared, err
}
