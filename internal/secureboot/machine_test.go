package secureboot

import (
	"bytes"
	stdcontext "context"
	"crypto/rsa"
	"crypto/x509"
	"encoding/asn1"
	"encoding/binary"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf16"
)

func pkcs1(k *rsa.PrivateKey) []byte { return x509.MarshalPKCS1PrivateKey(k) }

func marshalContentInfo(signed []byte) ([]byte, error) {
	return asn1.Marshal(contentInfo{oidSignedData, context(0, signed)})
}

// Firmware with our keys starts what we signed, and nothing else.
func TestMachine(t *testing.T) {
	if testing.Short() {
		t.Skip("boots machines")
	}
	need(t, "qemu-system-x86_64", "mformat", "mmd", "mcopy")
	vars, err := os.ReadFile("/usr/share/OVMF/OVMF_VARS_4M.fd")
	if err != nil {
		if os.Getenv("CI") != "" {
			t.Fatal(err)
		}
		t.Skip(err)
	}
	if vars, err = ours().EnrolOVMF(vars); err != nil {
		t.Fatal(err)
	}
	const text = "SIGNED-PROGRAM-RUNS"
	sign := func(s *Signer, pe []byte) []byte {
		out, err := s.Sign(pe)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	for _, tt := range []struct {
		name string
		pe   []byte
		runs bool
	}{
		{"signed", sign(ours().DB, append(program(text), 1, 2, 3)), true},
		{"unsigned", program(text), false},
		{"signed by a stranger", sign(others().DB, program(text)), false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			out := boot(t, vars, tt.pe)
			if runs := strings.Contains(out, text); runs != tt.runs || !runs && !strings.Contains(out, "Access Denied") {
				t.Errorf("runs: %v, want %v; console:\n%s", runs, tt.runs, out)
			}
		})
	}
}

// boot starts a machine from a disk with one program, and returns what it
// printed until it ended, or firmware refused the program.
func boot(t *testing.T, vars, pe []byte) string {
	t.Helper()
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, b := range map[string][]byte{"vars.fd": vars, "p.efi": pe} {
		if err := os.WriteFile(at(name), b, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	for _, args := range [][]string{
		{"truncate", "-s", "34M", at("esp.img")}, {"mformat", "-i", at("esp.img"), "-F", "::"},
		{"mmd", "-i", at("esp.img"), "::/EFI", "::/EFI/BOOT"}, {"mcopy", "-i", at("esp.img"), at("p.efi"), "::/EFI/BOOT/BOOTX64.EFI"},
	} {
		if out, err := run(t, args...); err != nil {
			t.Fatalf("%q: %v\n%s", args, err, out)
		}
	}
	ctx, cancel := stdcontext.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, "qemu-system-x86_64", "-machine", "q35,smm=on", "-accel", "tcg,thread=multi", "-cpu", "max", "-m", "256",
		"-global", "driver=cfi.pflash01,property=secure,value=on", "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio", "-net", "none",
		"-drive", "if=pflash,format=raw,unit=0,readonly=on,file=/usr/share/OVMF/OVMF_CODE_4M.secboot.fd",
		"-drive", "if=pflash,format=raw,unit=1,file="+at("vars.fd"),
		"-drive", "if=none,id=d,format=raw,file="+at("esp.img"), "-device", "virtio-blk-pci,drive=d,bootindex=1")
	out := &console{stop: cancel}
	cmd.Stdout, cmd.Stderr = out, out
	start := time.Now()
	err := cmd.Run()
	t.Logf("machine ran for %.1f s: %v", time.Since(start).Seconds(), err)
	return out.String()
}

// console pulls the machine's plug when firmware refuses a program: it would
// go on for minutes.
type console struct {
	text bytes.Buffer
	stop func()
}

func (c *console) String() string { return c.text.String() }

func (c *console) Write(p []byte) (int, error) {
	n, err := c.text.Write(p)
	if strings.Contains(c.String(), "Access Denied") {
		c.stop()
	}
	return n, err
}

// program is a UEFI application that prints text and switches the machine off.
func program(text string) []byte {
	code := []byte{
		0x48, 0x83, 0xec, 0x28, // sub rsp, 40
		0x48, 0x89, 0xd3, // mov rbx, rdx            ; EFI_SYSTEM_TABLE
		0x48, 0x8b, 0x4b, 0x40, // mov rcx, [rbx+0x40]     ; ConOut
		0x48, 0x8d, 0x15, 0, 0, 0, 0, // lea rdx, [rip+text]
		0xff, 0x51, 0x08, // call [rcx+8]            ; OutputString
		0x48, 0x8b, 0x43, 0x58, // mov rax, [rbx+0x58]     ; RuntimeServices
		0xb9, 2, 0, 0, 0, // mov ecx, EfiResetShutdown
		0x31, 0xd2, 0x4d, 0x31, 0xc0, 0x4d, 0x31, 0xc9, // no status, no data
		0xff, 0x50, 0x68, // call [rax+0x68]         ; ResetSystem
		0xeb, 0xfe, // jmp .
	}
	le := binary.LittleEndian
	le.PutUint32(code[14:], uint32(len(code)-18))
	for _, u := range append(utf16.Encode([]rune(text+"\r\n")), 0) {
		code = le.AppendUint16(code, u)
	}
	const headers, raw, base = 0x200, 0x200, 0x1000
	var b bytes.Buffer
	put := func(vs ...any) {
		for _, v := range vs {
			_ = binary.Write(&b, le, v) // of fixed size, to memory
		}
	}
	b.WriteString("MZ")
	b.Write(make([]byte, 0x3a))
	put(uint32(0x40), []byte("PE\x00\x00"), uint16(0x8664), uint16(1), make([]byte, 12), uint16(0xf0), uint16(0x22))
	put(uint16(0x20b), uint16(0), uint32(raw), uint32(0), uint32(0), uint32(base), uint32(base), uint64(0x400000))
	put(uint32(0x1000), uint32(0x200), make([]byte, 12), uint32(0), uint32(base+0x1000), uint32(headers), uint32(0))
	put(uint16(10), uint16(0), make([]byte, 32), uint32(0), uint32(16), make([]byte, 16*8))
	put([]byte(".text\x00\x00\x00"), uint32(raw), uint32(base), uint32(raw), uint32(headers), make([]byte, 12), uint32(0x60000020))
	b.Write(make([]byte, headers-b.Len()))
	b.Write(code)
	b.Write(make([]byte, headers+raw-b.Len()))
	return b.Bytes()
}
