package efivar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf16"
)

// Attributes of a load option that matter here.
const (
	optionActive   = 0x00000001
	optionCategory = 0x00001f00 // 0 is "boot"; others are applications such as a setup menu
)

// Types and subtypes of device path nodes (UEFI specification, chapter 10.3).
const (
	pathMessaging = 3
	nodeMAC       = 11
	nodeIPv4      = 12
	nodeIPv6      = 13
	nodeISCSI     = 19
	nodeURI       = 24
	pathEnd       = 0x7f
	endInstance   = 0x01
	endEntire     = 0xff
)

// LoadOption is the value of a Boot#### variable (UEFI 2.10, section 3.1.3,
// EFI_LOAD_OPTION), as far as Turnout reads it.
type LoadOption struct {
	Attributes  uint32
	Description string     // as the firmware's boot menu shows it
	Path        []PathNode // of the first device path, without its end node
}

// PathNode is one node of a device path, without its data.
type PathNode struct{ Type, SubType byte }

// ParseLoadOption reads the value of a Boot#### variable. It believes no
// length in it. Device paths after the first, and optional data, are ignored.
func ParseLoadOption(b []byte) (LoadOption, error) {
	const header = 6
	if len(b) < header {
		return LoadOption{}, fmt.Errorf("load option of %d bytes, want at least %d", len(b), header)
	}
	o := LoadOption{Attributes: binary.LittleEndian.Uint32(b)}
	pathLen := int(binary.LittleEndian.Uint16(b[4:]))
	rest := b[header:]
	var text []uint16
	for {
		if len(rest) < 2 {
			return LoadOption{}, errors.New("load option: its description has no end")
		}
		c := binary.LittleEndian.Uint16(rest)
		rest = rest[2:]
		if c == 0 {
			break
		}
		text = append(text, c)
	}
	o.Description = string(utf16.Decode(text))
	if pathLen > len(rest) {
		return LoadOption{}, fmt.Errorf("load option %q: device path of %d bytes, %d are there", o.Description, pathLen, len(rest))
	}
	var err error
	if o.Path, err = parsePath(rest[:pathLen]); err != nil {
		return LoadOption{}, fmt.Errorf("load option %q: %w", o.Description, err)
	}
	return o, nil
}

// parsePath reads nodes up to the first end of an instance.
func parsePath(b []byte) ([]PathNode, error) {
	const header = 4
	var nodes []PathNode
	for {
		if len(b) < header {
			return nil, errors.New("device path has no end")
		}
		n, size := PathNode{b[0], b[1]}, int(binary.LittleEndian.Uint16(b[2:]))
		if n.Type == pathEnd && (n.SubType == endEntire || n.SubType == endInstance) {
			return nodes, nil
		}
		if size < header || size > len(b) {
			return nil, fmt.Errorf("device path node %d of %d bytes, want %d to %d", len(nodes), size, header, len(b))
		}
		nodes, b = append(nodes, n), b[size:]
	}
}

// IsNetworkIPv4 reports whether the firmware boots the option by PXE or HTTP
// over IPv4, and would do so by itself: it is active, and its path leads over
// a network interface to IPv4, or to a URI that is not bound to IPv6.
func (o LoadOption) IsNetworkIPv4() bool {
	if o.Attributes&optionActive == 0 || o.Attributes&optionCategory != 0 {
		return false
	}
	return o.has(nodeMAC) && (o.has(nodeIPv4) || o.has(nodeURI)) && !o.has(nodeIPv6) && !o.has(nodeISCSI)
}

func (o LoadOption) has(messaging byte) bool {
	for _, n := range o.Path {
		if n == (PathNode{pathMessaging, messaging}) {
			return true
		}
	}
	return false
}

// ErrNoNetworkBoot is wrapped when the firmware offers no network boot.
var ErrNoNetworkBoot = errors.New("the firmware's boot order has no network boot over IPv4; switch it on in the firmware's setup")

// NetworkBoot returns the first option of BootOrder that boots over IPv4, and
// its number. Options that cannot be read are passed over. The error wraps
// ErrNoNetworkBoot when there is none, ErrNotExist without a BootOrder.
func NetworkBoot(dir string) (uint16, LoadOption, error) {
	b, err := Read(dir, "BootOrder", Global)
	if err != nil {
		return 0, LoadOption{}, err
	}
	var odd error
	for ; len(b) >= 2; b = b[2:] {
		number := binary.LittleEndian.Uint16(b)
		name := fmt.Sprintf("Boot%04X", number)
		value, err := Read(dir, name, Global)
		if err != nil {
			odd = errors.Join(odd, err)
			continue
		}
		o, err := ParseLoadOption(value)
		if err != nil {
			odd = errors.Join(odd, fmt.Errorf("%s: %w", name, err))
			continue
		}
		if o.IsNetworkIPv4() {
			return number, o, nil
		}
	}
	return 0, LoadOption{}, errors.Join(ErrNoNetworkBoot, odd)
}
