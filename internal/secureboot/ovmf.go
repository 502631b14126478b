package secureboot

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"unicode/utf16"
)

// Layout of the variable store of edk2's OVMF (MdeModulePkg/Include/Guid/
// VariableFormat.h and MdePkg's Pi/PiFirmwareVolume.h).
const (
	fvSignature    = "_FVH" // at 40 of the firmware volume
	fvHeaderLength = 48     // offset of the header's length
	storeHeader    = 28     // GUID, size, format, state, reserved
	varHeader      = 60
	varStart       = 0x55aa
	varAdded       = 0x3f
)

var guidAuthStore = parseGUID("aaf32c78-947b-439a-a180-2e144ec37792")

// EnrolOVMF returns a variable file of OVMF with our keys in it, from one that
// has no keys: a virtual machine started with it has Secure Boot on.
func (k *Keys) EnrolOVMF(vars []byte) ([]byte, error) {
	list, err := k.Variables()
	if err != nil {
		return nil, err
	}
	at, end, err := variables(vars)
	if err != nil {
		return nil, fmt.Errorf("OVMF variables: %w", err)
	}
	out := bytes.Clone(vars)
	for at+varHeader <= end && binary.LittleEndian.Uint16(out[at:]) == varStart {
		name, next, err := variable(out[:end], at)
		if err != nil {
			return nil, fmt.Errorf("OVMF variables: %w", err)
		}
		if out[at+2] == varAdded && (name == "PK" || name == "KEK" || name == "db" || name == "SecureBootEnable") {
			return nil, fmt.Errorf("OVMF variables: %s is set already; begin with the OVMF_VARS file that has no keys", name)
		}
		at = next
	}
	put := func(name string, g guid, attr uint32, stamp, data []byte) {
		b := encodeVariable(name, g, attr, stamp, data)
		if at+len(b) <= end {
			copy(out[at:], b)
		}
		at += len(b)
	}
	for _, v := range list {
		put(v.Name, v.guid, attrKey, efiTime(stamp), v.List)
	}
	put("SecureBootEnable", guidEnable, attrNV|attrBS, make([]byte, 16), []byte{1})
	if at > end {
		return nil, errors.New("OVMF variables: no room for the keys")
	}
	return out, nil
}

// variables returns where the variables of a file begin and end.
func variables(b []byte) (at, end int, err error) {
	if len(b) < 128 || string(b[40:44]) != fvSignature {
		return 0, 0, errors.New("not a firmware volume")
	}
	le := binary.LittleEndian
	at = int(le.Uint16(b[fvHeaderLength:]))
	if at+storeHeader > len(b) || !bytes.Equal(b[at:at+16], guidAuthStore[:]) {
		return 0, 0, errors.New("no store of authenticated variables")
	}
	size := int64(le.Uint32(b[at+16:]))
	if int64(at)+size > int64(len(b)) {
		return 0, 0, errors.New("the store is larger than the file")
	}
	return at + storeHeader, at + int(size), nil
}

// variable reads the header of the variable at an offset.
func variable(b []byte, at int) (name string, next int, err error) {
	le := binary.LittleEndian
	nameSize, dataSize := int64(le.Uint32(b[at+36:])), int64(le.Uint32(b[at+40:]))
	if nameSize%2 != 0 || int64(at)+varHeader+nameSize+dataSize > int64(len(b)) {
		return "", 0, fmt.Errorf("variable at %#x does not fit", at)
	}
	raw := b[at+varHeader : at+varHeader+int(nameSize)]
	var u []uint16
	for i := 0; i+1 < len(raw); i += 2 {
		if c := le.Uint16(raw[i:]); c != 0 {
			u = append(u, c)
		}
	}
	next = at + varHeader + int(nameSize+dataSize)
	return string(utf16.Decode(u)), (next + 3) &^ 3, nil
}

// encodeVariable is an AUTHENTICATED_VARIABLE_HEADER with name and data,
// padded as erased flash is.
func encodeVariable(name string, g guid, attr uint32, stamp, data []byte) []byte {
	le := binary.LittleEndian
	u := append(utf16.Encode([]rune(name)), 0)
	b := le.AppendUint16(nil, varStart)
	b = append(b, varAdded, 0)
	b = le.AppendUint32(b, attr)
	b = le.AppendUint64(b, 0) // monotonic count
	b = append(b, stamp...)
	b = le.AppendUint32(b, 0) // index of a public key: not used
	b = le.AppendUint32(b, uint32(2*len(u)))
	b = le.AppendUint32(b, uint32(len(data)))
	b = append(b, g[:]...)
	for _, c := range u {
		b = le.AppendUint16(b, c)
	}
	b = append(b, data...)
	for len(b)%4 != 0 {
		b = append(b, 0xff)
	}
	return b
}
