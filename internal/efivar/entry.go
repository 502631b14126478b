package efivar

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf16"
)

// Media device path nodes (UEFI 2.10, sections 10.3.5.1 and 10.3.5.4).
const (
	pathMedia  = 4
	nodeDisk   = 1
	nodeFile   = 4
	formatGPT  = 2
	signedGUID = 2
)

// DiskEntry is a boot entry for a loader on a partition.
type DiskEntry struct {
	Description string
	Number      uint32 // of the partition, from 1
	Start, Size uint64 // of the partition, in sectors of the disk
	GUID        string // unique one of the partition, "0FC63DAF-…"
	Path        string // of the loader, `\EFI\BOOT\BOOTX64.EFI`
}

// marshal returns the entry as the value of a Boot#### variable.
func (e DiskEntry) marshal() ([]byte, error) {
	path, err := e.devicePath()
	if err != nil {
		return nil, err
	}
	b := binary.LittleEndian.AppendUint32(nil, optionActive)
	b = binary.LittleEndian.AppendUint16(b, uint16(len(path)))
	return append(append(b, utf16le(e.Description)...), path...), nil
}

// devicePath is the short form that begins with the partition, so that it
// holds wherever the disk is plugged in.
func (e DiskEntry) devicePath() ([]byte, error) {
	id, err := guidBytes(e.GUID)
	if err != nil {
		return nil, err
	}
	b := []byte{pathMedia, nodeDisk, 42, 0}
	b = binary.LittleEndian.AppendUint32(b, e.Number)
	b = binary.LittleEndian.AppendUint64(b, e.Start)
	b = binary.LittleEndian.AppendUint64(b, e.Size)
	b = append(append(b, id...), formatGPT, signedGUID)
	name := utf16le(e.Path)
	b = append(b, pathMedia, nodeFile)
	b = binary.LittleEndian.AppendUint16(b, uint16(4+len(name)))
	return append(append(b, name...), pathEnd, endEntire, 4, 0), nil
}

func utf16le(s string) (b []byte) {
	for _, c := range utf16.Encode([]rune(s + "\x00")) {
		b = binary.LittleEndian.AppendUint16(b, c)
	}
	return b
}

// guidBytes returns a GUID as the firmware stores it: the first three fields
// with their low byte first.
func guidBytes(s string) ([]byte, error) {
	b, err := hex.DecodeString(strings.ReplaceAll(s, "-", ""))
	if err != nil || len(b) != 16 {
		return nil, fmt.Errorf("partition GUID %q is none", s)
	}
	slices.Reverse(b[:4])
	slices.Reverse(b[4:6])
	slices.Reverse(b[6:8])
	return b, nil
}

// leadsTo reports whether the value of a Boot#### variable is an active option
// whose device path has the partition and the loader of e, however the
// firmware begins it.
func (e DiskEntry) leadsTo(value []byte) bool {
	o, err := ParseLoadOption(value)
	id, idErr := guidBytes(e.GUID)
	if err != nil || idErr != nil || o.Attributes&optionActive == 0 || o.Attributes&optionCategory != 0 {
		return false
	}
	file := utf16le(strings.ToUpper(e.Path))
	disk := append(id, formatGPT, signedGUID)
	return bytes.Contains(value, disk) && bytes.Contains(upper(value), file)
}

// upper changes ASCII letters: firmware paths do not tell case apart.
func upper(b []byte) []byte {
	out := bytes.Clone(b)
	for i, c := range out {
		if 'a' <= c && c <= 'z' {
			out[i] = c - 'a' + 'A'
		}
	}
	return out
}

// EntryState is what was found of a boot entry.
type EntryState string

// States of a boot entry.
const (
	EntryThere    EntryState = "there"    // in BootOrder; duplicates are left alone
	EntryUnlisted EntryState = "unlisted" // there, but not in BootOrder
	EntryMissing  EntryState = "missing"
)

// FindEntry looks for an entry that leads to e, and returns its state and
// number. A machine without EFI variables is ErrNotExist.
func FindEntry(dir string, e DiskEntry) (EntryState, uint16, error) {
	names, err := filepath.Glob(filepath.Join(dir, "Boot[0-9A-F][0-9A-F][0-9A-F][0-9A-F]-"+Global))
	if err != nil {
		return "", 0, err
	}
	if _, err := os.Stat(dir); err != nil {
		return "", 0, fmt.Errorf("boot entries: %w", ErrNotExist)
	}
	order, err := bootOrder(dir)
	if err != nil {
		return "", 0, err
	}
	state, at := EntryMissing, uint16(0)
	for _, name := range names {
		number, err := hex.DecodeString(filepath.Base(name)[4:8])
		if err != nil {
			continue
		}
		value, err := Read(dir, filepath.Base(name)[:8], Global)
		if err != nil || !e.leadsTo(value) {
			continue // one that cannot be read is not ours to judge
		}
		n := binary.BigEndian.Uint16(number)
		if slices.Contains(order, n) {
			return EntryThere, n, nil
		}
		if state == EntryMissing {
			state, at = EntryUnlisted, n
		}
	}
	return state, at, nil
}

// bootOrder reads BootOrder; one that is not set is empty.
func bootOrder(dir string) ([]uint16, error) {
	b, err := Read(dir, "BootOrder", Global)
	if err != nil && !errors.Is(err, ErrNotExist) {
		return nil, err
	}
	var order []uint16
	for ; len(b) >= 2; b = b[2:] {
		order = append(order, binary.LittleEndian.Uint16(b))
	}
	return order, nil
}

// AddEntry makes an entry for e, unless there is one, and puts it last in
// BootOrder, unless it is listed. No other entry is written or moved, so what
// the firmware starts first stays the operator's choice. It returns what it
// found before, and the entry's number. An error that wraps ENOSPC means that
// the firmware has no room for variables; nothing is half listed then.
func AddEntry(dir string, e DiskEntry) (EntryState, uint16, error) {
	state, n, err := FindEntry(dir, e)
	if err != nil || state == EntryThere {
		return state, n, err
	}
	order, err := bootOrder(dir)
	if err != nil {
		return state, 0, err
	}
	if state == EntryMissing {
		if n, err = addOption(dir, e); err != nil {
			return state, 0, err
		}
	}
	var value []byte
	for _, x := range append(order, n) {
		value = binary.LittleEndian.AppendUint16(value, x)
	}
	if err := write(filepath.Join(dir, "BootOrder-"+Global), value); err != nil {
		return state, n, fmt.Errorf("EFI variable BootOrder: %w", err)
	}
	return state, n, nil
}

// addOption writes e under the lowest free number.
func addOption(dir string, e DiskEntry) (uint16, error) {
	value, err := e.marshal()
	if err != nil {
		return 0, err
	}
	for n := uint16(0); n < 0x1000; n++ {
		file := filepath.Join(dir, fmt.Sprintf("Boot%04X-%s", n, Global))
		if _, err := os.Stat(file); err == nil {
			continue
		} else if !errors.Is(err, os.ErrNotExist) {
			return 0, err
		}
		if err := write(file, value); err != nil {
			return 0, fmt.Errorf("EFI variable Boot%04X: %w", n, err)
		}
		return n, nil
	}
	return 0, errors.New("no number is free for a boot entry")
}
