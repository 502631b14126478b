package measure

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Limits of what parsePE accepts. Real UKIs have below 20 sections, and EFI
// firmware loads no file of 2 GiB or more.
const (
	maxSections = 96
	maxFileSize = 1<<31 - 1
)

// Offsets in a PE file, from the start of the part named.
const (
	dosSize        = 64
	dosPEOffset    = 0x3c
	coffSize       = 24 // "PE\0\0" and the COFF header
	optChecksum    = 64 // in the optional header, PE32 and PE32+ alike
	optHeadersSize = 60
	sectionSize    = 40
	dirSecurity    = 4 // index of the certificate table in the data directory
)

// image is a parsed PE file. Offsets were checked to lie inside raw.
type image struct {
	raw         []byte
	checksum    int // offset of the four-byte checksum
	security    int // offset of the certificate table's directory entry, 0 if there is none
	certSize    int // size in that entry
	headersSize int // SizeOfHeaders
	sections    []header
}

// header is one section header. Its raw part lies inside the file.
type header struct {
	name           string
	virtualSize    uint32
	virtualAddress uint32
	rawOffset      uint32
	rawSize        uint32
}

// parsePE reads the headers of a PE32 or PE32+ file.
func parsePE(raw []byte) (*image, error) {
	if len(raw) > maxFileSize {
		return nil, fmt.Errorf("PE file of %d bytes: EFI firmware loads no file of 2 GiB or more", len(raw))
	}
	if len(raw) < dosSize || raw[0] != 'M' || raw[1] != 'Z' {
		return nil, errors.New("not a PE file: no MZ header")
	}
	pe := uint64(binary.LittleEndian.Uint32(raw[dosPEOffset:]))
	if pe+coffSize > uint64(len(raw)) || !bytes.Equal(raw[pe:pe+4], []byte("PE\x00\x00")) {
		return nil, errors.New("not a PE file: no PE signature where the DOS header points")
	}
	coff := raw[pe:]
	nSections := int(binary.LittleEndian.Uint16(coff[6:]))
	optSize := int(binary.LittleEndian.Uint16(coff[20:]))
	opt := int(pe) + coffSize
	if nSections > maxSections {
		return nil, fmt.Errorf("PE file has %d sections, at most %d are accepted", nSections, maxSections)
	}
	if opt+optSize+nSections*sectionSize > len(raw) {
		return nil, errors.New("PE file ends inside its headers")
	}
	im := &image{raw: raw}
	if err := im.parseOptional(opt, optSize); err != nil {
		return nil, err
	}
	return im, im.parseSections(opt+optSize, nSections)
}

// parseOptional reads the optional header of size bytes at offset at.
func (im *image) parseOptional(at, size int) error {
	if size < 2 {
		return errors.New("PE file has no optional header")
	}
	h := im.raw[at : at+size]
	var dirs int // offset of NumberOfRvaAndSizes
	switch magic := binary.LittleEndian.Uint16(h); magic {
	case 0x10b:
		dirs = 92
	case 0x20b:
		dirs = 108
	default:
		return fmt.Errorf("PE optional header has unknown magic %#x", magic)
	}
	if size < dirs+4 {
		return errors.New("PE optional header is cut short")
	}
	im.checksum = at + optChecksum
	im.headersSize = int(binary.LittleEndian.Uint32(h[optHeadersSize:]))
	if binary.LittleEndian.Uint32(h[dirs:]) > dirSecurity {
		entry := dirs + 4 + dirSecurity*8
		if size < entry+8 {
			return errors.New("PE data directory is cut short")
		}
		im.security = at + entry
		im.certSize = int(binary.LittleEndian.Uint32(h[entry+4:]))
	}
	end := im.checksum + 4
	if im.security != 0 {
		end = im.security + 8
	}
	if im.headersSize > len(im.raw) || im.headersSize < end {
		return fmt.Errorf("PE SizeOfHeaders %d does not fit the file", im.headersSize)
	}
	return nil
}

func (im *image) parseSections(at, n int) error {
	for i := range n {
		b := im.raw[at+i*sectionSize:]
		h := header{
			name:           string(bytes.TrimRight(b[:8], "\x00")),
			virtualSize:    binary.LittleEndian.Uint32(b[8:]),
			virtualAddress: binary.LittleEndian.Uint32(b[12:]),
			rawSize:        binary.LittleEndian.Uint32(b[16:]),
			rawOffset:      binary.LittleEndian.Uint32(b[20:]),
		}
		if h.rawSize != 0 && uint64(h.rawOffset)+uint64(h.rawSize) > uint64(len(im.raw)) {
			return fmt.Errorf("PE section %q lies outside the file", h.name)
		}
		im.sections = append(im.sections, h)
	}
	return nil
}
