// Package uki writes and reads unified kernel images: systemd's EFI stub with
// the kernel, initrd, command line and os-release appended as PE sections
// (uapi-group specification "Unified Kernel Image"; PE/COFF as in Microsoft's
// "PE Format"). It works on bytes; signing and measuring are done elsewhere,
// from the finished file.
package uki

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strings"
)

// Offsets and sizes of PE/COFF. The optional header is that of PE32+, the
// only form 64-bit UEFI programs have.
const (
	dosHeaderSize     = 64
	coffHeaderSize    = 24 // with the "PE\0\0" before it
	optionalMinSize   = 112
	sectionHeaderSize = 40
	symbolSize        = 18
	maxSections       = 96
	maxHeaderEnd      = 1 << 20
	optMagicPE32Plus  = 0x20b
	dirCertificate    = 4

	coffSections        = 6  // offsets from the PE signature
	coffSymbolPointer   = 12 //
	coffSymbolCount     = 16 //
	coffOptionalSize    = 20 //
	coffCharacteristics = 22 //

	optInitializedData  = 8 // offsets from the optional header
	optSectionAlignment = 32
	optFileAlignment    = 36
	optSizeOfImage      = 56
	optSizeOfHeaders    = 60
	optCheckSum         = 64
	optDirectoryCount   = 108
	optDirectories      = 112
)

var le = binary.LittleEndian

// ErrNotPE is wrapped by errors of files that are not 64-bit PE images.
var ErrNotPE = errors.New("not a 64-bit EFI program")

// SectionInfo is one entry of the section table.
type SectionInfo struct {
	Name            string
	VirtualAddress  uint32
	VirtualSize     uint32 // bytes in memory; what the stub measures
	Offset          uint32 // in the file
	Size            uint32 // bytes in the file, a multiple of the file alignment
	Characteristics uint32
}

// header is the parsed head of a PE file.
type header struct {
	raw         []byte // from the start of the file to the end of the section table
	pe          int    // offset of "PE\0\0"
	opt         int    // offset of the optional header
	table       int    // offset of the section table
	sections    []SectionInfo
	sectionAl   uint32
	fileAl      uint32
	headersSize uint32
}

// readHeader parses the head of r. It trusts no field: every offset is
// checked before it is followed.
func readHeader(r io.ReaderAt) (*header, error) {
	dos := make([]byte, dosHeaderSize)
	if _, err := r.ReadAt(dos, 0); err != nil {
		return nil, fmt.Errorf("%w: shorter than a DOS header", ErrNotPE)
	}
	h := &header{pe: int(le.Uint32(dos[60:]))}
	if string(dos[:2]) != "MZ" || h.pe < 4 || h.pe > maxHeaderEnd {
		return nil, fmt.Errorf("%w: no MZ header", ErrNotPE)
	}
	coff := make([]byte, coffHeaderSize)
	if _, err := r.ReadAt(coff, int64(h.pe)); err != nil || string(coff[:4]) != "PE\x00\x00" {
		return nil, fmt.Errorf("%w: no PE header", ErrNotPE)
	}
	n, optSize := int(le.Uint16(coff[coffSections:])), int(le.Uint16(coff[coffOptionalSize:]))
	h.opt = h.pe + coffHeaderSize
	h.table = h.opt + optSize
	end := h.table + n*sectionHeaderSize
	if optSize < optionalMinSize || n > maxSections || end > maxHeaderEnd {
		return nil, fmt.Errorf("%w: optional header of %d bytes, %d sections", ErrNotPE, optSize, n)
	}
	h.raw = make([]byte, end)
	if _, err := r.ReadAt(h.raw, 0); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("%w: headers are cut short", ErrNotPE)
	}
	return h, h.parse(n)
}

func (h *header) parse(n int) error {
	o := h.raw[h.opt:]
	if m := le.Uint16(o); m != optMagicPE32Plus {
		return fmt.Errorf("%w: optional header magic %#x, want %#x", ErrNotPE, m, optMagicPE32Plus)
	}
	h.sectionAl, h.fileAl = le.Uint32(o[optSectionAlignment:]), le.Uint32(o[optFileAlignment:])
	h.headersSize = le.Uint32(o[optSizeOfHeaders:])
	for i := range n {
		s := h.raw[h.table+i*sectionHeaderSize:][:sectionHeaderSize]
		h.sections = append(h.sections, SectionInfo{
			Name:            strings.TrimRight(string(s[:8]), "\x00"),
			VirtualSize:     le.Uint32(s[8:]),
			VirtualAddress:  le.Uint32(s[12:]),
			Size:            le.Uint32(s[16:]),
			Offset:          le.Uint32(s[20:]),
			Characteristics: le.Uint32(s[36:]),
		})
	}
	return nil
}

// put writes the entry in the form of the section table.
func (s SectionInfo) put(b []byte) {
	clear(b[:sectionHeaderSize])
	copy(b[:8], s.Name)
	le.PutUint32(b[8:], s.VirtualSize)
	le.PutUint32(b[12:], s.VirtualAddress)
	le.PutUint32(b[16:], s.Size)
	le.PutUint32(b[20:], s.Offset)
	le.PutUint32(b[36:], s.Characteristics)
}

// checksum is the PE CheckSum of b, whose own field must be zero: the
// one's-complement sum of 16-bit words, plus the length.
func checksum(b []byte) uint32 {
	var sum uint64
	for ; len(b) >= 2; b = b[2:] {
		sum += uint64(le.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint64(b[0])
	}
	for sum > 0xffff {
		sum = sum&0xffff + sum>>16
	}
	return uint32(sum)
}

func alignUp[T uint32 | uint64 | int](n, to T) T { return (n + to - 1) / to * to }
