package uki

import (
	"bytes"
	"errors"
	"fmt"
	"slices"
)

// Section is one piece to append to the stub.
type Section struct {
	Name string // such as ".linux", at most 8 bytes
	Data []byte // not empty: stubs disagree on whether an empty section is measured
	// VirtualSize is the size in memory, the rest zero-filled; 0 means
	// len(Data), which is what keeps measuring simple.
	VirtualSize uint32
}

// MaxSize is the largest UKI that Build makes, in bytes. Firmware loads the
// file in one piece, and copies the initrd out of it: a few hundred MiB
// already fail on real machines.
const MaxSize = 512 << 20

const (
	pageSize   = 4096
	linuxAlign = 64 << 10 // arm64 kernels with 64 KiB pages want it; harmless elsewhere

	symsStripped = 0x000c // IMAGE_FILE_LINE_NUMS_STRIPPED, _LOCAL_SYMS_STRIPPED
	scnReadData  = 0x40000040
)

// ErrNoHeaderRoom is wrapped when the stub leaves no space in its headers for
// the entries of the new sections.
var ErrNoHeaderRoom = errors.New("no room in the stub's headers")

// Build appends sections to a stub, in the given order, and returns the
// finished, unsigned image. The same input gives the same bytes. The stub's
// symbol table, which nothing reads, is left out; a stub that is signed or
// carries other data after its last section is refused.
func Build(stub []byte, sections []Section) ([]byte, error) {
	h, err := readHeader(bytes.NewReader(stub))
	if err != nil {
		return nil, fmt.Errorf("EFI stub: %w", err)
	}
	if magic := h.looseMagic(stub); magic != nil {
		sections = append(slices.Clip(sections), Section{Name: magicSection, Data: magic})
		stub = stub[:h.sectionsEnd()]
	}
	end, err := h.checkStub(stub)
	if err != nil {
		return nil, fmt.Errorf("EFI stub: %w", err)
	}
	if err := h.checkSections(sections); err != nil {
		return nil, err
	}
	entries, size, err := h.place(end, sections)
	if err != nil {
		return nil, err
	}
	out := make([]byte, size)
	copy(out, stub[:end])
	if start := int(h.contentsStart()); start > len(h.raw) {
		clear(out[len(h.raw):start]) // where the new sections' headers go
	}
	for i, e := range entries {
		e.put(out[h.table+(len(h.sections)+i)*sectionHeaderSize:])
		copy(out[e.Offset:], sections[i].Data)
	}
	h.patch(out, entries)
	return out, nil
}

// checkStub returns the offset of the end of the stub's last section.
func (h *header) checkStub(stub []byte) (uint64, error) {
	if h.fileAl == 0 || h.sectionAl == 0 || h.sectionAl < h.fileAl {
		return 0, fmt.Errorf("alignments of %d (file) and %d (section) bytes make no sense", h.fileAl, h.sectionAl)
	}
	end := h.sectionsEnd()
	for _, s := range h.sections {
		if s.Name != "" && s.Name[0] == '/' {
			return 0, fmt.Errorf("section name %s points into a symbol table; strip the stub first", s.Name)
		}
	}
	if end > uint64(len(stub)) {
		return 0, fmt.Errorf("its %d bytes are fewer than its headers claim (%d): the file is cut short", len(stub), end)
	}
	if dirs := le.Uint32(h.raw[h.opt+optDirectoryCount:]); dirs > dirCertificate && h.table >= h.opt+optDirectories+8*(dirCertificate+1) {
		if d := h.raw[h.opt+optDirectories+8*dirCertificate:]; le.Uint32(d) != 0 || le.Uint32(d[4:]) != 0 {
			return 0, errors.New("it is signed, and a signature cannot outlive the change; use the unsigned stub")
		}
	}
	if start := int(h.contentsStart()); start > len(h.raw) && !isFill(stub[len(h.raw):start]) {
		return 0, errors.New("its header space is not empty")
	}
	if tail := h.symbolsEnd(stub, end); tail != len(stub) {
		return 0, fmt.Errorf("%d bytes of unknown data follow its last section", len(stub)-int(end))
	}
	return end, nil
}

// sectionsEnd returns where in the file its last section ends.
func (h *header) sectionsEnd() uint64 {
	end := uint64(max(h.headersSize, uint32(len(h.raw))))
	for _, s := range h.sections {
		if s.Size > 0 {
			end = max(end, uint64(s.Offset)+uint64(s.Size))
		}
	}
	return end
}

// The section in which systemd's stub says its version, and how it begins.
const (
	magicSection = ".sdmagic"
	magicBegin   = "#### LoaderInfo: systemd-stub "
)

// looseMagic returns what should stand in ".sdmagic", with its zero, where a
// stub has no such section and says it behind its last one: stubs for arm64
// that were linked with gnu-efi (Debian 12's) are a memory image, of which
// only code and data became sections. Firmware never loads the rest. nil
// means that there is none.
func (h *header) looseMagic(stub []byte) []byte {
	end := h.sectionsEnd()
	if end >= uint64(len(stub)) || slices.ContainsFunc(h.sections, func(s SectionInfo) bool { return s.Name == magicSection }) {
		return nil
	}
	tail := stub[end:]
	if bytes.Count(tail, []byte(magicBegin)) != 1 {
		return nil
	}
	text, _, whole := bytes.Cut(tail[bytes.Index(tail, []byte(magicBegin)):], []byte{0})
	if !whole || len(text) > 128 {
		return nil
	}
	return append(bytes.Clone(text), 0)
}

// armNop is the instruction that does nothing, with which assemblers for
// arm64 fill what nothing else is in: the header space of the stubs that were
// linked with gnu-efi (Debian 12's), for one.
var armNop = []byte{0x1f, 0x20, 0x03, 0xd5}

// isFill reports whether b holds nothing: zeros, or instructions that do
// nothing.
func isFill(b []byte) bool {
	if len(bytes.Trim(b, "\x00")) == 0 {
		return true
	}
	return len(b)%len(armNop) == 0 && bytes.Equal(b, bytes.Repeat(armNop, len(b)/len(armNop)))
}

// symbolsEnd returns where the symbol and string tables that follow the last
// section end. Without tables, zero padding is accepted.
func (h *header) symbolsEnd(stub []byte, end uint64) int {
	at := uint64(le.Uint32(h.raw[h.pe+coffSymbolPointer:]))
	if at < end {
		if len(bytes.TrimRight(stub[end:], "\x00")) == 0 {
			return len(stub)
		}
		return int(end)
	}
	strs := at + uint64(le.Uint32(h.raw[h.pe+coffSymbolCount:]))*symbolSize
	if strs+4 > uint64(len(stub)) {
		return int(strs)
	}
	return int(strs + uint64(le.Uint32(stub[strs:])))
}

func (h *header) checkSections(sections []Section) error {
	seen := map[string]bool{}
	for _, s := range h.sections {
		seen[s.Name] = true
	}
	for _, s := range sections {
		switch {
		case s.Name == "" || len(s.Name) > 8:
			return fmt.Errorf("section name %q: want 1 to 8 bytes", s.Name)
		case seen[s.Name]:
			return fmt.Errorf("section %s is there already; is the stub a finished UKI?", s.Name)
		case len(s.Data) == 0:
			return fmt.Errorf("section %s is empty: leave it out instead", s.Name)
		case s.VirtualSize != 0 && uint64(s.VirtualSize) < uint64(len(s.Data)):
			return fmt.Errorf("section %s: %d bytes do not fit in a virtual size of %d", s.Name, len(s.Data), s.VirtualSize)
		}
		seen[s.Name] = true
	}
	room := h.headerRoom()
	if len(sections) > room {
		return fmt.Errorf("%w: it has space for %d more sections, %d are needed; use a stub with larger headers (systemd 254 and later)",
			ErrNoHeaderRoom, room, len(sections))
	}
	return nil
}

// headerRoom is how many entries can be added to the section table before it
// meets the end of the headers or the first section's contents.
func (h *header) headerRoom() int {
	return max(0, int(h.contentsStart())-len(h.raw)) / sectionHeaderSize
}

// contentsStart is where the headers end and the first contents may lie.
func (h *header) contentsStart() uint32 {
	start := h.headersSize
	for _, s := range h.sections {
		if s.Size > 0 {
			start = min(start, s.Offset)
		}
	}
	return start
}

// place decides where each section lies in memory and in the file, which
// starts to grow at byte end, and returns the size of the file.
func (h *header) place(end uint64, sections []Section) ([]SectionInfo, uint64, error) {
	offset := alignUp(end, uint64(h.fileAl))
	var address uint64
	for _, s := range h.sections {
		address = max(address, uint64(s.VirtualAddress)+uint64(max(s.VirtualSize, s.Size)))
	}
	entries := make([]SectionInfo, 0, len(sections))
	for _, s := range sections {
		align := uint64(max(h.sectionAl, pageSize))
		if s.Name == ".linux" {
			align = max(align, linuxAlign)
		}
		address = alignUp(address, align)
		size := alignUp(uint64(len(s.Data)), uint64(h.fileAl))
		virtual := max(uint64(s.VirtualSize), uint64(len(s.Data)))
		if offset+size > MaxSize || address+virtual > MaxSize {
			return nil, 0, fmt.Errorf("section %s of %d MiB makes the UKI larger than %d MiB, which firmware cannot load; move modules or firmware from the initrd to the root",
				s.Name, len(s.Data)>>20, MaxSize>>20)
		}
		entries = append(entries, SectionInfo{
			Name: s.Name, VirtualAddress: uint32(address), VirtualSize: uint32(virtual),
			Offset: uint32(offset), Size: uint32(size), Characteristics: scnReadData,
		})
		offset += size
		address += virtual
	}
	return entries, offset, nil
}

// patch updates the counts and sizes in the headers of out, and the checksum.
func (h *header) patch(out []byte, entries []SectionInfo) {
	coff, opt := out[h.pe:], out[h.opt:]
	le.PutUint16(coff[coffSections:], uint16(len(h.sections)+len(entries)))
	le.PutUint32(coff[coffSymbolPointer:], 0)
	le.PutUint32(coff[coffSymbolCount:], 0)
	le.PutUint16(coff[coffCharacteristics:], le.Uint16(coff[coffCharacteristics:])|symsStripped)
	initialized := le.Uint32(opt[optInitializedData:])
	var top uint32
	for _, s := range slices.Concat(h.sections, entries) {
		top = max(top, s.VirtualAddress+s.VirtualSize)
	}
	for _, e := range entries {
		initialized += e.Size
	}
	le.PutUint32(opt[optInitializedData:], initialized)
	le.PutUint32(opt[optSizeOfImage:], alignUp(top, h.sectionAl))
	le.PutUint32(opt[optCheckSum:], 0)
	le.PutUint32(opt[optCheckSum:], checksum(out)+uint32(len(out)))
}
