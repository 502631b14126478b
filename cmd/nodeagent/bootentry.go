package main

import (
	"fmt"
	"runtime"
	"strings"

	"github.com/turnout-project/turnout/internal/disk"
	"github.com/turnout-project/turnout/internal/efivar"
)

// bootEntry returns what looks after the firmware's boot entry of a disk.
func bootEntry(path string) func(write bool) (efivar.EntryState, uint16, error) {
	return func(write bool) (efivar.EntryState, uint16, error) {
		d, err := disk.Open(path)
		if err != nil {
			return "", 0, err
		}
		esp, err := d.Partition(disk.LabelESP)
		if err != nil {
			return "", 0, fmt.Errorf("%s: %w", path, err)
		}
		e := efivar.DiskEntry{
			Description: "Turnout", Number: uint32(esp.Number), GUID: esp.GUID,
			Start: uint64(esp.StartBytes) / uint64(d.SectorSize), Size: uint64(esp.SizeBytes) / uint64(d.SectorSize),
			Path: `\` + strings.ReplaceAll(disk.LoaderPath[runtime.GOARCH], "/", `\`),
		}
		if !write {
			return efivar.FindEntry(efivar.Dir, e)
		}
		return efivar.AddEntry(efivar.Dir, e)
	}
}
