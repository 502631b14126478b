package netboot

import (
	"bytes"
	"encoding/binary"
	"unicode/utf16"
)

// codeX64 calls OutputString and ResetSystem of the EFI_SYSTEM_TABLE in rdx;
// the text follows it.
func codeX64() []byte {
	code := []byte{
		0x48, 0x83, 0xec, 0x28, // sub rsp, 40
		0x48, 0x89, 0xd3, // mov rbx, rdx
		0x48, 0x8b, 0x4b, 0x40, // mov rcx, [rbx+0x40]     ; ConOut
		0x48, 0x8d, 0x15, 0, 0, 0, 0, // lea rdx, [rip+text]
		0xff, 0x51, 0x08, // call [rcx+8]            ; OutputString
		0x48, 0x8b, 0x43, 0x58, // mov rax, [rbx+0x58]     ; RuntimeServices
		0xb9, 2, 0, 0, 0, // mov ecx, EfiResetShutdown
		0x31, 0xd2, // xor edx, edx
		0x4d, 0x31, 0xc0, // xor r8, r8
		0x4d, 0x31, 0xc9, // xor r9, r9
		0xff, 0x50, 0x68, // call [rax+0x68]         ; ResetSystem
		0xeb, 0xfe, // jmp .
	}
	binary.LittleEndian.PutUint32(code[14:], uint32(len(code)-18))
	return code
}

// codeARM64 does the same with the table in x1.
func codeARM64() []byte {
	code := []uint32{
		0xaa0103f3, // mov x19, x1
		0xf9402260, // ldr x0, [x19, #0x40]
		0x10000001, // adr x1, text
		0xf9400408, // ldr x8, [x0, #8]
		0xd63f0100, // blr x8
		0xf9402e68, // ldr x8, [x19, #0x58]
		0xf9403508, // ldr x8, [x8, #0x68]
		0x52800040, // mov w0, #2
		0xaa1f03e1, // mov x1, xzr
		0xaa1f03e2, // mov x2, xzr
		0xaa1f03e3, // mov x3, xzr
		0xd63f0100, // blr x8
		0x14000000, // b .
	}
	code[2] |= uint32(len(code)-2) << 5 // words from the adr to the text
	var b []byte
	for _, w := range code {
		b = binary.LittleEndian.AppendUint32(b, w)
	}
	return b
}

// efiProgram returns a UEFI application of at least size bytes that prints
// text and switches the machine off.
func efiProgram(cpu, text string, size int) []byte {
	const (
		headers = 0x200
		base    = 0x1000 // address of the only section
	)
	machine, code := uint16(0x8664), codeX64()
	if cpu == "arm64" {
		machine, code = 0xaa64, codeARM64()
	}
	for _, u := range append(utf16.Encode([]rune(text+"\r\n")), 0) {
		code = binary.LittleEndian.AppendUint16(code, u)
	}
	raw := (len(code) + 0x1ff) &^ 0x1ff
	var b bytes.Buffer
	put := func(v any) { _ = binary.Write(&b, binary.LittleEndian, v) }
	b.WriteString("MZ")
	b.Write(make([]byte, 0x3a))
	put(uint32(0x40))
	b.WriteString("PE\x00\x00")
	put([]uint16{machine, 1}) // machine, sections
	put([]uint32{0, 0, 0})    // time, symbols
	put([]uint16{0xf0, 0x22}) // optional header, flags
	put(uint16(0x20b))        // PE32+
	put([]byte{0, 0})         // linker
	put([]uint32{uint32(raw), 0, 0, base, base})
	put(uint64(0x400000))        // image base: relocatable code, none needed
	put([]uint32{0x1000, 0x200}) // alignments
	put(make([]uint16, 6))       // versions
	put(uint32(0))
	put([]uint32{base + uint32((raw+0xfff)&^0xfff), headers, 0})
	put([]uint16{10, 0}) // EFI application
	put([]uint64{0, 0, 0, 0})
	put([]uint32{0, 16})
	put(make([]uint64, 16)) // data directories
	name := [8]byte{'.', 't', 'e', 'x', 't'}
	put(name)
	put([]uint32{uint32(raw), base, uint32(raw), headers, 0, 0, 0, 0x60000020})
	b.Write(make([]byte, headers-b.Len()))
	b.Write(code)
	b.Write(make([]byte, headers+raw-b.Len()))
	if n := size - b.Len(); n > 0 {
		pad := make([]byte, n)
		for i := range pad {
			pad[i] = byte(i * 31)
		}
		b.Write(pad)
	}
	return b.Bytes()
}
