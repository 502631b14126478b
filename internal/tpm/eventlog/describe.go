package eventlog

import (
	"encoding/binary"
	"fmt"
	"strings"
	"unicode/utf16"
)

// maxText is the length of the longest string that Describe returns.
const maxText = 160

// Describe says what the event claims to be about: the name of a variable,
// the path of a program, a text. It is made of untrusted data, printable
// ASCII only and at most 160 bytes long; "" if there is nothing to say.
func (e Event) Describe() string {
	switch e.Type {
	case IPL, EventTag:
		return quote(text(e.Data))
	case EFIAction, Action:
		return quote(string(e.Data))
	case NoAction:
		if i := strings.IndexByte(string(e.Data), 0); i > 0 {
			return quote(string(e.Data[:i]))
		}
	case Separator:
		if len(e.Data) <= 8 {
			return fmt.Sprintf("%x", e.Data)
		}
	case EFIVariableDriverCfg, EFIVariableBoot, EFIVariableBoot2, EFIVariableAuthority:
		return quote(variableName(e.Data))
	case EFIBootServicesApp, EFIBootServicesDriver, EFIRuntimeDriver:
		return quote(imagePath(e.Data))
	}
	return ""
}

// Text returns the event's data as text if it is UTF-16 or ASCII, else "".
// The closing zero is dropped. It is untrusted and not escaped.
func (e Event) Text() string { return text(e.Data) }

func text(b []byte) string {
	if s, ok := utf16Text(b); ok {
		return s
	}
	s := strings.TrimRight(string(b), "\x00")
	if printable(s) {
		return s
	}
	return ""
}

// utf16Text decodes UTF-16LE if every character of it is plain ASCII.
func utf16Text(b []byte) (string, bool) {
	if len(b) < 2 || len(b)%2 != 0 {
		return "", false
	}
	u := make([]uint16, 0, min(len(b)/2, 4096))
	for i := 0; i+1 < len(b) && len(u) < cap(u); i += 2 {
		u = append(u, binary.LittleEndian.Uint16(b[i:]))
	}
	s := strings.TrimRight(string(utf16.Decode(u)), "\x00")
	return s, s != "" && printable(s)
}

func printable(s string) bool {
	for _, r := range s {
		if r < ' ' || r > '~' {
			return false
		}
	}
	return true
}

// variableName reads the name from a UEFI_VARIABLE_DATA: GUID, count of
// UTF-16 units in the name, size of the data, name, data.
func variableName(b []byte) string {
	if len(b) < 32 {
		return ""
	}
	n := binary.LittleEndian.Uint64(b[16:])
	if n == 0 || n > 512 || 32+2*n > uint64(len(b)) {
		return ""
	}
	s, _ := utf16Text(b[32 : 32+2*n])
	return s
}

// imagePath reads the file names from the device path of a UEFI_IMAGE_LOAD_EVENT:
// address, size and link address of the image (8 bytes each), length of the
// device path, device path.
func imagePath(b []byte) string {
	if len(b) < 32 {
		return ""
	}
	n := binary.LittleEndian.Uint64(b[24:])
	b = b[32:]
	if n > uint64(len(b)) {
		return ""
	}
	b = b[:n]
	var parts []string
	for len(b) >= 4 && len(parts) < 8 {
		size := int(binary.LittleEndian.Uint16(b[2:]))
		if size < 4 || size > len(b) {
			break
		}
		if s := pathNode(b[0], b[1], b[4:size]); s != "" {
			parts = append(parts, s)
		}
		b = b[size:]
	}
	return strings.Join(parts, "")
}

// pathNode names the nodes of a device path that tell where a program came
// from (UEFI specification section 10.3).
func pathNode(typ, sub byte, b []byte) string {
	switch {
	case typ == 4 && sub == 4:
		s, _ := utf16Text(b)
		return s
	case typ == 4 && sub == 6:
		return "(firmware volume)"
	case typ == 4 && sub == 3:
		return "(vendor media)"
	case typ == 3 && sub == 11:
		return "(network)"
	case typ == 3 && sub == 24 && printable(string(b)):
		return string(b)
	}
	return ""
}

// quote makes a string fit for a log line, or "" of one that is empty.
func quote(s string) string {
	if s == "" {
		return ""
	}
	cut := len(s) > maxText-40
	if cut {
		s = s[:maxText-40]
	}
	var b strings.Builder
	b.WriteByte('"')
	for _, r := range s {
		switch {
		case r == '"':
			b.WriteByte('\'')
		case r >= ' ' && r <= '~':
			b.WriteRune(r)
		default:
			b.WriteByte('?')
		}
		if b.Len() > maxText-8 {
			cut = true
			break
		}
	}
	b.WriteByte('"')
	if cut {
		b.WriteString("...")
	}
	return b.String()
}
