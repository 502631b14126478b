package uki

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// stubOptions shape a synthetic stub: one section ".text" and ".sdmagic".
type stubOptions struct {
	headersSize int    // 0 means 1024
	symbols     int    // entries of a symbol table at the end
	tail        []byte // anything after that
	signed      bool
	longName    bool
	inHeader    bool // something lies in the header room
	nops        bool // the header room is filled with arm64 instructions that do nothing
	loose       bool // the version stands behind the sections
}

const sdmagic = "#### LoaderInfo: systemd-stub 252.39-1~deb12u2 ####\x00"

func makeStub(o stubOptions) []byte {
	if o.headersSize == 0 {
		o.headersSize = 1024
	}
	const pe, optSize = 128, 240
	b := make([]byte, o.headersSize, 8192)
	copy(b, "MZ")
	le.PutUint32(b[60:], pe)
	copy(b[pe:], "PE\x00\x00")
	le.PutUint16(b[pe+4:], 0x8664)
	le.PutUint16(b[pe+coffSections:], 2)
	le.PutUint16(b[pe+coffOptionalSize:], optSize)
	opt := b[pe+coffHeaderSize:]
	le.PutUint16(opt, optMagicPE32Plus)
	le.PutUint32(opt[optSectionAlignment:], 512)
	le.PutUint32(opt[optFileAlignment:], 512)
	le.PutUint32(opt[optSizeOfHeaders:], uint32(o.headersSize))
	le.PutUint32(opt[optDirectoryCount:], 16)
	if o.signed {
		le.PutUint32(opt[optDirectories+8*dirCertificate:], 9000)
		le.PutUint32(opt[optDirectories+8*dirCertificate+4:], 8)
	}
	text := SectionInfo{".text", 0x4000, 700, uint32(o.headersSize), 1024, 0x60000020}
	if o.longName {
		text.Name = "/4"
	}
	magic := SectionInfo{".sdmagic", 0x4400, uint32(len(sdmagic)), text.Offset + text.Size, 512, scnReadData}
	table := b[pe+coffHeaderSize+optSize:]
	text.put(table)
	if !o.loose {
		magic.put(table[sectionHeaderSize:])
	}
	if o.nops {
		room := table[2*sectionHeaderSize:]
		if o.loose {
			room = table[sectionHeaderSize:]
		}
		copy(room, bytes.Repeat(armNop, len(room)/len(armNop)))
	}
	if o.inHeader {
		b[o.headersSize-1] = 1
	}
	b = append(b, bytes.Repeat([]byte{0xc3}, 1024)...)
	if o.loose {
		le.PutUint16(b[pe+coffSections:], 1)
		b = append(b, make([]byte, 400)...) // tables that nobody loads
	}
	b = append(b, append([]byte(sdmagic), make([]byte, 512-len(sdmagic))...)...)
	if o.symbols > 0 {
		le.PutUint32(b[pe+coffSymbolPointer:], uint32(len(b)))
		le.PutUint32(b[pe+coffSymbolCount:], uint32(o.symbols))
		b = append(b, make([]byte, o.symbols*symbolSize)...)
		b = append(b, 8, 0, 0, 0, 'a', 'b', 'c', 0)
	}
	return append(b, o.tail...)
}

var parts = []Section{
	{Name: ".osrel", Data: []byte("ID=turnout\n")},
	{Name: ".cmdline", Data: []byte("roothash=00 quiet\n")},
	{Name: ".initrd", Data: bytes.Repeat([]byte{7}, 5000)},
	{Name: ".linux", Data: bytes.Repeat([]byte{9}, 70001)},
}

// C50: a stub with an odd length and a symbol table, as Debian ships it.
func TestBuild(t *testing.T) {
	for _, symbols := range []int{0, 3} {
		t.Run(fmt.Sprintf("%d symbols", symbols), func(t *testing.T) {
			out, err := Build(makeStub(stubOptions{symbols: symbols}), parts)
			if err != nil {
				t.Fatal(err)
			}
			checkBuilt(t, out, parts)
			if v, err := StubVersion(bytes.NewReader(out)); err != nil || v != "252.39-1~deb12u2" {
				t.Errorf("StubVersion = %q, %v", v, err)
			}
			plain, err := Build(makeStub(stubOptions{}), parts)
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(out, plain) {
				t.Error("the symbol table changed the image")
			}
		})
	}
}

// The stub for arm64 of Debian 12: filled with instructions that do nothing,
// and with its version behind its sections.
func TestBuildARM64(t *testing.T) {
	out, err := Build(makeStub(stubOptions{nops: true, loose: true}), parts)
	if err != nil {
		t.Fatal(err)
	}
	checkBuilt(t, out, append(slices.Clip(parts), Section{Name: ".sdmagic", Data: []byte(sdmagic)}))
	if v, err := StubVersion(bytes.NewReader(out)); err != nil || v != "252.39-1~deb12u2" {
		t.Errorf("StubVersion = %q, %v", v, err)
	}
	if _, err := Build(makeStub(stubOptions{nops: true, inHeader: true}), parts); err == nil {
		t.Error("a header room with something else than fill was taken")
	}
}

// checkBuilt checks the rules every loader relies on, and the contents.
func checkBuilt(t *testing.T, out []byte, parts []Section) {
	t.Helper()
	h, err := readHeader(bytes.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	var address, offset uint32
	for _, s := range h.sections {
		if s.VirtualAddress < address || (s.Size > 0 && s.Offset < offset) {
			t.Errorf("section %s overlaps the one before it", s.Name)
		}
		if s.Offset%h.fileAl != 0 || s.Size%h.fileAl != 0 {
			t.Errorf("section %s lies at %d+%d, not aligned to %d", s.Name, s.Offset, s.Size, h.fileAl)
		}
		address, offset = s.VirtualAddress+s.VirtualSize, s.Offset+s.Size
	}
	if int(offset) != len(out) {
		t.Errorf("last section ends at %d, the file at %d", offset, len(out))
	}
	opt := h.raw[h.opt:]
	if got, want := le.Uint32(opt[optSizeOfImage:]), alignUp(address, h.sectionAl); got != want {
		t.Errorf("SizeOfImage = %d, want %d", got, want)
	}
	zeroed := bytes.Clone(out)
	le.PutUint32(zeroed[h.opt+optCheckSum:], 0)
	if got, want := le.Uint32(opt[optCheckSum:]), checksum(zeroed)+uint32(len(out)); got != want {
		t.Errorf("CheckSum = %#x, want %#x", got, want)
	}
	for _, p := range parts {
		got, err := ReadSection(bytes.NewReader(out), p.Name, 1<<30)
		if err != nil || !bytes.Equal(got, p.Data) {
			t.Errorf("section %s: %d bytes, %v; want %d bytes", p.Name, len(got), err, len(p.Data))
		}
	}
	if got, err := Cmdline(bytes.NewReader(out)); err != nil || got+"\n" != string(parts[1].Data) {
		t.Errorf("Cmdline = %q, %v; want %q", got, err, parts[1].Data)
	}
}

func TestBuildRefuses(t *testing.T) {
	tests := []struct {
		name  string
		stub  []byte
		parts []Section
		want  string
	}{
		{"not PE", []byte("#!/bin/sh"), parts, "not a 64-bit EFI program"},
		{"no header room", makeStub(stubOptions{headersSize: 512}), parts, "no room in the stub's headers: it has space for 1 more sections, 4 are needed"},
		{"data in the header room", makeStub(stubOptions{inHeader: true}), parts, "header space is not empty"},
		{"cut", makeStub(stubOptions{})[:2000], parts, "cut short"},
		{"signed", makeStub(stubOptions{signed: true}), parts, "signed"},
		{"overlay", makeStub(stubOptions{symbols: 2, tail: []byte("x")}), parts, "unknown data"},
		{"overlay without symbols", makeStub(stubOptions{tail: []byte("x")}), parts, "1 bytes of unknown data"},
		{"long section names", makeStub(stubOptions{longName: true}), parts, "symbol table"},
		{"empty section", makeStub(stubOptions{}), []Section{{Name: ".initrd"}}, "section .initrd is empty"},
		{"long name", makeStub(stubOptions{}), []Section{{Name: ".initramfs", Data: []byte{1}}}, "1 to 8 bytes"},
		{"twice", makeStub(stubOptions{}), []Section{{Name: ".a", Data: []byte{1}}, {Name: ".a", Data: []byte{1}}}, "is there already"},
		{"in the stub", makeStub(stubOptions{}), []Section{{Name: ".sdmagic", Data: []byte{1}}}, "is there already"},
		{"small virtual size", makeStub(stubOptions{}), []Section{{Name: ".a", Data: []byte{1, 2}, VirtualSize: 1}}, "do not fit"},
		{"too large", makeStub(stubOptions{}), []Section{{Name: ".initrd", Data: make([]byte, MaxSize)}}, "512 MiB"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			out, err := Build(tt.stub, tt.parts)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("Build = %v; want an error with %q", err, tt.want)
			}
			if out != nil {
				t.Error("bytes were returned with an error")
			}
		})
	}
	if _, err := Build(makeStub(stubOptions{headersSize: 512}), parts); !errors.Is(err, ErrNoHeaderRoom) {
		t.Errorf("Build = %v; want ErrNoHeaderRoom", err)
	}
}

// C50: the memory of a section is its VirtualSize, zero-filled.
func TestVirtualSizeLargerThanFile(t *testing.T) {
	out, err := Build(makeStub(stubOptions{}), []Section{{Name: ".linux", Data: []byte("MZ"), VirtualSize: 9000}, {Name: ".osrel", Data: []byte("x")}})
	if err != nil {
		t.Fatal(err)
	}
	got, err := ReadSection(bytes.NewReader(out), ".linux", 1<<20)
	if want := append([]byte("MZ"), make([]byte, 8998)...); err != nil || !bytes.Equal(got, want) {
		t.Errorf("ReadSection gives %d bytes, %v; want %d", len(got), err, len(want))
	}
	if _, err := ReadSection(bytes.NewReader(out), ".linux", 8999); err == nil {
		t.Error("a section above the limit was read")
	}
	ss, err := Sections(bytes.NewReader(out))
	if err != nil {
		t.Fatal(err)
	}
	if l, o := ss[2], ss[3]; o.VirtualAddress < l.VirtualAddress+9000 {
		t.Errorf("%s at %#x lies inside %s", o.Name, o.VirtualAddress, l.Name)
	}
}

func TestReadSectionMissing(t *testing.T) {
	if _, err := Cmdline(bytes.NewReader(makeStub(stubOptions{}))); !errors.Is(err, ErrNoSection) {
		t.Errorf("Cmdline of a bare stub = %v; want ErrNoSection", err)
	}
}

const debianStub = "/usr/lib/systemd/boot/efi/linuxx64.efi.stub"

// TestDebianStub builds on the stub of the distribution and lets binutils, which
// share no code with this package, look at the result.
func TestDebianStub(t *testing.T) {
	stub, err := os.ReadFile(debianStub)
	if err != nil {
		need(t, "package systemd-boot-efi", err)
	}
	out, err := Build(stub, parts)
	if err != nil {
		t.Fatal(err)
	}
	checkBuilt(t, out, parts)
	file := t.TempDir() + "/uki.efi"
	if err := os.WriteFile(file, out, 0o600); err != nil {
		t.Fatal(err)
	}
	t.Run("objcopy", func(t *testing.T) {
		for _, p := range parts {
			dump := t.TempDir() + "/section"
			msg, err := exec.Command("objcopy", "-O", "binary", "--only-section="+p.Name, file, dump).CombinedOutput()
			if errors.Is(err, exec.ErrNotFound) {
				need(t, "package binutils", err)
			}
			if err != nil {
				t.Fatalf("objcopy: %v\n%s", err, msg)
			}
			got, err := os.ReadFile(dump)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(p.Data, got); d != "" {
				t.Errorf("section %s (-want +got):\n%s", p.Name, d)
			}
		}
	})
	t.Run("objdump", func(t *testing.T) {
		got, err := exec.Command("objdump", "-p", file).Output()
		if err != nil {
			need(t, "package binutils", err)
		}
		h, err := readHeader(bytes.NewReader(out))
		if err != nil {
			t.Fatal(err)
		}
		size, sum := le.Uint32(h.raw[h.opt+optSizeOfImage:]), le.Uint32(h.raw[h.opt+optCheckSum:])
		for _, want := range []string{fmt.Sprintf("SizeOfImage\t\t%08x\n", size), fmt.Sprintf("CheckSum\t\t%08x\n", sum)} {
			if !bytes.Contains(got, []byte(want)) {
				t.Errorf("objdump does not say %q:\n%s", want, got)
			}
		}
	})
	t.Run("checksum as the linker made it", func(t *testing.T) {
		h, err := readHeader(bytes.NewReader(stub))
		if err != nil {
			t.Fatal(err)
		}
		want := le.Uint32(stub[h.opt+optCheckSum:])
		zeroed := bytes.Clone(stub)
		le.PutUint32(zeroed[h.opt+optCheckSum:], 0)
		if got := checksum(zeroed) + uint32(len(stub)); want != 0 && got != want {
			t.Errorf("checksum of the stub = %#x; its header says %#x", got, want)
		}
	})
}

// need skips on a developer's machine and fails in CI.
func need(t *testing.T, what string, err error) {
	t.Helper()
	if os.Getenv("CI") == "" {
		t.Skipf("%s is not installed: %v", what, err)
	}
	t.Fatalf("%s is needed: %v", what, err)
}

func FuzzSections(f *testing.F) {
	f.Add(makeStub(stubOptions{}))
	f.Add(makeStub(stubOptions{symbols: 3}))
	f.Fuzz(func(t *testing.T, b []byte) {
		_, _ = Cmdline(bytes.NewReader(b))
		out, err := Build(b, parts)
		if err != nil {
			return
		}
		ss, err := Sections(bytes.NewReader(out))
		if err != nil || len(ss) < len(parts) {
			t.Fatalf("Build made a file that cannot be read back: %v", err)
		}
	})
}
