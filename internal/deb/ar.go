package deb

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
)

const (
	arMagic      = "!<arch>\n"
	arHeaderSize = 60
	arMaxMembers = 64 // a .deb has three
)

// member is one file of an ar archive.
type member struct {
	name         string
	offset, size int64
}

// readAr lists the members of the ar archive in the first size bytes of r.
// Layout of a header (ar(5)): name 16, time 12, uid 6, gid 6, mode 8, size 10
// bytes of text, then "`\n"; data is padded to an even offset.
func readAr(r io.ReaderAt, size int64) ([]member, error) {
	head := make([]byte, arHeaderSize)
	if _, err := r.ReadAt(head[:len(arMagic)], 0); err != nil || string(head[:len(arMagic)]) != arMagic {
		return nil, errors.New("no ar archive: the file is cut off or is no .deb")
	}
	var ms []member
	for at := int64(len(arMagic)); at < size; {
		if len(ms) == arMaxMembers {
			return nil, fmt.Errorf("more than %d members: %w", arMaxMembers, ErrHostile)
		}
		if at+arHeaderSize > size {
			if size-at == 1 { // padding behind the last member
				break
			}
			return nil, fmt.Errorf("cut off in the header of member %d", len(ms)+1)
		}
		if _, err := r.ReadAt(head, at); err != nil {
			return nil, fmt.Errorf("reading header of member %d: %w", len(ms)+1, err)
		}
		m, err := parseArHeader(head)
		if err != nil {
			return nil, fmt.Errorf("member %d: %w", len(ms)+1, err)
		}
		m.offset = at + arHeaderSize
		if m.size > size-m.offset {
			return nil, fmt.Errorf("member %q is cut off: it says %d bytes, %d are there", m.name, m.size, size-m.offset)
		}
		ms = append(ms, m)
		at = m.offset + m.size + m.size&1
	}
	return ms, nil
}

func parseArHeader(h []byte) (member, error) {
	if string(h[58:60]) != "`\n" {
		return member{}, errors.New("bad ar header")
	}
	name := string(bytes.TrimRight(h[:16], " "))
	if n := len(name); n > 1 && name[n-1] == '/' { // System V spelling
		name = name[:n-1]
	}
	if name == "" {
		return member{}, errors.New("ar member without a name")
	}
	size, err := strconv.ParseUint(string(bytes.TrimRight(h[48:58], " ")), 10, 40)
	if err != nil {
		return member{}, fmt.Errorf("size of ar member %q: %w", name, err)
	}
	return member{name: name, size: int64(size)}, nil
}
